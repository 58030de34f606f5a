#include "layout/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "layout/rule_list.h"

namespace stepcast {
namespace {

// Options that several rules read.
const char* const kGrid =
    "world_size tensor_model_parallel_size context_parallel_size pipeline_model_parallel_size "
    "tensor_parallel_num_weight_shards";
const char* const kExpertGrid =
    "world_size expert_tensor_parallel_size tensor_model_parallel_size expert_model_parallel_size "
    "pipeline_model_parallel_size expert_tensor_parallel_num_weight_shards";
const char* const kBatch = "micro_batch_size global_batch_size decrease_batch_size_if_needed";
const char* const kChunks =
    "pipeline_model_parallel_size num_virtual_stages_per_pipeline_rank num_layers_per_virtual_pipeline_stage "
    "pipeline_model_parallel_layout num_layers account_for_embedding_in_pipeline_split "
    "account_for_loss_in_pipeline_split";
const char* const kOuterStages = "decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers";
const char* const kRecompute =
    "recompute_granularity recompute_method recompute_num_layers recompute_modules";
const char* const kDispatcher = "moe_token_dispatcher_type moe_flex_dispatcher_backend";

std::string all_of(std::initializer_list<const char*> parts) {
  std::string text;
  for (const char* part : parts) text += fmt::format("{}{}", text.empty() ? "" : " ", part);
  return text;
}

std::vector<Rule> list_rules() {
  return {
      {1, kGrid, dense_grid_divides},
      {2, all_of({kGrid, kExpertGrid, "num_experts"}), expert_grid_divides},
      {3, all_of({kGrid, "num_attention_heads"}), heads_divide},
      {4, all_of({kGrid, "num_attention_heads group_query_attention num_query_groups"}), query_groups_divide},
      {5, "num_experts expert_tensor_parallel_size tensor_model_parallel_size", expert_tp_defaults_to_tp},
      {6, all_of({kExpertGrid, "num_experts"}), experts_divide},
      {7, "sequence_parallel tensor_model_parallel_size", sequence_parallel_needs_tp},
      {8, "num_experts sequence_parallel tensor_model_parallel_size", experts_need_sp},
      {9, "tp_comm_overlap sequence_parallel tensor_model_parallel_size", tp_overlap_needs_sp},
      {10, "seq_length context_parallel_size", sequence_divides_over_cp},
      {11, all_of({kGrid, kBatch}), batch_divides},
      {12, all_of({kChunks, kOuterStages}), layers_divide_over_pp},
      {13, all_of({kChunks, kOuterStages}), layers_divide_over_chunks},
      {14, kChunks, one_way_to_give_chunks},
      {15, all_of({kChunks, "schedule overlap_p2p_communication enable_zero_bubble zero_bubble_v_schedule"}),
       interleaving_needs_pp},
      {16, all_of({kChunks, kOuterStages}), uneven_split},
      {17, all_of({kChunks, kOuterStages, "mtp_num_layers"}), layout_string_fits},
      {18,
       all_of({kGrid, kBatch, kChunks,
               "microbatch_group_size_per_vp_stage schedule enable_zero_bubble zero_bubble_v_schedule"}),
       microbatch_group_fits},
      {19, all_of({kChunks, "overlap_p2p_communication_warmup_flush overlap_p2p_communication"}),
       warmup_flush_overlap},
      {20, "overlap_param_gather overlap_grad_reduce use_distributed_optimizer use_megatron_fsdp optimizer",
       param_gather_overlap},
      {21,
       all_of({kChunks, "overlap_param_gather_with_optimizer_step overlap_param_gather",
               "use_distributed_optimizer ckpt_format"}),
       param_gather_with_step},
      {22, "defer_embedding_wgrad_compute pipeline_model_parallel_size gradient_accumulation_fusion",
       deferred_embedding_gradient},
      {23,
       all_of({kChunks, kRecompute, kDispatcher, "overlap_moe_expert_parallel_comm",
               "expert_model_parallel_size bf16 fp16 moe_shared_expert_overlap mtp_num_layers",
               "use_megatron_fsdp"}),
       expert_overlap},
      {24, "delay_wgrad_compute overlap_moe_expert_parallel_comm", delayed_weight_gradients},
      {25,
       "overlap_dispatch_backward_with_experts_wgrad overlap_moe_expert_parallel_comm delay_wgrad_compute",
       dispatch_backward_overlap},
      {26, all_of({kRecompute, kDispatcher, "moe_shared_expert_overlap"}), shared_expert_overlap},
      {27,
       all_of({kDispatcher, "moe_expert_capacity_factor moe_pad_expert_input_to_capacity",
               "moe_router_load_balancing_type"}),
       capacity_factor},
      {28,
       all_of({kDispatcher, "moe_expert_rank_capacity_factor moe_paged_stash",
               "use_transformer_engine_op_fuser moe_use_grouped_tensor"}),
       rank_capacity_factor},
      {30, all_of({kExpertGrid, kDispatcher, "num_experts"}), flex_needs_expert_ranks},
      {31,
       "num_experts moe_router_topk moe_router_score_function moe_router_pre_softmax "
       "moe_router_load_balancing_type",
       top_1_softmax},
      {32, "num_experts moe_router_num_groups moe_router_group_topk", router_groups},
      {33, "moe_router_enable_expert_bias moe_router_score_function", expert_bias_score},
      {34, "num_experts add_bias_linear expert_tensor_parallel_size tensor_model_parallel_size",
       expert_linear_bias},
      {35, "num_experts moe_shared_expert_intermediate_size add_bias_linear", shared_experts_shape},
      {36, "moe_router_padding_for_quantization fp8 fp4 moe_token_dispatcher_type", router_padding},
      {37, "num_experts variable_seq_lengths moe_token_dispatcher_type", allgather_fixed_lengths},
      {38,
       all_of({kRecompute, "moe_grouped_gemm multi_latent_attention fp8 fp8_recipe",
               "overlap_moe_expert_parallel_comm"}),
       recompute_options},
      {39, "distribute_saved_activations tensor_model_parallel_size sequence_parallel recompute_granularity",
       distributed_activations},
      {40,
       all_of({kRecompute, "cpu_offloading_num_layers num_layers pipeline_model_parallel_size",
               "fine_grained_activation_offloading offload_modules"}),
       activation_offload},
      {41, "multi_latent_attention group_query_attention attention_output_gate", mla_without_groups},
      {42,
       "fp8 fp4 fp8_param fp4_param fp8_recipe use_distributed_optimizer use_megatron_fsdp use_torch_fsdp2 "
       "first_last_layers_bf16 num_layers_at_start_in_bf16 num_layers_at_end_in_bf16 num_layers "
       "pipeline_model_parallel_size",
       low_precision},
      {43, "optimizer_cpu_offload use_precision_aware_optimizer fp8_param fp8_recipe", optimizer_offload},
      {44,
       "use_torch_fsdp2 pipeline_model_parallel_size expert_model_parallel_size use_distributed_optimizer "
       "gradient_accumulation_fusion untie_embeddings_and_output_weights ckpt_format "
       "cuda_device_max_connections",
       torch_fsdp2_alone},
      {45, "use_megatron_fsdp optimizer ckpt_format cuda_device_max_connections use_distributed_optimizer",
       megatron_fsdp_needs},
      {46,
       "cuda_device_max_connections compute_capability tensor_model_parallel_size context_parallel_size "
       "use_megatron_fsdp use_torch_fsdp2 overlap_moe_expert_parallel_comm",
       connections_of_tp_and_cp},
      {47, "hierarchical_context_parallel_sizes cp_comm_type context_parallel_size", hierarchical_cp_sizes},
      {48,
       "cp_comm_type context_parallel_size num_attention_heads num_query_groups group_query_attention "
       "multi_latent_attention tensor_model_parallel_size",
       heads_divide_over_cp},
      {49,
       "hybrid_context_parallel pipeline_model_parallel_size cuda_graph_impl use_megatron_fsdp "
       "calculate_per_token_loss",
       hybrid_cp_alone},
      {50, all_of({kGrid, kExpertGrid, "num_distributed_optimizer_instances"}), optimizer_instances_divide},
      {51, all_of({kGrid, kExpertGrid, "use_tp_pp_dp_mapping"}), rank_order_with_experts},
      {53, "save_params_interval overlap_param_gather max_position_embeddings seq_length",
       positions_cover_sequence},
      {54, "mtp_num_layers position_embedding_type enable_hyper_connections", mtp_with},
      {55,
       all_of({kGrid, kExpertGrid, "ckpt_format ddp_average_in_collective",
               "num_distributed_optimizer_instances fp8 fp8_recipe fp8_param fp4 fp4_param",
               "reuse_grad_buf_for_mxfp8_param_ag"}),
       weight_shards_beyond_tp_alone},
      {56, "pipeline_model_parallel_comm_backend cuda_device_max_connections", ucc_connections},
      {101, all_of({kGrid, kBatch, "schedule"}), dualpipe_microbatches},
      {102, "onebit_adam zero_stage", onebit_without_zero},
      {104, all_of({kChunks, kOuterStages, "enable_zero_bubble zero_bubble_v_schedule"}), zero_bubble_v},
  };
}

struct Sized {
  const char* name;
  const char* option;
  std::int64_t value;
  std::int64_t least;
};

// Sizes that a rule divides by or multiplies, with the least that means something; 0 = unknown or none.
std::vector<Sized> sizes_of(const MegatronArguments& a) {
  const auto given = [](const std::optional<std::int64_t>& size) { return size.value_or(1); };
  return {
      {"gpus", "world_size", a.world_size, 0},
      {"tp", "tensor_model_parallel_size", a.tp(), 1},
      {"cp", "context_parallel_size", a.context_parallel_size, 1},
      {"pp", "pipeline_model_parallel_size", a.pipeline_model_parallel_size, 1},
      {"vpp", "num_virtual_stages_per_pipeline_rank", given(a.num_virtual_stages_per_pipeline_rank), 1},
      {"layers a virtual stage", "num_layers_per_virtual_pipeline_stage",
       given(a.num_layers_per_virtual_pipeline_stage), 1},
      {"ep", "expert_model_parallel_size", a.expert_model_parallel_size, 1},
      {"etp", "expert_tensor_parallel_size", a.etp(), 1},
      {"weight shards", "tensor_parallel_num_weight_shards", given(a.tensor_parallel_num_weight_shards), 1},
      {"weight shards of experts", "expert_tensor_parallel_num_weight_shards",
       given(a.expert_tensor_parallel_num_weight_shards), 1},
      {"micro-batch group", "microbatch_group_size_per_vp_stage", given(a.microbatch_group_size_per_vp_stage),
       1},
      {"layers", "num_layers", a.num_layers, 0},
      {"MTP layers", "mtp_num_layers", a.mtp_num_layers, 0},
      {"heads", "num_attention_heads", a.num_attention_heads, 0},
      {"kv_heads", "num_query_groups", a.group_query_attention ? a.num_query_groups : 1, 1},
      {"experts", "num_experts", a.num_experts, 0},
      {"groups of experts", "moe_router_num_groups", given(a.moe_router_num_groups), 1},
      {"seq_len", "seq_length", a.seq_length, 0},
      {"micro-batch", "micro_batch_size", a.micro_batch_size, 1},
      {"global batch", "global_batch_size", given(a.global_batch_size), 1},
      {"optimizer instances", "num_distributed_optimizer_instances", a.num_distributed_optimizer_instances,
       1},
      {"layers of the first stage", "decoder_first_pipeline_num_layers",
       given(a.decoder_first_pipeline_num_layers), -kMaxRuleSize},
      {"layers of the last stage", "decoder_last_pipeline_num_layers",
       given(a.decoder_last_pipeline_num_layers), -kMaxRuleSize},
  };
}

void check_sizes(const MegatronArguments& a, Violations& violations) {
  for (const Sized& size : sizes_of(a)) {
    if (size.value >= size.least && size.value <= kMaxRuleSize) continue;
    // ETP that follows TP is TP's fault
    if (size.option == std::string_view("expert_tensor_parallel_size") && !a.expert_tensor_parallel_size)
      continue;
    violations.push_back({0, size.option, fmt::format("{} {}", size.name, size.value),
                          fmt::format("{} to {}", std::max<std::int64_t>(size.least, 1), kMaxRuleSize)});
  }
}

// The rules' findings, warnings among them.
Violations findings(const MegatronArguments& arguments) {
  Violations violations;
  check_sizes(arguments, violations);
  if (!violations.empty()) return violations;
  const std::vector<std::string> unfilled = unfilled_fields(arguments);
  for (const Rule& rule : all_rules()) {
    const bool open = std::any_of(unfilled.begin(), unfilled.end(),
                                  [&](const std::string& field) { return rule.reads(field); });
    if (!open) rule.check(arguments, violations);
  }
  return violations;
}

}  // namespace

bool Rule::reads(std::string_view option) const {
  for (std::size_t at = options.find(option); at != std::string::npos; at = options.find(option, at + 1)) {
    const std::size_t end = at + option.size();
    if ((at == 0 || options[at - 1] == ' ') && (end == options.size() || options[end] == ' ')) return true;
  }
  return false;
}

const std::vector<Rule>& all_rules() {
  static const std::vector<Rule> rules = list_rules();
  return rules;
}

std::vector<Violation> check_rules(const MegatronArguments& arguments) {
  Violations violations = findings(arguments);
  std::erase_if(violations, [](const Violation& violation) { return violation.warning; });
  return violations;
}

std::vector<std::string> rule_warnings(const MegatronArguments& arguments) {
  std::vector<std::string> texts;
  for (const Violation& v : findings(arguments))
    if (v.warning) texts.push_back(fmt::format("{}: {} (rule {}); {}", v.option, v.found, v.rule, v.allowed));
  return texts;
}

}  // namespace stepcast
