#include "memory/states.h"

#include <gtest/gtest.h>

#include "base/units.h"
#include "unit/memory/fixtures.h"

namespace stepcast::memory_test {
namespace {

constexpr double kExact = 1e-12;

StateBytes of_one(const Scenario& s) {
  HeldParameters one;
  one.plain = 1;
  return state_bytes(s, one);
}

StateBytes of_one_linear(const Scenario& s) {
  HeldParameters one;
  one.linear = 1;
  return state_bytes(s, one);
}

struct StageRow {
  int stage;
  double parameters, gradients, optimizer;
};

// d = 8; bf16: weight 2, gradient 4, master and moments 12.
TEST(States, ZeroStagesOfMegatron) {
  for (const StageRow& row : {StageRow{0, 2, 4, 12}, {1, 2, 4, 1.5}, {2, 2, 0.5, 1.5}, {3, 0.25, 0.5, 1.5}}) {
    Scenario s = scenario(llama70b(), 8);
    s.sharding.zero_stage = row.stage;
    const StateBytes bytes = of_one(s);
    EXPECT_NEAR(bytes.parameters, row.parameters, kExact) << row.stage;
    EXPECT_NEAR(bytes.gradients, row.gradients, kExact) << row.stage;
    EXPECT_NEAR(bytes.optimizer, row.optimizer, kExact) << row.stage;
    EXPECT_EQ(bytes.host, 0) << row.stage;
  }
}

// FSDP keeps one sharded fp32 weight: 4 + 4 + 8 over d; DeepSpeed's fp32 gradient shard makes 16 of the 12.
TEST(States, OtherEngines) {
  Scenario s = scenario(llama70b(), 8);
  s.sharding = {3, false, Engine::kFsdp, 1};
  EXPECT_NEAR(of_one(s).parameters, 4.0 / 8, kExact);
  EXPECT_NEAR(of_one(s).on_gpu(), 16.0 / 8, kExact);
  s.sharding = {3, false, Engine::kDeepSpeed, 1};
  s.optimizer.grad_bytes = 2;
  EXPECT_NEAR(of_one(s).on_gpu(), 20.0 / 8, kExact);
}

TEST(States, Precisions) {
  Scenario s = scenario(llama70b(), 8);
  s.optimizer.grad_bytes = 2;
  EXPECT_NEAR(of_one(s).on_gpu(), 4 + 12.0 / 8, kExact);
  s.precision.recipe = Recipe::kFp16;
  EXPECT_NEAR(of_one(s).on_gpu(), 4 + 16.0 / 8, kExact);
  s.precision.recipe = Recipe::kFp32;
  s.optimizer.grad_bytes = 4;
  EXPECT_NEAR(of_one(s).on_gpu(), 8 + 8.0 / 8, kExact);
  s.precision.recipe = Recipe::kBf16;
  s.optimizer.state_bytes = 2;
  EXPECT_NEAR(of_one(s).on_gpu(), 6 + 6.0 / 8, kExact);
  s.optimizer.grad_bytes = 2;
  EXPECT_NEAR(of_one(s).on_gpu(), 4 + 6.0 / 8, kExact);
}

TEST(States, OptimizerKinds) {
  Scenario s = scenario(llama70b(), 8);
  s.optimizer.kind = OptimizerKind::kSgd;
  EXPECT_NEAR(of_one(s).optimizer, 8.0 / 8, kExact);
  s.optimizer.kind = OptimizerKind::kMuon;
  EXPECT_NEAR(of_one(s).optimizer, 12.0 / 8, kExact);
  EXPECT_NEAR(of_one_linear(s).optimizer, 8.0 / 8, kExact);
}

struct CacheRow {
  Recipe recipe;
  double capability;
  double copies;  // bytes of all cached copies of a weight
};

TEST(States, QuantisedWeightsAreCached) {
  for (const CacheRow& row : {CacheRow{Recipe::kFp8Tensor, 9, 2},
                              {Recipe::kFp8Tensor, 10, 1},
                              {Recipe::kFp8Block, 9, 2},
                              {Recipe::kFp8Block, 10, 2 * (1 + 1.0 / 32)},
                              {Recipe::kMxfp8, 10, 2 * (1 + 1.0 / 32)},
                              {Recipe::kNvfp4Weights, 9, 0.5 + 1.0 / 16},
                              {Recipe::kNvfp4, 10, 2 * (0.5 + 1.0 / 16)}}) {
    Scenario s = scenario(llama70b(), 8);
    s.precision.recipe = row.recipe;
    s.cluster.gpu.compute_capability = row.capability;
    EXPECT_NEAR(of_one_linear(s).parameters, 2 + row.copies, kExact);
    EXPECT_NEAR(of_one(s).parameters, 2, kExact);
    s.precision.fp8_params = true;
    EXPECT_NEAR(of_one_linear(s).parameters, row.copies, kExact);
    EXPECT_NEAR(of_one(s).parameters, 2, kExact);
    EXPECT_NEAR(of_one_linear(s).optimizer, 12.0 / 8, kExact);
  }
}

TEST(States, FsdpCachesNothing) {
  Scenario s = scenario(llama70b(), 8);
  s.sharding = {3, false, Engine::kFsdp, 1};
  s.precision.recipe = Recipe::kFp8Tensor;
  EXPECT_NEAR(of_one_linear(s).on_gpu(), 16.0 / 8, kExact);
}

// 64 GPUs, tp 2, cp 2, pp 2: dp 8, dense states over dp cp = 16 ranks; ep 4, etp 1: expert DP 64 / (4 x 2)
// = 8.
TEST(States, DenseAndExpertsShardOverTheirOwnGroups) {
  Scenario s = scenario(deepseek_v3(), 64, with_experts(layout(2, 2, 2), 4));
  EXPECT_EQ(sharding_ranks(s, false), 16);
  EXPECT_EQ(sharding_ranks(s, true), 8);
  s.sharding.instances = 4;
  EXPECT_EQ(sharding_ranks(s, false), 4);
  EXPECT_EQ(sharding_ranks(s, true), 2);
}

// DP 16 in 4 instances: each shards over 4 ranks; 2 + 4 + 12 / 4. Both with node scope: 8 ranks of a node over
// 4 instances.
TEST(States, InstancesOfTheDistributedOptimizer) {
  Scenario s = scenario(llama70b(), 16);
  s.sharding.instances = 4;
  EXPECT_NEAR(of_one(s).on_gpu(), 6 + 12.0 / 4, kExact);
  s.sharding.zero_stage = 3;
  EXPECT_NEAR(of_one(s).on_gpu(), 18.0 / 4, kExact);
  s.sharding.node_scope = true;
  EXPECT_NEAR(of_one(s).on_gpu(), 18.0 / 2, kExact);
}

// HSDP: FSDP within a node of 8, replicated over 4 nodes: (4 + 4 + 8) / 8.
TEST(States, HybridSharding) {
  Scenario s = scenario(llama70b(), 32);
  s.sharding = {3, true, Engine::kFsdp, 1};
  EXPECT_NEAR(of_one(s).on_gpu(), 16.0 / 8, kExact);
}

// 32 GPUs in nodes of 8, tp 2: a node holds 4 of the 16 data-parallel ranks.
TEST(States, ScopeNodeShardsWithinANode) {
  Scenario s = scenario(llama70b(), 32, layout(2, 1, 1));
  EXPECT_EQ(sharding_ranks(s, false), 16);
  s.sharding.node_scope = true;
  EXPECT_EQ(sharding_ranks(s, false), 4);
}

// One GPU holds h^2-sized parts over tp and the rest whole: norms 2 h a layer.
TEST(States, TensorParallelKeepsNormsWhole) {
  const Scenario s = scenario(llama70b(), 8, layout(8, 1, 1));
  const HeldParameters held = held_by_layer(s, 0);
  const double attention = 2.0 * 8192 * 8192 + 2.0 * 8192 * 1024;
  EXPECT_EQ(held.linear, (attention + 3.0 * 8192 * 28672) / 8);
  EXPECT_EQ(held.plain, 2 * 8192);
  EXPECT_EQ(held.experts, 0);
}

TEST(States, ExpertsDivideByEpAndEtp) {
  const Scenario s = scenario(deepseek_v3(), 64, with_experts(layout(2, 1, 1), 8, 2));
  EXPECT_EQ(held_by_layer(s, 10).experts, 256.0 * 3 * 7168 * 2048 / 16);
  EXPECT_EQ(held_by_layer(s, 0).experts, 0);
}

// Vocabulary padded to 128 tp rows: 50257 -> 50304. Two stages: the last one copies the tied table.
TEST(States, TiedEmbeddingsAreCopiedToTheLastStage) {
  const auto vocabulary = [](std::int64_t pp, std::int64_t rank) {
    const Scenario s = scenario(gpt175b(), pp, layout(1, 1, pp));
    const StageSplit split = split_of(s);
    HeldParameters held = held_by_rank(s, split, rank);
    for (std::int64_t i = 0; i < 96 / pp; ++i) held.plain -= held_by_layer(s, i).plain;
    return held.plain;
  };
  const double table = 50304.0 * 12288;
  const double positions = 2048.0 * 12288;
  const double final_norm = 2 * 12288;
  EXPECT_EQ(vocabulary(1, 0), table + positions + final_norm);
  EXPECT_EQ(vocabulary(2, 0), table + positions);
  EXPECT_EQ(vocabulary(2, 1), table + final_norm);
}

// The MTP layer on the last stage needs the table there too: a copy, beside the output matrix.
TEST(States, MtpNeedsTableAndHead) {
  Model without = deepseek_v3();
  without.mtp_layers = 0;
  const auto last = [](const Model& model) {
    Scenario s = scenario(model, 64, with_experts(layout(1, 1, 16), 4));
    s.layout.stages = model.mtp_layers > 0 ? "Et*3|(t*4|)*14t*2mL" : "Et*3|(t*4|)*14t*2L";
    return held_by_rank(s, split_of(s), 15);
  };
  const double extra = last(deepseek_v3()).total() - last(without).total();
  const double table = 129280.0 * 7168;
  const HeldParameters layer =
      held_by_layer(scenario(deepseek_v3(), 64, with_experts(layout(1, 1, 16), 4)), 60);
  EXPECT_EQ(extra, table + layer.total() + 2.0 * 7168 * 7168 + 3 * 7168);
}

// DualPipe holds two stages a rank: the parameters of both.
TEST(States, DualPipeDoublesTheParameters) {
  Layout l = layout(1, 1, 4);
  l.schedule = "dualpipe";
  const Scenario s = scenario(llama70b(), 8, l);
  Scenario plain = s;
  plain.layout.schedule = "1f1b";
  const StageSplit split = split_of(s);
  EXPECT_EQ(held_by_rank(s, split, 1).total(),
            held_by_rank(plain, split, 1).total() + held_by_rank(plain, split, 2).total());
}

TEST(States, OffloadMovesBytesToTheHost) {
  Scenario s = scenario(llama70b(), 8);
  const StateBytes all = of_one(s);
  s.offload.optimizer_fraction = 0.75;
  const StateBytes some = of_one(s);
  EXPECT_NEAR(some.optimizer, 0.25 * all.optimizer, kExact);
  EXPECT_NEAR(some.on_gpu() + some.host, all.on_gpu(), kExact);
  HeldParameters expert;
  expert.experts = 1;
  s = scenario(deepseek_v3(), 64, with_experts(layout(1, 1, 1), 64));
  const double whole = state_bytes(s, expert).on_gpu();
  s.offload.resident_expert_fraction = 0.25;
  EXPECT_NEAR(state_bytes(s, expert).on_gpu(), 0.25 * whole, kExact);
}

// arXiv 2603.07685, table 3: DeepSeek-V3 in bf16, tp 1, pp 4, vpp 4, ep 64 on 256 GPUs; an inner rank of 16
// MoE layers. Weights and gradients 36.4, optimizer 32.1 (GiB; the 12-byte optimizer fits, not bf16 moments).
TEST(States, DeepSeekV3AsPublished) {
  Scenario s = scenario(deepseek_v3(), 256, with_experts(layout(1, 1, 4, 4), 64));
  s.layout.stages = "Et*4|(t*4|)*14tmL";
  const StateBytes bytes = state_bytes(s, held_by_rank(s, split_of(s), 2));
  EXPECT_NEAR((bytes.parameters + bytes.gradients) / kGiB, 36.4, 0.01 * 36.4);
  EXPECT_NEAR(bytes.optimizer / kGiB, 32.1, 0.01 * 32.1);
}

}  // namespace
}  // namespace stepcast::memory_test
