// Rules of the optimizer, precision, recompute, offload and CUDA connections: each just met and just broken.
#include <gtest/gtest.h>

#include "support/rule_cases.h"

namespace stepcast::rule_test {
namespace {

using Arguments = MegatronArguments;

const auto as_is = [](Arguments&) {};

std::vector<RuleCase> gather_cases() {
  const auto sharded = [](Arguments a) {
    a.use_distributed_optimizer = a.overlap_grad_reduce = a.overlap_param_gather = true;
    return a;
  };
  const auto with_step = [&](Arguments a) {
    a = sharded(std::move(a));
    a.overlap_param_gather_with_optimizer_step = true, a.ckpt_format = "torch";
    return a;
  };
  const char* step = "overlap_param_gather_with_optimizer_step";
  return {
      met(20, sharded(dense()), as_is),
      met(20, dense(), [](Arguments& a) { a.overlap_grad_reduce = true; }),
      broken(20, "overlap_param_gather", sharded(dense()),
             [](Arguments& a) { a.overlap_grad_reduce = false; }),
      broken(20, "overlap_param_gather", sharded(dense()),
             [](Arguments& a) { a.use_distributed_optimizer = false; }),
      met(20, sharded(dense()),
          [](Arguments& a) { a.use_distributed_optimizer = false, a.optimizer = "dist_muon"; }),
      met(21, with_step(pipeline(4, 2)), as_is),
      broken(21, step, with_step(pipeline(4, 1)), as_is),
      broken(21, step, with_step(pipeline(4, 2)), [](Arguments& a) { a.overlap_param_gather = false; }),
      broken(21, step, with_step(pipeline(4, 2)), [](Arguments& a) { a.ckpt_format = "torch_dist"; }),
      broken(21, step, with_step(pipeline(4, 2)),
             [](Arguments& a) { a.use_distributed_optimizer = false, a.optimizer = "dist_muon"; }),
  };
}

std::vector<RuleCase> recompute_cases() {
  const auto full = [](Arguments a) {
    a.recompute_granularity = "full", a.recompute_method = "uniform", a.recompute_num_layers = 1;
    return a;
  };
  const auto selective = [](const std::vector<std::string>& modules) {
    Arguments a = moe();
    a.recompute_granularity = "selective", a.recompute_modules = modules;
    return a;
  };
  const auto delayed = [](Arguments& a) { a.fp8 = "hybrid"; };
  const char* distributed = "distribute_saved_activations";
  const auto spread = [&](Arguments a) {
    a = full(std::move(a));
    a.distribute_saved_activations = true, a.tensor_model_parallel_size = 2;
    return a;
  };
  return {
      met(38, full(dense()), as_is),
      met(38, full(dense()), [](Arguments& a) { a.recompute_method = "block"; }),
      broken(38, "recompute_method", full(dense()), [](Arguments& a) { a.recompute_method = "all"; }),
      broken(38, "recompute_method", full(dense()), [](Arguments& a) { a.recompute_method.clear(); }),
      broken(38, "recompute_num_layers", full(dense()), [](Arguments& a) { a.recompute_num_layers.reset(); }),
      broken(38, "recompute_granularity", full(dense()),
             [](Arguments& a) { a.recompute_granularity = "half"; }),
      met(38, selective({}), as_is),
      met(38, selective({"core_attn", "moe_act", "layernorm", "mlp", "shared_experts", "mhc"}), as_is),
      broken(38, "recompute_method", selective({}), [](Arguments& a) { a.recompute_method = "block"; }),
      broken(38, "recompute_num_layers", selective({}), [](Arguments& a) { a.recompute_num_layers = 1; }),
      broken(38, "recompute_modules", selective({"attention"}), as_is),
      broken(38, "recompute_modules", selective({"moe_act"}),
             [](Arguments& a) { a.moe_grouped_gemm = false; }),
      broken(38, "recompute_modules", selective({"mla_up_proj"}), as_is),
      met(38, selective({"mla_up_proj"}),
          [](Arguments& a) { a.multi_latent_attention = true, a.group_query_attention = false; }),
      broken(38, "recompute_modules", selective({"layernorm"}), delayed),
      broken(38, "recompute_modules", selective({"moe_act"}), delayed),
      met(38, selective({"moe_act"}), [](Arguments& a) { a.fp8 = "e4m3", a.fp8_recipe = "blockwise"; }),
      met(39, spread(dense()), as_is),
      broken(39, distributed, spread(dense()), [](Arguments& a) { a.tensor_model_parallel_size = 1; }),
      broken(39, distributed, spread(dense()), [](Arguments& a) { a.sequence_parallel = true; }),
      broken(39, distributed, spread(dense()),
             [](Arguments& a) {
               a.recompute_granularity.clear(), a.recompute_method.clear(), a.recompute_num_layers.reset();
             }),
  };
}

std::vector<RuleCase> offload_cases() {
  const auto fine = [](const std::vector<std::string>& modules) {
    Arguments a = moe();
    a.fine_grained_activation_offloading = true, a.offload_modules = modules;
    return a;
  };
  const auto one_layer = [](Arguments& a) { a.cpu_offloading_num_layers = 1; };
  const char* layers = "cpu_offloading_num_layers";
  return {
      met(40, dense(), [](Arguments& a) { a.cpu_offloading_num_layers = 63; }),
      broken(40, layers, dense(), [](Arguments& a) { a.cpu_offloading_num_layers = 64; }),
      broken(40, layers, dense(), [](Arguments& a) { a.cpu_offloading_num_layers = -1; }),
      broken(40, layers, pipeline(2, 1), one_layer),
      broken(40, layers, dense(),
             [](Arguments& a) { a.cpu_offloading_num_layers = 1, a.recompute_granularity = "selective"; }),
      met(40, fine({"core_attn", "attn_proj", "expert_fc1", "moe_act", "attn_norm", "qkv_linear"}), as_is),
      broken(40, "fine_grained_activation_offloading", fine({"core_attn"}), one_layer),
      broken(40, "offload_modules", fine({"attention"}), as_is),
      broken(40, "offload_modules", fine({"attn_proj"}), as_is),
      broken(40, "offload_modules", fine({"expert_fc1"}),
             [](Arguments& a) { a.recompute_granularity = "selective", a.recompute_modules = {"moe"}; }),
      met(43, dense(),
          [](Arguments& a) { a.optimizer_cpu_offload = a.use_precision_aware_optimizer = true; }),
      broken(43, "optimizer_cpu_offload", dense(), [](Arguments& a) { a.optimizer_cpu_offload = true; }),
      broken(43, "fp8_param", dense(),
             [](Arguments& a) {
               a.optimizer_cpu_offload = a.use_precision_aware_optimizer = a.use_distributed_optimizer = true;
               a.fp8 = "e4m3", a.fp8_recipe = "blockwise", a.fp8_param = true;
             }),
      met(43, dense(),
          [](Arguments& a) {
            a.optimizer_cpu_offload = a.use_precision_aware_optimizer = a.use_distributed_optimizer = true;
            a.fp8 = "e4m3", a.fp8_param = true;
          }),
  };
}

std::vector<RuleCase> precision_cases() {
  const auto mla = [](Arguments a) {
    a.multi_latent_attention = true, a.group_query_attention = false;
    return a;
  };
  const auto ends_in_bf16 = [](Arguments a) {
    a.fp8 = "e4m3", a.fp8_recipe = "mxfp8", a.first_last_layers_bf16 = true;
    return a;
  };
  return {
      met(41, mla(dense()), as_is),
      broken(41, "group_query_attention", mla(dense()), [](Arguments& a) { a.group_query_attention = true; }),
      broken(41, "attention_output_gate", mla(dense()), [](Arguments& a) { a.attention_output_gate = true; }),
      met(42, dense(), [](Arguments& a) { a.fp8 = "e4m3"; }),
      met(42, dense(), [](Arguments& a) { a.fp4 = "e2m1", a.fp4_param = true; }),
      broken(42, "fp4", dense(), [](Arguments& a) { a.fp8 = "e4m3", a.fp4 = "e2m1"; }),
      broken(42, "fp8_param", dense(),
             [](Arguments& a) { a.fp8_param = a.use_distributed_optimizer = true; }),
      broken(42, "fp8_param", dense(), [](Arguments& a) { a.fp8 = "e4m3", a.fp8_param = true; }),
      met(42, dense(),
          [](Arguments& a) { a.fp8 = "e4m3", a.fp8_param = a.use_distributed_optimizer = true; }),
      broken(42, "fp4_param", dense(), [](Arguments& a) { a.fp4_param = true; }),
      met(42, ends_in_bf16(pipeline(8, 1)),
          [](Arguments& a) { a.num_layers_at_start_in_bf16 = 8, a.num_layers_at_end_in_bf16 = 0; }),
      broken(42, "num_layers_at_start_in_bf16", ends_in_bf16(pipeline(8, 1)),
             [](Arguments& a) { a.num_layers_at_start_in_bf16 = 9; }),
      broken(42, "num_layers_at_end_in_bf16", ends_in_bf16(pipeline(8, 1)),
             [](Arguments& a) { a.num_layers_at_end_in_bf16 = -1; }),
      broken(42, "first_last_layers_bf16", ends_in_bf16(dense()),
             [](Arguments& a) { a.fp8_recipe = "delayed"; }),
      met(102, dense(), [](Arguments& a) { a.onebit_adam = true; }),
      broken(102, "zero_stage", dense(), [](Arguments& a) { a.onebit_adam = true, a.zero_stage = 1; }),
  };
}

std::vector<RuleCase> fsdp_cases() {
  const auto fsdp2 = [](Arguments a) {
    a.use_torch_fsdp2 = a.untie_embeddings_and_output_weights = true;
    a.gradient_accumulation_fusion = false, a.cuda_device_max_connections = 8;
    return a;
  };
  const auto megatron_fsdp = [](Arguments a) {
    a.use_megatron_fsdp = a.use_distributed_optimizer = true;
    a.ckpt_format = "fsdp_dtensor", a.cuda_device_max_connections = 8;
    return a;
  };
  const char* connections = "cuda_device_max_connections";
  return {
      met(44, fsdp2(dense()), as_is),
      met(44, fsdp2(dense()), [](Arguments& a) { a.cuda_device_max_connections.reset(); }),
      broken(44, connections, fsdp2(dense()), [](Arguments& a) { a.cuda_device_max_connections = 1; }),
      broken(44, "pipeline_model_parallel_size", fsdp2(pipeline(2, 1)), as_is),
      broken(44, "expert_model_parallel_size", fsdp2(moe()),
             [](Arguments& a) { a.expert_model_parallel_size = 2; }),
      broken(44, "use_distributed_optimizer", fsdp2(dense()),
             [](Arguments& a) { a.use_distributed_optimizer = true; }),
      broken(44, "gradient_accumulation_fusion", fsdp2(dense()),
             [](Arguments& a) { a.gradient_accumulation_fusion = true; }),
      broken(44, "untie_embeddings_and_output_weights", fsdp2(dense()),
             [](Arguments& a) { a.untie_embeddings_and_output_weights = false; }),
      broken(44, "ckpt_format", fsdp2(dense()), [](Arguments& a) { a.ckpt_format = "torch"; }),
      met(44, fsdp2(dense()), [](Arguments& a) { a.ckpt_format = "torch_dcp"; }),
      met(45, megatron_fsdp(dense()), as_is),
      broken(45, "optimizer", megatron_fsdp(dense()), [](Arguments& a) { a.optimizer = "muon"; }),
      broken(45, "ckpt_format", megatron_fsdp(dense()), [](Arguments& a) { a.ckpt_format = "torch_dist"; }),
      broken(45, connections, megatron_fsdp(dense()),
             [](Arguments& a) { a.cuda_device_max_connections = 1; }),
      warned(45, "use_distributed_optimizer", megatron_fsdp(dense()),
             [](Arguments& a) { a.use_distributed_optimizer = false; }),
  };
}

std::vector<RuleCase> connection_cases() {
  const auto hopper = [](std::optional<std::int64_t> connections) {
    Arguments a = dense();
    a.compute_capability = 9.0, a.tensor_model_parallel_size = 2;
    a.cuda_device_max_connections = connections;
    return a;
  };
  const auto overlapped = [](std::int64_t connections) {
    Arguments a = moe();
    a.compute_capability = 9.0, a.tensor_model_parallel_size = 2, a.sequence_parallel = true;
    a.expert_model_parallel_size = 8, a.overlap_moe_expert_parallel_comm = true;
    a.cuda_device_max_connections = connections;
    return a;
  };
  const auto ucc = [](std::optional<std::int64_t> connections) {
    Arguments a = pipeline(2, 1);
    a.pipeline_model_parallel_comm_backend = "ucc", a.cuda_device_max_connections = connections;
    return a;
  };
  const char* connections = "cuda_device_max_connections";
  return {
      met(46, hopper(1), as_is),
      met(46, hopper({}), as_is),
      broken(46, connections, hopper(8), as_is),
      broken(46, connections, hopper(8),
             [](Arguments& a) { a.tensor_model_parallel_size = 1, a.context_parallel_size = 2; }),
      met(46, hopper(8), [](Arguments& a) { a.tensor_model_parallel_size = 1; }),
      met(46, hopper(8), [](Arguments& a) { a.compute_capability = 10.0; }),
      met(46, hopper(8), [](Arguments& a) { a.compute_capability = 0; }),
      met(46, hopper(8),
          [](Arguments& a) {
            a.use_megatron_fsdp = a.use_distributed_optimizer = true, a.ckpt_format = "fsdp_dtensor";
          }),
      met(46, overlapped(32), as_is),
      warned(46, connections, overlapped(1), as_is),
      met(56, ucc(2), as_is),
      met(56, ucc({}), as_is),
      broken(56, connections, ucc(1), as_is),
  };
}

}  // namespace

std::vector<RuleCase> training_cases() {
  std::vector<RuleCase> all;
  for (const auto& cases : {gather_cases(), recompute_cases(), offload_cases(), precision_cases(),
                            fsdp_cases(), connection_cases()})
    all.insert(all.end(), cases.begin(), cases.end());
  return all;
}

namespace {

TEST(TrainingRules, JustMetAndJustBroken) { expect_cases(training_cases()); }

TEST(TrainingRules, RecomputesWhatIsListedUnderSelective) {
  Arguments a = dense();
  EXPECT_FALSE(a.recomputes("core_attn"));
  a.recompute_granularity = "selective";
  EXPECT_TRUE(a.recomputes("core_attn"));
  EXPECT_FALSE(a.recomputes("mlp"));
  a.recompute_modules = {"mlp"};
  EXPECT_TRUE(a.recomputes("mlp"));
  EXPECT_FALSE(a.recomputes("core_attn"));
  a.recompute_granularity = "full";
  EXPECT_FALSE(a.recomputes("mlp"));
}

}  // namespace
}  // namespace stepcast::rule_test
