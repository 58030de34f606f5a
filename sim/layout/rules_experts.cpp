// Rules of experts: ranks, dispatch, overlap, routing.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

#include "layout/rule_list.h"

namespace stepcast {
namespace {

bool alltoall_or_flex(const MegatronArguments& a) {
  return a.moe_token_dispatcher_type == "alltoall" || a.moe_token_dispatcher_type == "flex";
}

// The GPUs left for EP beside ETP and PP, or all of them where these do not fit; 0 = not known.
std::int64_t left_for_ep(const MegatronArguments& a) {
  const std::int64_t ranks = product({a.etp(), a.pipeline_model_parallel_size});
  return a.world_size % ranks == 0 ? a.world_size / ranks : a.world_size;
}

}  // namespace

void experts_divide(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const std::int64_t ep = a.expert_model_parallel_size;
  if (a.num_experts == 0 && ep > 1)
    violations.push_back({6, "expert_model_parallel_size", fmt::format("ep {} without experts", ep),
                          "ep 1 for a dense model"});
  if (a.num_experts % ep == 0) return;
  violations.push_back({6, "expert_model_parallel_size",
                        fmt::format("{} experts do not divide by ep {}", a.num_experts, ep),
                        "ep " + divisors(std::gcd(a.num_experts, left_for_ep(a)))});
}

void experts_need_sp(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (a.num_experts == 0 || a.tp() == 1 || a.sequence_parallel) return;
  violations.push_back({8, "sequence_parallel",
                        fmt::format("experts with tp {} and no sequence parallelism", a.tp()),
                        "true, or tp 1"});
}

void expert_overlap(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.overlap_moe_expert_parallel_comm) return;
  const auto needs = [&](bool met, std::string option, std::string found, const char* allowed) {
    if (!met)
      violations.push_back({23, std::move(option), "overlap.moe_a2a with " + std::move(found), allowed});
  };
  const std::int64_t ep = a.expert_model_parallel_size;
  const std::int64_t pp = a.pipeline_model_parallel_size;
  needs(ep > 1, "expert_model_parallel_size", fmt::format("ep {}", ep), "ep above 1");
  needs(pp == 1 || virtual_stages(a) > 1, virtual_stages_option(a),
        fmt::format("pp {} and vpp {}", pp, virtual_stages(a)), "vpp above 1, or pp 1");
  needs(!a.full_recompute(), "recompute_granularity", "full recompute", "none, or selective without \"moe\"");
  needs(a.full_recompute() || (a.recompute_method.empty() && !a.recompute_num_layers), "recompute_method",
        "a recompute method or number of layers", "neither");
  needs(!a.recomputes("moe"), "recompute_modules", "recompute of \"moe\"", "other modules");
  needs(alltoall_or_flex(a), "moe_token_dispatcher_type", "dispatcher " + a.moe_token_dispatcher_type,
        "alltoall, deepep, hybridep, ncclep");
  needs(a.bf16 || a.fp16, "bf16", "FP32", "bf16 or fp16");
  needs(!a.moe_shared_expert_overlap, "moe_shared_expert_overlap", "overlap.shared_expert", "one of the two");
  needs(a.mtp_num_layers <= 1, "mtp_num_layers", fmt::format("{} MTP layers", a.mtp_num_layers), "0 or 1");
  needs(!a.use_megatron_fsdp || virtual_stages(a) == 1, "use_megatron_fsdp",
        fmt::format("Megatron-FSDP and vpp {}", virtual_stages(a)), "vpp 1, or no Megatron-FSDP");
}

void delayed_weight_gradients(const MegatronArguments& arguments, Violations& violations) {
  if (!arguments.delay_wgrad_compute || arguments.overlap_moe_expert_parallel_comm) return;
  violations.push_back(
      {24, "delay_wgrad_compute", "overlap.delay_wgrad without overlap.moe_a2a", "both, or neither"});
}

void dispatch_backward_overlap(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.overlap_dispatch_backward_with_experts_wgrad) return;
  const char* option = "overlap_dispatch_backward_with_experts_wgrad";
  if (a.overlap_moe_expert_parallel_comm)
    violations.push_back({25, option,
                          "overlap of the dispatch's backward with overlap_moe_expert_parallel_comm",
                          "one of the two"});
  if (a.delay_wgrad_compute)
    violations.push_back(
        {25, option, "overlap of the dispatch's backward with delay_wgrad_compute", "one of the two"});
}

void shared_expert_overlap(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.moe_shared_expert_overlap) return;
  if (!alltoall_or_flex(a))
    violations.push_back({26, "moe_shared_expert_overlap",
                          "overlap.shared_expert with dispatcher " + a.moe_token_dispatcher_type,
                          "dispatcher alltoall, deepep, hybridep or ncclep"});
  if (a.recomputes("shared_experts"))
    violations.push_back({26, "moe_shared_expert_overlap",
                          "overlap.shared_expert with recompute of \"shared_experts\"", "one of the two"});
}

void capacity_factor(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const bool limited = a.moe_expert_capacity_factor && *a.moe_expert_capacity_factor >= 0;
  constexpr std::array<std::string_view, 4> kBalancing = {"aux_loss", "seq_aux_loss", "global_aux_loss",
                                                          "none"};
  for (const std::string& type : a.moe_router_load_balancing_type) {
    const bool fits = std::find(kBalancing.begin(), kBalancing.end(), type) != kBalancing.end();
    if (limited && !fits)
      violations.push_back({27, "moe_router_load_balancing_type",
                            fmt::format("a capacity factor with {} load balancing", type),
                            "aux_loss, seq_aux_loss, global_aux_loss, none"});
  }
  if (!a.moe_pad_expert_input_to_capacity) return;
  if (!limited)
    violations.push_back({27, "moe_expert_capacity_factor", "experts padded to a capacity that is not given",
                          "a capacity factor, or no padding"});
  if (a.flex("deepep"))
    violations.push_back({27, "moe_pad_expert_input_to_capacity",
                          "experts padded to their capacity with dispatcher deepep",
                          "another dispatcher, or no padding"});
}

void rank_capacity_factor(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.moe_expert_rank_capacity_factor) {
    if (a.moe_paged_stash)
      violations.push_back({28, "moe_paged_stash", "a paged stash without a capacity factor of the rank",
                            "moe_expert_rank_capacity_factor, or no paged stash"});
    return;
  }
  if (!a.flex("hybridep") && !a.flex("ncclep"))
    violations.push_back({28, "moe_expert_rank_capacity_factor",
                          "a capacity factor of the rank with dispatcher " +
                              (a.moe_token_dispatcher_type == "flex" ? a.moe_flex_dispatcher_backend
                                                                     : a.moe_token_dispatcher_type),
                          "dispatcher hybridep or ncclep"});
  if (a.flex("hybridep") && !a.use_transformer_engine_op_fuser && !a.moe_use_grouped_tensor)
    violations.push_back({28, "use_transformer_engine_op_fuser",
                          "a capacity factor of the rank with hybridep and no fused operations",
                          "use_transformer_engine_op_fuser or moe_use_grouped_tensor"});
}

void flex_needs_expert_ranks(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const bool alone = product({a.etp(), a.expert_model_parallel_size}) == 1;
  if (a.num_experts == 0 || !alone || !(a.flex("deepep") || a.flex("ncclep"))) return;
  violations.push_back({30, "moe_flex_dispatcher_backend",
                        fmt::format("dispatcher {} with etp 1 x ep 1", a.moe_flex_dispatcher_backend),
                        "ep above 1, or dispatcher alltoall"});
}

void top_1_softmax(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const auto& types = a.moe_router_load_balancing_type;
  const bool sinkhorn = std::find(types.begin(), types.end(), "sinkhorn") != types.end();
  if (a.num_experts == 0 || a.moe_router_topk != 1 || a.moe_router_score_function != "softmax" ||
      a.moe_router_pre_softmax || sinkhorn)
    return;
  violations.push_back({31, "moe_router_pre_softmax", "one expert a token and softmax after the choice",
                        "moe_router_pre_softmax true"});
}

void router_groups(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const std::int64_t groups = a.moe_router_num_groups.value_or(0);
  if (!a.moe_router_group_topk && groups == 0) return;
  if (groups == 0) {
    violations.push_back(
        {32, "moe_router_num_groups",
         fmt::format("tokens limited to {} groups of experts, and no groups", *a.moe_router_group_topk),
         "the number of groups"});
    return;
  }
  if (a.num_experts % groups != 0)
    violations.push_back({32, "moe_router_num_groups",
                          fmt::format("{} experts do not divide by {} groups", a.num_experts, groups),
                          divisors(a.num_experts)});
  if (a.moe_router_group_topk.value_or(0) > groups)
    violations.push_back({32, "moe_router_group_topk",
                          fmt::format("{} of {} groups of experts", *a.moe_router_group_topk, groups),
                          fmt::format("at most {}", groups)});
}

void expert_bias_score(const MegatronArguments& arguments, Violations& violations) {
  const std::string& score = arguments.moe_router_score_function;
  if (!arguments.moe_router_enable_expert_bias || score == "sigmoid" || score == "sqrtsoftplus") return;
  violations.push_back({33, "moe_router_score_function", fmt::format("an expert bias with {} scores", score),
                        "sigmoid, sqrtsoftplus"});
}

void expert_linear_bias(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (a.num_experts == 0 || !a.add_bias_linear || a.etp() == 1) return;
  violations.push_back({34, "expert_tensor_parallel_size",
                        fmt::format("experts with linear biases and etp {}", a.etp()),
                        "etp 1, or no linear biases"});
}

void shared_experts_shape(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.moe_shared_expert_intermediate_size) return;
  const char* option = "moe_shared_expert_intermediate_size";
  if (*a.moe_shared_expert_intermediate_size <= 0)
    violations.push_back({35, option,
                          fmt::format("shared experts of width {}", *a.moe_shared_expert_intermediate_size),
                          "1 or more, or no shared experts"});
  if (a.num_experts > 0 && a.add_bias_linear)
    violations.push_back({35, "add_bias_linear", "shared experts with linear biases", "no linear biases"});
}

void router_padding(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.moe_router_padding_for_quantization) return;
  const char* option = "moe_router_padding_for_quantization";
  if (a.fp8.empty() && a.fp4.empty())
    violations.push_back(
        {36, option, "tokens of experts padded for FP8 or FP4, and neither is on", "false, or fp8 or fp4"});
  if (a.moe_token_dispatcher_type == "allgather")
    violations.push_back(
        {36, option, "tokens of experts padded with dispatcher allgather", "false, or another dispatcher"});
}

void allgather_fixed_lengths(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (a.num_experts == 0 || !a.variable_seq_lengths || a.moe_token_dispatcher_type != "allgather") return;
  violations.push_back({37, "moe_token_dispatcher_type",
                        "dispatcher allgather with sequences of different lengths", "alltoall, flex"});
}

}  // namespace stepcast
