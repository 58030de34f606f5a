// What goes to the host: activations, experts, optimizer.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "memory/activations.h"
#include "memory/buffers.h"
#include "memory/ledger.h"
#include "memory/states.h"
#include "unit/memory/fixtures.h"

namespace stepcast::memory_test {
namespace {

constexpr double kTokens = 4096;

Scenario deepseek(const std::vector<std::string>& modules, const std::vector<std::string>& recomputed = {}) {
  Scenario s = scenario(deepseek_v3(), 256, with_experts(layout(1, 1, 4), 64));
  s.layout.stages = "Et*15|t*16|t*16|t*14mL";
  s.offload.activations = modules;
  if (!recomputed.empty()) s.recompute = {Granularity::kSelective, recomputed, {}};
  return s;
}

Stage moe_layers(std::int64_t layers) {
  Stage stage;
  stage.first_layer = 10;
  stage.layers = layers;
  return stage;
}

double moved(const Scenario& s) {
  return Activations(s, megatron_stack()).offloaded(moe_layers(1)) / kTokens;
}

struct Row {
  std::vector<std::string> modules;
  std::vector<std::string> recomputed;
  double bytes;  // per token of a MoE layer
};

// DeepSeek-V3, bf16: h 7168; q, k, v 2 x 128 x (192 + 192 + 128); output 2 x 128 x 128; expert input 2 x 8 x
// 7168, FC1 output 4 x 8 x 2048, activation output 2 x 8 x 2048.
TEST(ActivationOffload, MovesTheInputsOfItsModules) {
  for (const Row& row : std::vector<Row>{{{"attn_norm"}, {}, 14336},
                                         {{"mlp_norm"}, {}, 14336},
                                         {{"qkv_linear"}, {}, 14336},
                                         {{"core_attn"}, {}, 131072},
                                         {{"attn_proj"}, {}, 32768},
                                         {{"expert_fc1"}, {}, 114688},
                                         {{"moe_act"}, {}, 65536},
                                         {{"fused_group_mlp"}, {}, 212992},
                                         {{"fused_group_mlp"}, {"moe_act"}, 114688 + 65536},
                                         {{"expert_fc1", "moe_act"}, {}, 114688 + 65536},
                                         {{"fused_group_mlp", "expert_fc1"}, {}, 212992},
                                         {{"core_attn"}, {"mla_up_proj"}, 0},
                                         {{"qkv_linear"}, {"layernorm"}, 0},
                                         {{"expert_fc1"}, {"moe"}, 0}}) {
    const Scenario s = deepseek(row.modules, row.recomputed);
    EXPECT_DOUBLE_EQ(moved(s), row.bytes) << row.modules[0];
    Scenario without = s;
    without.offload.activations.clear();
    const Stage stage = moe_layers(3);
    EXPECT_DOUBLE_EQ(Activations(without, megatron_stack()).stage(stage),
                     Activations(s, megatron_stack()).stage(stage) + 3 * kTokens * row.bytes);
  }
}

// 2^20 elements: 16 tokens x 8 x 7168 are fewer, 19 tokens more.
TEST(ActivationOffload, LeavesSmallTensors) {
  Scenario s = deepseek({"expert_fc1"});
  s.batch.seq_len = 16;
  EXPECT_EQ(moved(s), 0);
  s.batch.seq_len = 19;
  EXPECT_GT(moved(s), 0);
}

// Under full recompute only layer inputs are saved, and no module of the list has them.
TEST(ActivationOffload, MovesNothingOfARecomputedLayer) {
  Scenario s = deepseek({"core_attn", "expert_fc1"});
  s.recompute = {Granularity::kFull, {}, {}};
  EXPECT_EQ(moved(s), 0);
  s.recompute.layers = 1;
  EXPECT_DOUBLE_EQ(Activations(s, megatron_stack()).offloaded(moe_layers(3)),
                   2 * kTokens * (131072 + 114688));
}

// 1F1B over 4 stages: rank 1 has three micro-batches of 16 layers alive. What leaves the GPU is on the host,
// but for two groups on their way.
TEST(ActivationOffload, IsConserved) {
  const StageMemory with = report_of(deepseek({"expert_fc1"})).stages[1];
  const StageMemory without = report_of(deepseek({})).stages[1];
  const double group = kTokens * 114688;
  EXPECT_DOUBLE_EQ(with.host, 3 * 16 * group);
  EXPECT_EQ(without.host, 0);
  // the running layer's input was there anyway, once: it is one of those that moved
  EXPECT_NEAR(without.activations - with.activations, with.host - 2 * group, 1);
}

TEST(ActivationOffload, NeverAdds) {
  std::vector<std::string> modules;
  double last = report_of(deepseek({})).peak().device;
  for (const char* module : {"attn_norm", "mlp_norm", "qkv_linear", "core_attn", "attn_proj", "expert_fc1",
                             "moe_act", "fused_group_mlp"}) {
    modules.emplace_back(module);
    const double now = report_of(deepseek(modules)).peak().device;
    EXPECT_LE(now, last) << module;
    last = now;
  }
}

// 176,160,768 parameters of local experts a layer. A quarter stays; the rest comes by in two layers of bf16
// weights, and goes back as one layer of fp32 gradients.
TEST(ExpertOffload, StreamsLayerByLayer) {
  Scenario s = deepseek({});
  EXPECT_EQ(streamed_expert_bytes(s, megatron_stack()), 0);
  s.offload.resident_expert_fraction = 0.25;
  EXPECT_DOUBLE_EQ(streamed_expert_bytes(s, megatron_stack()), 0.75 * 176160768 * (2 * 2 + 4));
  s.offload.prefetch = false;
  EXPECT_DOUBLE_EQ(streamed_expert_bytes(s, megatron_stack()), 0.75 * 176160768 * (2 + 4));
  s.precision.recipe = Recipe::kFp8Tensor;  // two cached copies on Hopper
  EXPECT_DOUBLE_EQ(streamed_expert_bytes(s, megatron_stack()), 0.75 * 176160768 * (2 + 2 + 4));
}

// 16 MoE layers on rank 1 in expert DP 1: 18 bytes a parameter, three quarters of them on the host.
TEST(ExpertOffload, StatesGoToTheHost) {
  Scenario s = deepseek({});
  const StageMemory all = report_of(s).stages[1];
  s.offload.resident_expert_fraction = 0.25;
  const StageMemory some = report_of(s).stages[1];
  EXPECT_DOUBLE_EQ(some.host, 0.75 * 16 * 176160768 * 18);
  const double states = all.parameters + all.gradients + all.optimizer;
  EXPECT_NEAR(some.parameters + some.gradients + some.optimizer + some.host, states, 1);
}

// UR085: Qwen3-0.6B on one GPU: the optimizer's 12 bytes of 0.6B (tied) parameters leave the GPU, half or all.
TEST(OptimizerOffload, MovesItsFraction) {
  Scenario s = scenario(llama70b(8), 8);
  const StageMemory all = report_of(s).peak();
  for (const double fraction : {0.5, 1.0}) {
    s.offload.optimizer_fraction = fraction;
    const StageMemory some = report_of(s).peak();
    EXPECT_DOUBLE_EQ(some.host, fraction * all.optimizer);
    EXPECT_DOUBLE_EQ(all.allocated - some.allocated, some.host);
  }
}

TEST(CudaGraphs, HoldStaticBuffers) {
  for (const CudaGraphs graphs : {CudaGraphs::kLayer, CudaGraphs::kFull}) {
    Scenario s = scenario(llama70b(8), 8, layout(8, 1, 1));
    const double without = report_of(s).peak().buffers;
    s.kernels.cuda_graphs = graphs;
    EXPECT_DOUBLE_EQ(report_of(s).peak().buffers, without + 2e9);
    EXPECT_DOUBLE_EQ(cuda_graph_bytes(scenario(llama70b(8), 8), megatron_stack()), 0);
    s.layout.pp = 2;
    EXPECT_DOUBLE_EQ(cuda_graph_bytes(s, megatron_stack()), 10e9);
  }
}

}  // namespace
}  // namespace stepcast::memory_test
