// The launch options that Megatron's validity rules, its memory and its step time depend on: a scenario fills
// this (layout/scenario.h), and so does a launch line (layout/launch_line.h); the rules (layout/rules.h) read
// it, and `export megatron` writes it. Fields carry Megatron's names and its defaults, so that a field that was
// not given is what Megatron would run with. Their flags are in layout/megatron_flags.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace stepcast {

struct MegatronArguments {
  using Size = std::int64_t;
  using MaybeSize = std::optional<std::int64_t>;

  // Where it runs. No flags: the launcher and the machine know.
  Size world_size = 0;                          // GPUs; 0 = not known
  double compute_capability = 0;                // of the GPU; 0 = not known
  MaybeSize cuda_device_max_connections;        // CUDA_DEVICE_MAX_CONNECTIONS
  std::string schedule;                         // of a scenario; empty: Megatron's own, by the virtual stages
  int zero_stage = 0;                           // of a scenario; rules of 1-bit Adam only
  bool onebit_adam = false;                     // DeepSpeed's
  bool even_split_required = true;              // a scenario without a layout string may split unevenly
  std::map<std::string, std::string> unfilled;  // flag -> a value with a variable that nobody filled in

  // ---- model
  Size num_layers = 0;
  Size hidden_size = 0;
  MaybeSize ffn_hidden_size;  // absent: 4 h, or 8/3 h rounded up to 64 with SwiGLU
  Size num_attention_heads = 0;
  bool group_query_attention = false;
  Size num_query_groups = 1;
  MaybeSize kv_channels;  // absent: h / heads
  MaybeSize max_position_embeddings;
  std::string position_embedding_type = "learned_absolute";
  std::string normalization = "LayerNorm";
  bool swiglu = false;
  bool squared_relu = false;
  bool add_bias_linear = true;
  bool add_qkv_bias = false;
  bool qk_layernorm = false;
  std::string softmax_type = "vanilla";  // learnable: attention sinks
  std::vector<Size> window_size;         // left, right
  std::string window_attn_skip_freq;     // a number, or a pattern such as ([1]*3+[0])*2
  bool attention_output_gate = false;
  bool enable_hyper_connections = false;
  bool untie_embeddings_and_output_weights = false;
  Size make_vocab_size_divisible_by = 128;
  MaybeSize vocab_size;
  MaybeSize padded_vocab_size;
  std::string tokenizer_model;
  bool multi_latent_attention = false;
  MaybeSize q_lora_rank;
  Size kv_lora_rank = 32;
  Size qk_head_dim = 128;
  Size qk_pos_emb_head_dim = 64;
  Size v_head_dim = 128;
  Size num_experts = 0;           // 0 = dense
  std::string moe_layer_freq;     // a number N: layer i is MoE when i mod N = 0; or a pattern ([0]*3+[1]*58)
  MaybeSize moe_ffn_hidden_size;  // absent: that of dense layers
  MaybeSize moe_shared_expert_intermediate_size;
  bool moe_shared_expert_gate = false;
  MaybeSize moe_latent_size;
  Size moe_router_topk = 2;
  MaybeSize moe_router_num_groups;
  MaybeSize moe_router_group_topk;
  std::string moe_router_score_function = "softmax";
  bool moe_router_pre_softmax = false;
  bool moe_router_enable_expert_bias = false;
  std::vector<std::string> moe_router_load_balancing_type = {"aux_loss"};
  bool moe_router_force_load_balancing = false;
  Size mtp_num_layers = 0;

  // ---- batch
  Size seq_length = 0;
  Size micro_batch_size = 1;
  MaybeSize global_batch_size;  // absent: one micro-batch a data-parallel rank
  bool decrease_batch_size_if_needed = false;
  bool variable_seq_lengths = false;

  // ---- parallel sizes
  Size tensor_model_parallel_size = 1;
  bool sequence_parallel = false;
  Size context_parallel_size = 1;
  std::vector<std::string> cp_comm_type = {"p2p"};  // one, or one a layer
  std::vector<Size> hierarchical_context_parallel_sizes;
  bool hybrid_context_parallel = false;
  Size pipeline_model_parallel_size = 1;
  MaybeSize num_layers_per_virtual_pipeline_stage;
  MaybeSize num_virtual_stages_per_pipeline_rank;
  std::string pipeline_model_parallel_layout;
  MaybeSize decoder_first_pipeline_num_layers;
  MaybeSize decoder_last_pipeline_num_layers;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  MaybeSize microbatch_group_size_per_vp_stage;  // absent: PP
  std::string pipeline_model_parallel_comm_backend;
  Size expert_model_parallel_size = 1;
  MaybeSize expert_tensor_parallel_size;  // absent: TP
  bool use_tp_pp_dp_mapping = false;
  MaybeSize tensor_parallel_num_weight_shards;         // TP x GTP
  MaybeSize expert_tensor_parallel_num_weight_shards;  // ETP x its GTP
  // The zero-bubble fork's.
  bool enable_zero_bubble = false;
  bool zero_bubble_v_schedule = false;
  std::string zero_bubble_v_schedule_mem_setup = "zb";
  MaybeSize zero_bubble_max_pending_backward;

  // ---- data parallelism and optimizer
  bool use_distributed_optimizer = false;
  Size num_distributed_optimizer_instances = 1;
  bool use_megatron_fsdp = false;
  std::string data_parallel_sharding_strategy = "no_shard";
  bool use_torch_fsdp2 = false;
  std::string ckpt_format = "torch_dist";
  bool ddp_average_in_collective = false;
  bool calculate_per_token_loss = false;
  MaybeSize save_params_interval;
  bool gradient_accumulation_fusion = true;
  bool accumulate_allreduce_grads_in_fp32 = false;
  bool grad_reduce_in_bf16 = false;
  std::string optimizer = "adam";
  bool use_precision_aware_optimizer = false;
  std::string main_grads_dtype = "fp32";
  std::string main_params_dtype = "fp32";
  std::string exp_avg_dtype = "fp32";
  std::string exp_avg_sq_dtype = "fp32";
  bool optimizer_cpu_offload = false;
  double optimizer_offload_fraction = 1;
  bool overlap_cpu_optimizer_d2h_h2d = false;

  // ---- overlap
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  bool overlap_param_gather_with_optimizer_step = false;
  bool tp_comm_overlap = false;
  bool overlap_p2p_communication = true;  // of the interleaved schedule
  bool overlap_p2p_communication_warmup_flush = false;
  bool overlap_moe_expert_parallel_comm = false;
  bool delay_wgrad_compute = false;
  bool overlap_dispatch_backward_with_experts_wgrad = false;
  bool moe_shared_expert_overlap = false;
  bool defer_embedding_wgrad_compute = false;

  // ---- experts
  std::string moe_token_dispatcher_type = "allgather";
  std::string moe_flex_dispatcher_backend = "deepep";
  std::optional<double> moe_expert_capacity_factor;
  bool moe_pad_expert_input_to_capacity = false;
  std::optional<double> moe_expert_rank_capacity_factor;
  bool moe_paged_stash = false;
  bool moe_router_padding_for_quantization = false;
  std::string moe_router_dtype;  // empty: that of the activations
  bool moe_grouped_gemm = false;
  bool moe_use_grouped_tensor = false;
  bool use_transformer_engine_op_fuser = false;

  // ---- precision
  bool bf16 = false;
  bool fp16 = false;
  std::string fp8;  // --fp8-format: hybrid, e4m3
  std::string fp8_recipe = "delayed";
  bool fp8_param = false;
  std::string fp4;  // --fp4-format: e2m1
  std::string fp4_recipe = "nvfp4";
  bool fp4_param = false;
  bool reuse_grad_buf_for_mxfp8_param_ag = false;
  bool first_last_layers_bf16 = false;
  Size num_layers_at_start_in_bf16 = 1;
  Size num_layers_at_end_in_bf16 = 1;

  // ---- recompute, offload, kernels
  std::string recompute_granularity;
  std::string recompute_method;
  MaybeSize recompute_num_layers;
  std::vector<std::string> recompute_modules;  // empty with selective: core_attn
  bool distribute_saved_activations = false;
  Size cpu_offloading_num_layers = 0;
  bool fine_grained_activation_offloading = false;
  std::vector<std::string> offload_modules;
  std::string attention_backend = "auto";
  std::string cuda_graph_impl = "none";
  std::vector<std::string> cuda_graph_modules;

  bool operator==(const MegatronArguments&) const = default;

  Size tp() const { return tensor_model_parallel_size; }
  Size etp() const { return expert_tensor_parallel_size.value_or(tensor_model_parallel_size); }  // rule 5
  Size query_groups() const { return group_query_attention ? num_query_groups : num_attention_heads; }
  bool flex(const std::string& backend) const {
    return moe_token_dispatcher_type == "flex" && moe_flex_dispatcher_backend == backend;
  }
  bool recomputes(const std::string& module) const;
  bool full_recompute() const { return recompute_granularity == "full"; }
};

// Chunks a PP rank: of the layout string, of --num-virtual-stages-per-pipeline-rank, or of
// --num-layers-per-virtual-pipeline-stage; 1 when none is given. When the layers do not divide: rounded down,
// at least 1 (the rules say what is wrong).
std::int64_t virtual_stages(const MegatronArguments& arguments);

}  // namespace stepcast
