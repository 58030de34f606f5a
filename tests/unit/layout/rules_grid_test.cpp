// Rules of the rank grids, heads, tokens and sequences: each just met and just broken.
#include <gtest/gtest.h>

#include "support/rule_cases.h"

namespace stepcast::rule_test {
namespace {

using Arguments = MegatronArguments;

std::vector<RuleCase> dense_grid_cases() {
  return {
      met(1, dense(),
          [](Arguments& a) {
            a.tensor_model_parallel_size = a.context_parallel_size = a.pipeline_model_parallel_size = 4;
          }),
      broken(1, "pipeline_model_parallel_size", dense(),
             [](Arguments& a) { a.tensor_model_parallel_size = 64, a.pipeline_model_parallel_size = 2; }),
      broken(1, "tensor_model_parallel_size", dense(),
             [](Arguments& a) {
               a.world_size = 60, a.tensor_model_parallel_size = 8, a.global_batch_size.reset();
             }),
      met(1, dense(),
          [](Arguments& a) { a.tensor_model_parallel_size = 4, a.tensor_parallel_num_weight_shards = 64; }),
      broken(
          1, "tensor_parallel_num_weight_shards", dense(),
          [](Arguments& a) { a.tensor_model_parallel_size = 4, a.tensor_parallel_num_weight_shards = 128; }),
      broken(1, "tensor_parallel_num_weight_shards", dense(),
             [](Arguments& a) { a.tensor_model_parallel_size = 4, a.tensor_parallel_num_weight_shards = 6; }),
      met(1, dense(), [](Arguments& a) { a.world_size = 0, a.context_parallel_size = 1024; }),
      met(2, moe(), [](Arguments& a) { a.expert_model_parallel_size = 64; }),
      broken(2, "expert_tensor_parallel_size", moe(),
             [](Arguments& a) { a.expert_tensor_parallel_size = 3; }),
      // ETP is TP unless it is given (rule 5)
      broken(2, "expert_model_parallel_size", moe(),
             [](Arguments& a) {
               a.tensor_model_parallel_size = 2, a.sequence_parallel = true;
               a.expert_tensor_parallel_size.reset(), a.expert_model_parallel_size = 64;
             }),
      broken(2, "expert_tensor_parallel_num_weight_shards", moe(),
             [](Arguments& a) {
               a.expert_model_parallel_size = 64, a.expert_tensor_parallel_num_weight_shards = 2;
             }),
      broken(2, "expert_tensor_parallel_num_weight_shards", moe(),
             [](Arguments& a) {
               a.expert_tensor_parallel_size = 2, a.expert_tensor_parallel_num_weight_shards = 3;
             }),
      met(2, moe(), [](Arguments& a) { a.world_size = 0, a.expert_model_parallel_size = 64; }),
      met(5, moe(), [](Arguments& a) { a.tensor_model_parallel_size = 2, a.sequence_parallel = true; }),
      warned(5, "expert_tensor_parallel_size", moe(),
             [](Arguments& a) {
               a.tensor_model_parallel_size = 2, a.sequence_parallel = true;
               a.expert_tensor_parallel_size.reset();
             }),
  };
}

std::vector<RuleCase> head_cases() {
  return {
      met(3, dense(), [](Arguments& a) { a.num_attention_heads = 16, a.tensor_model_parallel_size = 16; }),
      broken(3, "tensor_model_parallel_size", dense(),
             [](Arguments& a) { a.num_attention_heads = 40, a.tensor_model_parallel_size = 16; }),
      met(3, dense(), [](Arguments& a) { a.num_attention_heads = 0, a.tensor_model_parallel_size = 16; }),
      met(4, dense(), [](Arguments& a) { a.tensor_model_parallel_size = 8; }),
      met(4, dense(), [](Arguments& a) { a.num_query_groups = 1, a.tensor_model_parallel_size = 8; }),
      broken(4, "tensor_model_parallel_size", dense(),
             [](Arguments& a) { a.num_query_groups = 6, a.tensor_model_parallel_size = 4; }),
      // without groups there are as many keys as heads, and rule 3 says it
      broken(3, "tensor_model_parallel_size", dense(),
             [](Arguments& a) {
               a.group_query_attention = false, a.num_attention_heads = 40;
               a.tensor_model_parallel_size = 16;
             }),
  };
}

std::vector<RuleCase> token_cases() {
  return {
      met(7, dense(), [](Arguments& a) { a.tensor_model_parallel_size = 2, a.sequence_parallel = true; }),
      warned(7, "sequence_parallel", moe(), [](Arguments& a) { a.sequence_parallel = true; }),
      met(9, dense(),
          [](Arguments& a) {
            a.tensor_model_parallel_size = 2, a.sequence_parallel = a.tp_comm_overlap = true;
          }),
      broken(9, "tp_comm_overlap", dense(),
             [](Arguments& a) { a.tensor_model_parallel_size = 2, a.tp_comm_overlap = true; }),
      // sequence parallelism is off at TP 1 (rule 7)
      broken(9, "tp_comm_overlap", dense(),
             [](Arguments& a) { a.sequence_parallel = a.tp_comm_overlap = true; }),
      met(10, dense(), [](Arguments& a) { a.seq_length = 4104, a.context_parallel_size = 4; }),
      met(10, dense(), [](Arguments& a) { a.seq_length = 4097; }),
      met(10, dense(), [](Arguments& a) { a.seq_length = 0, a.context_parallel_size = 4; }),
      broken(10, "context_parallel_size", dense(),
             [](Arguments& a) { a.seq_length = 4100, a.context_parallel_size = 4; }),
      met(53, dense(), [](Arguments& a) { a.max_position_embeddings = 4096; }),
      broken(53, "max_position_embeddings", dense(), [](Arguments& a) { a.max_position_embeddings = 4095; }),
      met(53, dense(), [](Arguments& a) { a.save_params_interval = 10; }),
      broken(53, "save_params_interval", dense(),
             [](Arguments& a) {
               a.save_params_interval = 10, a.use_distributed_optimizer = true;
               a.overlap_grad_reduce = a.overlap_param_gather = true;
             }),
  };
}

std::vector<RuleCase> batch_cases() {
  return {
      met(11, dense(), [](Arguments& a) { a.global_batch_size = 128, a.micro_batch_size = 2; }),
      met(11, dense(), [](Arguments& a) { a.global_batch_size.reset(), a.micro_batch_size = 3; }),
      met(11, dense(), [](Arguments& a) { a.world_size = 0, a.global_batch_size = 13; }),
      broken(11, "global_batch_size", dense(),
             [](Arguments& a) { a.global_batch_size = 192, a.micro_batch_size = 2; }),
      broken(11, "global_batch_size", dense(), [](Arguments& a) { a.global_batch_size = 32; }),
      warned(11, "global_batch_size", dense(),
             [](Arguments& a) { a.global_batch_size = 100, a.decrease_batch_size_if_needed = true; }),
      broken(11, "global_batch_size", dense(),
             [](Arguments& a) { a.global_batch_size = 63, a.decrease_batch_size_if_needed = true; }),
      // peers of a weight shard carry sequences of their own
      broken(11, "global_batch_size", dense(),
             [](Arguments& a) {
               a.context_parallel_size = 8, a.tensor_parallel_num_weight_shards = 2;
               a.global_batch_size = 4;
             }),
  };
}

std::vector<RuleCase> context_parallel_cases() {
  const auto of_two_levels = [](Arguments a) {
    a.context_parallel_size = 8, a.cp_comm_type = {"a2a+p2p"};
    a.hierarchical_context_parallel_sizes = {2, 4};
    return a;
  };
  const auto all_to_all = [](Arguments a) {
    a.context_parallel_size = 8, a.cp_comm_type = {"a2a"};
    return a;
  };
  const auto hybrid = [](Arguments a) {
    a.hybrid_context_parallel = a.calculate_per_token_loss = true;
    return a;
  };
  const char* sizes = "hierarchical_context_parallel_sizes";
  return {
      met(47, of_two_levels(dense()), [](Arguments&) {}),
      broken(47, sizes, of_two_levels(dense()),
             [](Arguments& a) {
               a.hierarchical_context_parallel_sizes = {2, 2};
             }),
      broken(47, sizes, of_two_levels(dense()),
             [](Arguments& a) {
               a.hierarchical_context_parallel_sizes = {0, 8};
             }),
      broken(47, sizes, of_two_levels(dense()),
             [](Arguments& a) { a.hierarchical_context_parallel_sizes.clear(); }),
      broken(47, sizes, of_two_levels(dense()),
             [](Arguments& a) {
               a.hierarchical_context_parallel_sizes = {INT64_MAX, INT64_MAX};
             }),
      met(48, all_to_all(dense()), [](Arguments&) {}),
      broken(48, "context_parallel_size", all_to_all(dense()),
             [](Arguments& a) { a.tensor_model_parallel_size = 2; }),  // 4 key/value heads
      broken(48, "context_parallel_size", all_to_all(dense()),
             [](Arguments& a) { a.group_query_attention = false, a.num_attention_heads = 12; }),
      met(48, all_to_all(dense()),
          [](Arguments& a) {
            a.tensor_model_parallel_size = 2, a.multi_latent_attention = true;
            a.group_query_attention = false;
          }),
      met(48, all_to_all(dense()), [](Arguments& a) { a.num_query_groups = 4, a.cp_comm_type = {"p2p"}; }),
      met(49, hybrid(dense()), [](Arguments&) {}),
      broken(49, "pipeline_model_parallel_size", hybrid(pipeline(2, 1)), [](Arguments&) {}),
      broken(49, "cuda_graph_impl", hybrid(dense()), [](Arguments& a) { a.cuda_graph_impl = "local"; }),
      broken(49, "use_megatron_fsdp", hybrid(dense()),
             [](Arguments& a) { a.use_megatron_fsdp = true, a.ckpt_format = "fsdp_dtensor"; }),
      broken(49, "calculate_per_token_loss", hybrid(dense()),
             [](Arguments& a) { a.calculate_per_token_loss = false; }),
  };
}

std::vector<RuleCase> data_parallel_cases() {
  const auto sharded_further = [](Arguments a) {
    a.tensor_parallel_num_weight_shards = 2;
    return a;
  };
  const auto mxfp8 = [](Arguments a) {
    a.tensor_parallel_num_weight_shards = 2, a.fp8 = "e4m3", a.fp8_recipe = "mxfp8";
    a.fp8_param = a.reuse_grad_buf_for_mxfp8_param_ag = a.use_distributed_optimizer = true;
    return a;
  };
  const char* instances = "num_distributed_optimizer_instances";
  return {
      met(50, dense(),
          [](Arguments& a) { a.context_parallel_size = 2, a.num_distributed_optimizer_instances = 64; }),
      broken(50, instances, dense(), [](Arguments& a) { a.num_distributed_optimizer_instances = 3; }),
      broken(
          50, instances, moe(),
          [](Arguments& a) { a.num_distributed_optimizer_instances = 2, a.expert_model_parallel_size = 64; }),
      met(51, pipeline(2, 1), [](Arguments& a) { a.use_tp_pp_dp_mapping = true; }),
      met(51, dense(), [](Arguments& a) { a.use_tp_pp_dp_mapping = true, a.context_parallel_size = 2; }),
      broken(51, "use_tp_pp_dp_mapping", pipeline(2, 1),
             [](Arguments& a) { a.use_tp_pp_dp_mapping = true, a.context_parallel_size = 2; }),
      met(55, sharded_further(dense()), [](Arguments& a) { a.ckpt_format = "torch"; }),
      broken(55, "ckpt_format", sharded_further(dense()), [](Arguments& a) { a.ckpt_format = "zarr"; }),
      broken(55, "ddp_average_in_collective", sharded_further(dense()),
             [](Arguments& a) { a.ddp_average_in_collective = true; }),
      broken(55, instances, sharded_further(dense()),
             [](Arguments& a) { a.num_distributed_optimizer_instances = 2; }),
      met(55, mxfp8(dense()), [](Arguments&) {}),
      broken(55, "fp8_param", mxfp8(dense()), [](Arguments& a) { a.fp8_param = false; }),
      broken(55, "reuse_grad_buf_for_mxfp8_param_ag", mxfp8(dense()),
             [](Arguments& a) { a.reuse_grad_buf_for_mxfp8_param_ag = false; }),
      met(55, sharded_further(dense()), [](Arguments& a) { a.fp4 = "e2m1", a.fp4_param = true; }),
      broken(55, "fp4_param", sharded_further(dense()), [](Arguments& a) { a.fp4 = "e2m1"; }),
      broken(55, "ckpt_format", moe(),
             [](Arguments& a) { a.expert_tensor_parallel_num_weight_shards = 2, a.ckpt_format = "zarr"; }),
  };
}

}  // namespace

std::vector<RuleCase> grid_cases() {
  std::vector<RuleCase> all;
  for (const auto& cases : {dense_grid_cases(), head_cases(), token_cases(), batch_cases(),
                            context_parallel_cases(), data_parallel_cases()})
    all.insert(all.end(), cases.begin(), cases.end());
  return all;
}

namespace {

TEST(GridRules, JustMetAndJustBroken) { expect_cases(grid_cases()); }

TEST(GridRules, TheSameIsNotSaidTwice) {
  EXPECT_EQ(check_rules(pipeline(3, 1)).front().rule, 1);
  Arguments a = pipeline(3, 1);
  a.num_layers = 63;
  EXPECT_EQ(broken_rules(a), std::vector<int>{1});  // and not rule 2, of the experts that there are not
}

}  // namespace
}  // namespace stepcast::rule_test
