// Rules of experts: each just met and just broken.
#include <gtest/gtest.h>

#include "support/rule_cases.h"

namespace stepcast::rule_test {
namespace {

using Arguments = MegatronArguments;

std::vector<RuleCase> rank_cases() {
  return {
      met(6, moe(), [](Arguments& a) { a.num_experts = 8, a.expert_model_parallel_size = 8; }),
      broken(6, "expert_model_parallel_size", moe(),
             [](Arguments& a) { a.num_experts = 8, a.expert_model_parallel_size = 16; }),
      broken(6, "expert_model_parallel_size", dense(),
             [](Arguments& a) { a.expert_model_parallel_size = 2; }),
      met(8, moe(), [](Arguments& a) { a.tensor_model_parallel_size = 2, a.sequence_parallel = true; }),
      met(8, dense(), [](Arguments& a) { a.tensor_model_parallel_size = 2; }),
      met(8, moe(), [](Arguments&) {}),
      broken(8, "sequence_parallel", moe(), [](Arguments& a) { a.tensor_model_parallel_size = 2; }),
      met(30, moe(),
          [](Arguments& a) { a.moe_token_dispatcher_type = "flex", a.expert_model_parallel_size = 2; }),
      met(30, moe(),
          [](Arguments& a) {
            a.moe_token_dispatcher_type = "flex", a.moe_flex_dispatcher_backend = "hybridep";
          }),
      broken(30, "moe_flex_dispatcher_backend", moe(),
             [](Arguments& a) { a.moe_token_dispatcher_type = "flex"; }),
      broken(30, "moe_flex_dispatcher_backend", moe(),
             [](Arguments& a) {
               a.moe_token_dispatcher_type = "flex", a.moe_flex_dispatcher_backend = "ncclep";
             }),
  };
}

Arguments overlapped(Arguments a) {
  a.expert_model_parallel_size = 8;
  a.overlap_moe_expert_parallel_comm = true;
  return a;
}

std::vector<RuleCase> overlap_cases() {
  const Arguments base = overlapped(moe());
  return {
      met(23, base, [](Arguments&) {}),
      met(23, base, [](Arguments& a) { a.mtp_num_layers = 1, a.bf16 = false, a.fp16 = true; }),
      met(23, base,
          [](Arguments& a) {
            a.pipeline_model_parallel_size = 4, a.num_virtual_stages_per_pipeline_rank = 2;
          }),
      broken(23, "num_virtual_stages_per_pipeline_rank", base,
             [](Arguments& a) { a.pipeline_model_parallel_size = 4; }),
      broken(23, "expert_model_parallel_size", base, [](Arguments& a) { a.expert_model_parallel_size = 1; }),
      broken(23, "moe_token_dispatcher_type", base,
             [](Arguments& a) { a.moe_token_dispatcher_type = "allgather"; }),
      broken(23, "recompute_granularity", base, [](Arguments& a) { a.recompute_granularity = "full"; }),
      broken(23, "recompute_method", base, [](Arguments& a) { a.recompute_method = "uniform"; }),
      broken(23, "recompute_method", base, [](Arguments& a) { a.recompute_num_layers = 1; }),
      broken(23, "recompute_modules", base,
             [](Arguments& a) { a.recompute_granularity = "selective", a.recompute_modules = {"moe"}; }),
      met(23, base,
          [](Arguments& a) { a.recompute_granularity = "selective", a.recompute_modules = {"moe_act"}; }),
      broken(23, "bf16", base, [](Arguments& a) { a.bf16 = false; }),
      broken(23, "moe_shared_expert_overlap", base, [](Arguments& a) { a.moe_shared_expert_overlap = true; }),
      broken(23, "mtp_num_layers", base, [](Arguments& a) { a.mtp_num_layers = 2; }),
      broken(23, "use_megatron_fsdp", base,
             [](Arguments& a) {
               a.pipeline_model_parallel_size = 4, a.num_virtual_stages_per_pipeline_rank = 2;
               a.use_megatron_fsdp = true, a.ckpt_format = "fsdp_dtensor";
             }),
      met(24, base, [](Arguments& a) { a.delay_wgrad_compute = true; }),
      broken(24, "delay_wgrad_compute", moe(), [](Arguments& a) { a.delay_wgrad_compute = true; }),
      met(25, moe(), [](Arguments& a) { a.overlap_dispatch_backward_with_experts_wgrad = true; }),
      broken(25, "overlap_dispatch_backward_with_experts_wgrad", base,
             [](Arguments& a) { a.overlap_dispatch_backward_with_experts_wgrad = true; }),
      broken(25, "overlap_dispatch_backward_with_experts_wgrad", base,
             [](Arguments& a) {
               a.overlap_dispatch_backward_with_experts_wgrad = a.delay_wgrad_compute = true;
             }),
      met(26, moe(), [](Arguments& a) { a.moe_shared_expert_overlap = true; }),
      broken(26, "moe_shared_expert_overlap", moe(),
             [](Arguments& a) {
               a.moe_shared_expert_overlap = true, a.moe_token_dispatcher_type = "allgather";
             }),
      broken(26, "moe_shared_expert_overlap", moe(),
             [](Arguments& a) {
               a.moe_shared_expert_overlap = true, a.recompute_granularity = "selective";
               a.recompute_modules = {"shared_experts"};
             }),
  };
}

std::vector<RuleCase> capacity_cases() {
  const auto flex = [](const char* backend) {
    Arguments a = moe();
    a.moe_token_dispatcher_type = "flex";
    a.moe_flex_dispatcher_backend = backend;
    a.expert_model_parallel_size = 8;
    return a;
  };
  const auto padded = [](Arguments& a) {
    a.moe_expert_capacity_factor = 1.5, a.moe_pad_expert_input_to_capacity = true;
  };
  const auto of_rank = [](Arguments& a) { a.moe_expert_rank_capacity_factor = 1.5; };
  return {
      met(27, moe(), padded),
      met(27, flex("hybridep"), padded),
      broken(27, "moe_pad_expert_input_to_capacity", flex("deepep"), padded),
      broken(27, "moe_expert_capacity_factor", moe(),
             [](Arguments& a) { a.moe_pad_expert_input_to_capacity = true; }),
      broken(
          27, "moe_expert_capacity_factor", moe(),
          [](Arguments& a) { a.moe_pad_expert_input_to_capacity = true, a.moe_expert_capacity_factor = -1; }),
      broken(27, "moe_router_load_balancing_type", moe(),
             [](Arguments& a) {
               a.moe_expert_capacity_factor = 1, a.moe_router_load_balancing_type = {"aux_loss", "sinkhorn"};
             }),
      met(27, moe(),
          [](Arguments& a) {
            a.moe_expert_capacity_factor = 1;
            a.moe_router_load_balancing_type = {"seq_aux_loss", "global_aux_loss", "none"};
          }),
      met(28, flex("ncclep"), of_rank),
      broken(28, "moe_expert_rank_capacity_factor", flex("deepep"), of_rank),
      broken(28, "moe_expert_rank_capacity_factor", moe(), of_rank),
      broken(28, "use_transformer_engine_op_fuser", flex("hybridep"), of_rank),
      met(28, flex("hybridep"),
          [](Arguments& a) {
            a.moe_expert_rank_capacity_factor = 1.5, a.use_transformer_engine_op_fuser = true;
          }),
      met(28, flex("hybridep"),
          [](Arguments& a) {
            a.moe_expert_rank_capacity_factor = 1.5, a.moe_use_grouped_tensor = a.moe_paged_stash = true;
          }),
      broken(28, "moe_paged_stash", flex("hybridep"), [](Arguments& a) { a.moe_paged_stash = true; }),
  };
}

std::vector<RuleCase> routing_cases() {
  const auto top_1 = [](Arguments& a) { a.moe_router_topk = 1; };
  const char* padding = "moe_router_padding_for_quantization";
  return {
      met(31, moe(), [](Arguments& a) { a.moe_router_topk = 1, a.moe_router_pre_softmax = true; }),
      met(31, moe(), [](Arguments& a) { a.moe_router_topk = 1, a.moe_router_score_function = "sigmoid"; }),
      met(31, moe(),
          [](Arguments& a) { a.moe_router_topk = 1, a.moe_router_load_balancing_type = {"sinkhorn"}; }),
      met(31, dense(), top_1),
      broken(31, "moe_router_pre_softmax", moe(), top_1),
      met(32, moe(), [](Arguments& a) { a.moe_router_num_groups = 8, a.moe_router_group_topk = 8; }),
      broken(32, "moe_router_num_groups", moe(),
             [](Arguments& a) { a.moe_router_num_groups = 7, a.moe_router_group_topk = 4; }),
      broken(32, "moe_router_group_topk", moe(),
             [](Arguments& a) { a.moe_router_num_groups = 8, a.moe_router_group_topk = 9; }),
      broken(32, "moe_router_num_groups", moe(), [](Arguments& a) { a.moe_router_group_topk = 4; }),
      met(33, moe(),
          [](Arguments& a) {
            a.moe_router_enable_expert_bias = true, a.moe_router_score_function = "sqrtsoftplus";
          }),
      broken(33, "moe_router_score_function", moe(),
             [](Arguments& a) { a.moe_router_enable_expert_bias = true; }),
      met(34, moe(), [](Arguments& a) { a.add_bias_linear = true; }),
      met(34, dense(), [](Arguments& a) { a.add_bias_linear = true, a.tensor_model_parallel_size = 2; }),
      broken(34, "expert_tensor_parallel_size", moe(),
             [](Arguments& a) { a.add_bias_linear = true, a.expert_tensor_parallel_size = 2; }),
      met(35, moe(), [](Arguments& a) { a.moe_shared_expert_intermediate_size = 1; }),
      broken(35, "moe_shared_expert_intermediate_size", moe(),
             [](Arguments& a) { a.moe_shared_expert_intermediate_size = 0; }),
      broken(35, "add_bias_linear", moe(),
             [](Arguments& a) { a.moe_shared_expert_intermediate_size = 1, a.add_bias_linear = true; }),
      met(36, moe(), [](Arguments& a) { a.moe_router_padding_for_quantization = true, a.fp8 = "e4m3"; }),
      met(36, moe(), [](Arguments& a) { a.moe_router_padding_for_quantization = true, a.fp4 = "e2m1"; }),
      broken(36, padding, moe(), [](Arguments& a) { a.moe_router_padding_for_quantization = true; }),
      broken(36, padding, moe(),
             [](Arguments& a) {
               a.moe_router_padding_for_quantization = true, a.fp8 = "e4m3";
               a.moe_token_dispatcher_type = "allgather";
             }),
      met(37, moe(), [](Arguments& a) { a.variable_seq_lengths = true; }),
      met(37, moe(), [](Arguments& a) { a.moe_token_dispatcher_type = "allgather"; }),
      broken(37, "moe_token_dispatcher_type", moe(),
             [](Arguments& a) { a.variable_seq_lengths = true, a.moe_token_dispatcher_type = "allgather"; }),
  };
}

}  // namespace

std::vector<RuleCase> expert_cases() {
  std::vector<RuleCase> all;
  for (const auto& cases : {rank_cases(), overlap_cases(), capacity_cases(), routing_cases()})
    all.insert(all.end(), cases.begin(), cases.end());
  return all;
}

namespace {

TEST(ExpertRules, JustMetAndJustBroken) { expect_cases(expert_cases()); }

}  // namespace
}  // namespace stepcast::rule_test
