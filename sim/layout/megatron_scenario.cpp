#include "layout/megatron_scenario.h"

#include <fmt/format.h>

#include <algorithm>

#include "layout/scenario_read.h"
#include "layout/stage_split.h"

namespace stepcast {
namespace {

std::optional<std::int64_t> if_above_zero(std::int64_t value) {
  return value > 0 ? std::optional(value) : std::nullopt;
}

// "[0]*3+[1]*58": runs of equal elements.
std::string runs(const std::vector<bool>& pattern) {
  std::string text;
  for (std::size_t begin = 0; begin < pattern.size();) {
    std::size_t end = begin;
    while (end < pattern.size() && pattern[end] == pattern[begin]) ++end;
    text += fmt::format("{}[{}]*{}", text.empty() ? "" : "+", pattern[begin] ? 1 : 0, end - begin);
    begin = end;
  }
  return "(" + text + ")";
}

void add_model(const Model& m, MegatronArguments& a) {
  a.num_layers = m.layers;
  a.hidden_size = m.hidden;
  a.ffn_hidden_size = if_above_zero(m.ffn_hidden);
  a.max_position_embeddings = if_above_zero(m.max_positions);
  a.position_embedding_type = m.position == Position::kRope      ? "rope"
                              : m.position == Position::kLearned ? "learned_absolute"
                                                                 : "none";
  a.normalization = m.norm == Norm::kRms ? "RMSNorm" : "LayerNorm";
  a.swiglu = m.gated_ffn;
  a.squared_relu = !m.gated_ffn && m.activation == "squared_relu";
  a.add_bias_linear = m.bias || (m.moe && m.moe->expert_bias);
  a.untie_embeddings_and_output_weights = !m.tied_embeddings;
  a.make_vocab_size_divisible_by = m.vocab_divisor;
  a.vocab_size = m.vocab;
  a.mtp_num_layers = m.mtp_layers;
}

void add_attention(const Model& m, MegatronArguments& a) {
  const Attention& attention = m.attention;
  a.num_attention_heads = attention.heads;
  if (attention.mla()) {
    a.multi_latent_attention = true;
    a.q_lora_rank = if_above_zero(attention.q_lora_rank);
    a.kv_lora_rank = attention.kv_lora_rank;
    a.qk_head_dim = attention.qk_nope_head_dim;
    a.qk_pos_emb_head_dim = attention.qk_rope_head_dim;
    a.v_head_dim = attention.v_head_dim;
    a.qk_layernorm = true;
    return;
  }
  a.group_query_attention = attention.kv_heads != attention.heads;
  if (a.group_query_attention) a.num_query_groups = attention.kv_heads;
  a.kv_channels = attention.head_dim;
  a.add_qkv_bias = attention.qkv_bias && !a.add_bias_linear;
  a.qk_layernorm = attention.qk_norm != QkNorm::kNone;
  a.softmax_type = attention.sinks ? "learnable" : "vanilla";
  if (attention.window == 0) return;
  a.window_size = {attention.window, 0};
  std::vector<bool> windowed;
  for (std::int64_t layer = 0; layer < m.layers; ++layer) windowed.push_back(attention.windowed(layer));
  if (std::find(windowed.begin(), windowed.end(), false) != windowed.end())
    a.window_attn_skip_freq = runs(windowed);
}

void add_experts(const Model& m, MegatronArguments& a) {
  if (!m.moe) return;
  a.num_experts = m.moe->experts;
  a.moe_router_topk = m.moe->top_k;
  a.moe_ffn_hidden_size = m.moe->ffn_hidden;
  a.moe_shared_expert_intermediate_size = if_above_zero(m.moe->shared_ffn_hidden);
  a.moe_shared_expert_gate = m.moe->shared_gate;
  a.moe_latent_size = if_above_zero(m.moe->latent);
  a.moe_router_num_groups = if_above_zero(m.moe->groups);
  a.moe_router_group_topk = if_above_zero(m.moe->group_top_k);
  a.moe_router_enable_expert_bias = m.moe->correction_bias;
  a.moe_router_score_function = m.moe->correction_bias ? "sigmoid" : "softmax";
  a.moe_router_pre_softmax = !m.moe->correction_bias;  // a scenario says nothing of it; legal for every top-k
  a.moe_grouped_gemm = true;
  std::vector<bool> pattern;
  for (std::int64_t layer = 0; layer < m.layers; ++layer) pattern.push_back(m.is_moe(layer));
  if (std::find(pattern.begin(), pattern.end(), false) != pattern.end()) a.moe_layer_freq = runs(pattern);
}

void add_layout(const Scenario& s, MegatronArguments& a) {
  const Layout& l = s.layout;
  a.tensor_model_parallel_size = l.tp;
  a.sequence_parallel = l.sequence_parallel;
  a.context_parallel_size = l.cp;
  a.cp_comm_type = {l.cp_comm == CpComm::kP2p         ? "p2p"
                    : l.cp_comm == CpComm::kAllToAll  ? "a2a"
                    : l.cp_comm == CpComm::kAllGather ? "allgather"
                                                      : "a2a+p2p"};
  a.pipeline_model_parallel_size = l.pp;
  a.pipeline_model_parallel_layout = l.stages;
  if (l.vpp > 1 && l.stages.empty()) a.num_virtual_stages_per_pipeline_rank = l.vpp;
  if (l.schedule == "interleaved" && l.microbatch_group != l.pp)
    a.microbatch_group_size_per_vp_stage = l.microbatch_group;
  a.expert_model_parallel_size = l.ep;
  if (s.model.moe) a.expert_tensor_parallel_size = l.etp;
  a.schedule = l.schedule;
  a.even_split_required = false;
}

void add_sharding(const Scenario& s, MegatronArguments& a) {
  const bool megatron = s.sharding.engine == Engine::kMegatron;
  a.zero_stage = s.sharding.zero_stage;
  a.onebit_adam = s.optimizer.onebit;
  a.use_distributed_optimizer = s.sharding.zero_stage >= 1;
  a.use_megatron_fsdp = megatron && s.sharding.zero_stage >= 2;
  if (a.use_megatron_fsdp) {
    a.data_parallel_sharding_strategy = s.sharding.zero_stage == 2 ? "optim_grads" : "optim_grads_params";
    a.ckpt_format = "fsdp_dtensor";
  }
  a.num_distributed_optimizer_instances = s.sharding.instances;
  const bool half = s.precision.recipe != Recipe::kFp32;
  a.grad_reduce_in_bf16 = half && s.precision.recipe != Recipe::kFp16 && s.optimizer.grad_bytes == 2;
  a.accumulate_allreduce_grads_in_fp32 = s.precision.recipe == Recipe::kFp16 && s.optimizer.grad_bytes == 4;
  a.optimizer = s.optimizer.kind == OptimizerKind::kSgd    ? "sgd"
                : s.optimizer.kind == OptimizerKind::kMuon ? "muon"
                                                           : "adam";
  a.exp_avg_dtype = a.exp_avg_sq_dtype = name_of_bytes(s.optimizer.state_bytes, s.precision.recipe);
  a.optimizer_cpu_offload = s.offload.optimizer_fraction > 0;
  if (a.optimizer_cpu_offload) a.optimizer_offload_fraction = s.offload.optimizer_fraction;
  a.use_precision_aware_optimizer = a.optimizer_cpu_offload || a.exp_avg_dtype != "fp32";
}

void add_overlap(const Scenario& s, MegatronArguments& a) {
  const bool moe = s.model.moe.has_value();
  a.overlap_grad_reduce = s.overlap.grad_reduce;
  a.overlap_param_gather = s.overlap.param_gather;
  a.tp_comm_overlap = s.overlap.tp && s.layout.tp > 1;
  a.overlap_p2p_communication = s.overlap.p2p;
  a.overlap_moe_expert_parallel_comm = s.overlap.moe_a2a && moe;
  a.delay_wgrad_compute = s.overlap.delay_wgrad;
  a.moe_shared_expert_overlap = s.overlap.shared_expert && moe;
}

void add_dispatcher(const Scenario& s, MegatronArguments& a) {
  if (!s.model.moe) return;
  const auto flex = [&](const char* backend) {
    a.moe_token_dispatcher_type = "flex";
    a.moe_flex_dispatcher_backend = backend;
  };
  switch (s.moe.dispatcher) {
    case Dispatcher::kAllGather:
      break;
    case Dispatcher::kAllToAll:
      a.moe_token_dispatcher_type = "alltoall";
      break;
    case Dispatcher::kDeepEp:
      flex("deepep");
      break;
    case Dispatcher::kHybridEp:
      flex("hybridep");
      break;
    case Dispatcher::kNcclEp:
      flex("ncclep");
      break;
  }
  a.moe_expert_capacity_factor = s.moe.capacity_factor;
  a.moe_pad_expert_input_to_capacity = s.moe.pad_to_capacity;
  a.moe_router_force_load_balancing = s.moe.routing.kind == RoutingKind::kBalanced;
  if (s.precision.router_fp32) a.moe_router_dtype = "fp32";
}

void add_precision(const Scenario& s, MegatronArguments& a) {
  a.bf16 = s.precision.recipe != Recipe::kFp32 && s.precision.recipe != Recipe::kFp16;
  a.fp16 = s.precision.recipe == Recipe::kFp16;
  const auto fp8 = [&](const char* format, const char* recipe) {
    a.fp8 = format;
    a.fp8_recipe = recipe;
  };
  switch (s.precision.recipe) {
    case Recipe::kFp8Tensor:
      fp8("hybrid", "tensorwise");
      break;
    case Recipe::kFp8Block:
      fp8("e4m3", "blockwise");
      break;
    case Recipe::kMxfp8:
      fp8("e4m3", "mxfp8");
      break;
    case Recipe::kNvfp4:
    case Recipe::kNvfp4Weights:
      a.fp4 = "e2m1";
      break;
    default:
      break;
  }
  a.fp8_param = s.precision.fp8_params && a.fp4.empty();
  a.fp4_param = s.precision.fp8_params && !a.fp4.empty();
  a.reuse_grad_buf_for_mxfp8_param_ag = a.fp8_param && a.fp8_recipe == "mxfp8";
}

void add_execution(const Scenario& s, MegatronArguments& a) {
  if (s.recompute.granularity == Granularity::kSelective) {
    a.recompute_granularity = "selective";
    a.recompute_modules = s.recompute.modules;
  } else if (s.recompute.granularity == Granularity::kFull) {
    a.recompute_granularity = "full";
    a.recompute_method = s.recompute.layers ? "block" : "uniform";
    a.recompute_num_layers = s.recompute.layers.value_or(1);
  }
  a.fine_grained_activation_offloading = !s.offload.activations.empty();
  a.offload_modules = s.offload.activations;
  a.attention_backend = s.kernels.attention == AttentionKernel::kUnfused ? "unfused"
                        : s.kernels.attention == AttentionKernel::kCudnn ? "fused"
                        : s.kernels.attention == AttentionKernel::kAuto  ? "auto"
                                                                         : "flash";
  if (s.kernels.cuda_graphs == CudaGraphs::kLayer) a.cuda_graph_impl = "transformer_engine";
  if (s.kernels.cuda_graphs == CudaGraphs::kFull) a.cuda_graph_impl = "full_iteration";
}

// The options that say this split, simplest first; a layout string says every split.
void say_split(const std::string& wanted, MegatronArguments& a) {
  MegatronArguments plain = a;
  plain.even_split_required = true;
  for (const bool account : {false, true}) {
    plain.account_for_embedding_in_pipeline_split = plain.account_for_loss_in_pipeline_split = account;
    if (split_string(plain) == wanted) {
      a = plain;
      return;
    }
  }
  a.even_split_required = true;
  a.num_virtual_stages_per_pipeline_rank.reset();
  a.pipeline_model_parallel_layout = wanted;
}

bool uses_zero_bubble_fork(const std::string& schedule) {
  return schedule == "zb-h1" || schedule == "zb-2p" || schedule == "zb-v" || schedule == "v-half" ||
         schedule == "v-min";
}

// Options of the zero-bubble fork (sail-sg/zero-bubble-pipeline-parallelism).
void say_zero_bubble(const Scenario& s, MegatronArguments& a) {
  const std::string& schedule = s.layout.schedule;
  a.enable_zero_bubble = true;
  a.zero_bubble_v_schedule = is_v_shaped(schedule);
  if (schedule == "v-half") a.zero_bubble_v_schedule_mem_setup = "half";
  if (schedule == "v-min") a.zero_bubble_v_schedule_mem_setup = "min";
  if (schedule == "zb-h1") a.zero_bubble_max_pending_backward = s.layout.pp;
  if (schedule == "zb-2p") a.zero_bubble_max_pending_backward = 2 * s.layout.pp;
  if (is_v_shaped(schedule)) a.num_virtual_stages_per_pipeline_rank.reset();
}

// One hardware queue keeps TP and CP kernels in launch order on Hopper and before; overlapped experts and FSDP
// need many (rule 46, and Megatron's guides).
std::optional<std::int64_t> connections_for(const MegatronArguments& a) {
  if (a.overlap_moe_expert_parallel_comm || a.use_megatron_fsdp || a.use_torch_fsdp2) return 32;
  if (a.compute_capability < 10 && (a.tp() > 1 || a.context_parallel_size > 1)) return 1;
  return std::nullopt;
}

}  // namespace

MegatronArguments megatron_arguments(const Scenario& scenario) {
  MegatronArguments a;
  a.world_size = scenario.cluster.gpus;
  a.compute_capability = scenario.cluster.gpu.compute_capability;
  add_model(scenario.model, a);
  add_attention(scenario.model, a);
  add_experts(scenario.model, a);
  a.seq_length = scenario.batch.seq_len;
  a.micro_batch_size = scenario.batch.micro;
  a.global_batch_size = scenario.batch.global;
  add_layout(scenario, a);
  add_sharding(scenario, a);
  add_overlap(scenario, a);
  add_dispatcher(scenario, a);
  add_precision(scenario, a);
  add_execution(scenario, a);
  return a;
}

MegatronArguments launch_arguments(const Scenario& scenario, std::vector<Problem>& problems) {
  const auto refuse = [&](const char* pointer, const std::string& found, const char* allowed) {
    problems.push_back({scenario.file, scenario.prefix + pointer, found, allowed});
  };
  MegatronArguments a = megatron_arguments(scenario);
  const std::string& schedule = scenario.layout.schedule;
  if (uses_zero_bubble_fork(schedule))
    say_zero_bubble(scenario, a);
  else if (schedule != "1f1b" && schedule != "interleaved")
    refuse("/layout/schedule", "Megatron has no schedule " + schedule,
           "1f1b, interleaved, zb-h1, zb-2p, zb-v, v-half, v-min");
  a.schedule.clear();
  a.zero_stage = 0;
  if (scenario.layout.pp > 1 && scenario.layout.stages.empty() && !a.zero_bubble_v_schedule)
    say_split(layout_string(split_of(scenario)), a);
  a.even_split_required = true;
  if (scenario.sharding.engine == Engine::kDeepSpeed)
    refuse("/sharding/engine", "deepspeed is not in Megatron-LM", "megatron, fsdp");
  if (scenario.sharding.engine == Engine::kFsdp) {
    a.use_torch_fsdp2 = true;
    a.use_distributed_optimizer = a.overlap_param_gather = a.gradient_accumulation_fusion = false;
  }
  if (scenario.sharding.node_scope && scenario.sharding.engine == Engine::kMegatron)
    refuse("/sharding/scope", "node",
           "global, with instances: Megatron shards over instances of the optimizer");
  if (scenario.precision.recipe == Recipe::kNvfp4Weights)
    refuse("/precision/recipe", "Megatron has no nvfp4-weights", "nvfp4");
  if (scenario.optimizer.onebit) refuse("/optimizer/compression", "1bit-adam is not in Megatron-LM", "none");
  if (scenario.offload.resident_expert_fraction < 1)
    refuse("/offload/experts/resident_fraction", "Megatron keeps all experts on the GPU", "1");
  if (!a.max_position_embeddings) a.max_position_embeddings = a.seq_length;
  a.cuda_device_max_connections = connections_for(a);
  return a;
}

}  // namespace stepcast
