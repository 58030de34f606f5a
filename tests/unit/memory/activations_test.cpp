#include "memory/activations.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/units.h"
#include "unit/memory/fixtures.h"

namespace stepcast::memory_test {
namespace {

constexpr double kTokens = 4096;

double kept(Scenario s, bool moe, const std::vector<std::string>& modules) {
  s.recompute = {Granularity::kSelective, modules, {}};
  return Activations(s, megatron_stack()).kept(moe, false);
}

double everything(const Scenario& s, bool moe) { return Activations(s, megatron_stack()).everything(moe); }

// With SP all of a GQA layer divides by t; without it 8 h of norm inputs and outputs do not.
TEST(Activations, TensorAndSequenceParallel) {
  const double h = 8192, rest = 274688 - 8 * h;
  Scenario s = scenario(llama70b(), 8, layout(8, 1, 1));
  EXPECT_DOUBLE_EQ(everything(s, false), kTokens * 274688 / 8);
  s.layout.sequence_parallel = false;
  EXPECT_DOUBLE_EQ(everything(s, false), kTokens * (8 * h + rest / 8));
}

// Context parallelism divides the tokens. With t > g each rank holds one K and one V head: 2 (64 + 2 16) 128
// / 16.
TEST(Activations, ContextParallelAndFewKvHeads) {
  EXPECT_DOUBLE_EQ(everything(scenario(llama70b(), 4, layout(1, 4, 1)), false), kTokens / 4 * 274688);
  const double more_kv = 2 * 2 * (16 - 8) * 128.0;
  EXPECT_DOUBLE_EQ(everything(scenario(llama70b(), 16, layout(16, 1, 1)), false),
                   kTokens * (274688 + more_kv) / 16);
}

// Two unfused norms save 6 h bytes each more.
TEST(Activations, UnfusedNorms) {
  Scenario s = scenario(llama70b(), 8, layout(8, 1, 1));
  const double fused = everything(s, false);
  s.kernels.fused_norm = false;
  EXPECT_DOUBLE_EQ(everything(s, false) - fused, kTokens * 12 * 8192 / 8);
}

// A stack with unfused element-wise kernels saves the activated gate too: 2 f.
TEST(Activations, UnfusedSwiglu) {
  const Scenario s = scenario(llama70b(), 1);
  Stack unfused = megatron_stack();
  unfused.fused_activation = false;
  EXPECT_DOUBLE_EQ(Activations(s, unfused).everything(false) - everything(s, false), kTokens * 2 * 28672);
}

// Without dropout (a Llama) unfused attention stores the softmax only, in place of the log-sum-exp.
TEST(Activations, UnfusedAttentionWithoutDropout) {
  Scenario s = scenario(llama70b(), 1);
  const double flash = everything(s, false);
  s.kernels.attention = AttentionKernel::kUnfused;
  EXPECT_DOUBLE_EQ(everything(s, false) - flash, kTokens * (2 * 64.0 * 4096 - 4 * 64));
}

// FP8 halves what linear layers save: both norm outputs, the FFN input; and adds a copy of the attention
// output.
TEST(Activations, QuantisedInputs) {
  Scenario s = scenario(llama70b(), 1);
  const double bf16 = everything(s, false);
  s.precision.recipe = Recipe::kFp8Tensor;
  EXPECT_DOUBLE_EQ(bf16 - everything(s, false), kTokens * (2 * 8192 + 28672 - 8192.0));
  EXPECT_DOUBLE_EQ(saved_input_bytes(Recipe::kMxfp8, 10), 1 + 1.0 / 32);
  EXPECT_DOUBLE_EQ(saved_input_bytes(Recipe::kFp8Block, 9), 1 + 4.0 / 128);
  EXPECT_DOUBLE_EQ(saved_input_bytes(Recipe::kNvfp4, 10), 0.5625);
}

// DeepSeek-V3 per token: expert input 2 x 8 x 7168, FC1 output 65,536, activation output 32,768; MLA with q
// 1536, kv 512
// + 64 latents, 128 heads of 192 + 192 + 128; shared expert 6 x 2048; router 9 x 256; probabilities 4 x 8.
TEST(Activations, DeepSeekV3Layer) {
  const Scenario s = scenario(deepseek_v3(), 64, with_experts(layout(1, 1, 1), 64));
  const double routed = 114688 + 65536 + 32768;
  const double mla = 4 * 1536 + 2 * (512 + 64) + 2 * 512 + 128 * (2 * (192 + 192 + 128) + 2 * 128 + 4);
  EXPECT_DOUBLE_EQ(everything(s, true), kTokens * (8 * 7168 + mla + routed + 6 * 2048 + 9 * 256 + 4 * 8));
  EXPECT_DOUBLE_EQ(everything(s, false), kTokens * (8 * 7168 + mla + 6 * 18432));
}

// Routed tokens are T / t a rank and not divided again; with ETP 2 each rank holds twice the input, half the
// width.
TEST(Activations, ExpertsUnderTensorParallel) {
  const auto expert_input = [](const Scenario& s) {
    const Activations activations(s, megatron_stack());
    for (const SavedTensor& tensor : activations.layer(true).tensors)
      if (tensor.name == "expert input") return tensor.bytes;
    return 0.0;
  };
  EXPECT_DOUBLE_EQ(expert_input(scenario(deepseek_v3(), 64, with_experts(layout(2, 1, 1), 32))),
                   kTokens / 2 * 114688);
  EXPECT_DOUBLE_EQ(expert_input(scenario(deepseek_v3(), 64, with_experts(layout(2, 1, 1), 32, 2))),
                   kTokens * 114688);
}

struct ModuleRow {
  const char* module;
  bool moe;
  double dropped;  // bytes per token
};

TEST(Activations, RecomputedModulesDropTheirTensors) {
  const Scenario s = scenario(deepseek_v3(), 64, with_experts(layout(1, 1, 1), 64));
  const double routed = 114688 + 65536 + 32768 + 4 * 8, shared = 6 * 2048, router = 9 * 256;
  for (const ModuleRow& row : {ModuleRow{"core_attn", true, 4 * 128},
                               {"layernorm", true, 4 * 7168},
                               {"mla_up_proj", true, 2 * 128 * (192 + 192 + 128)},
                               {"moe_act", true, 32768},
                               {"shared_experts", true, shared},
                               {"moe", true, routed + shared + router},
                               {"mlp", false, 6 * 18432 + 2 * 7168},
                               {"mlp", true, 0},
                               {"moe", false, 0}})
    EXPECT_DOUBLE_EQ(everything(s, row.moe) - kept(s, row.moe, {row.module}), kTokens * row.dropped)
        << row.module;
}

TEST(Activations, ModulesDoNotCountTwice) {
  const Scenario s = scenario(deepseek_v3(), 64, with_experts(layout(1, 1, 1), 64));
  EXPECT_DOUBLE_EQ(kept(s, true, {"moe", "moe_act"}), kept(s, true, {"moe"}));
  EXPECT_DOUBLE_EQ(kept(s, true, {"moe", "shared_experts"}), kept(s, true, {"moe"}));
}

// arXiv 2603.07685, table 4, the scenario of the states test, rank 2 with 15 chunks of 4 layers alive. GiB.
TEST(Activations, DeepSeekV3SavingsAsPublished) {
  Scenario s = scenario(deepseek_v3(), 256, with_experts(layout(1, 1, 4, 4), 64));
  s.cluster.gpu.compute_capability = 10;
  const double layers = 60;
  EXPECT_NEAR(layers * (everything(s, true) - kept(s, true, {"mla_up_proj"})) / kGiB, 30.4, 0.02 * 30.4);
  const double all = everything(s, true);
  s.precision.recipe = Recipe::kMxfp8;
  EXPECT_NEAR(layers * (all - everything(s, true)) / kGiB, 16, 1.5);
  EXPECT_NEAR(layers * (everything(s, true) - kept(s, true, {"moe_act"})) / kGiB, 3.8, 0.1 * 3.8);
}

// Full: 2 h a layer. Block: the first N layers of a stage so, the others whole.
TEST(Activations, FullAndBlockRecompute) {
  Scenario s = scenario(llama70b(), 1);
  Stage stage;
  stage.first_layer = 8;
  stage.layers = 5;
  const double input = kTokens * 2 * 8192, whole = kTokens * 274688;
  s.recompute.granularity = Granularity::kFull;
  EXPECT_DOUBLE_EQ(Activations(s, megatron_stack()).stage(stage), 5 * input);
  s.recompute.layers = 2;
  EXPECT_DOUBLE_EQ(Activations(s, megatron_stack()).stage(stage), 2 * input + 3 * whole);
  s.recompute.layers = 9;
  EXPECT_DOUBLE_EQ(Activations(s, megatron_stack()).stage(stage), 5 * input);
}

// While a recomputed layer's backward runs, the layer is there once in full.
TEST(Activations, RecomputedLayerLivesOnce) {
  Scenario s = scenario(llama70b(), 1);
  Stage stage;
  stage.layers = 4;
  const double without = Activations(s, megatron_stack()).backward(stage);
  s.recompute.granularity = Granularity::kFull;
  const double with = Activations(s, megatron_stack()).backward(stage);
  EXPECT_DOUBLE_EQ(with - without, kTokens * (274688 - 2 * 8192));
}

// V' / t rows; an MTP depth keeps fp32 logits of its own. Without a vocabulary-parallel loss every rank has
// all rows.
TEST(Activations, Logits) {
  const Scenario s = scenario(llama70b(), 8, layout(8, 1, 1));
  Stage head;
  head.head = true;
  const double rows = 129024.0 / 8;
  const Activations activations(s, megatron_stack(10));
  EXPECT_DOUBLE_EQ(activations.loss_peak(head), kTokens * rows * 10);
  EXPECT_DOUBLE_EQ(activations.saved_logits(head), kTokens * rows * 4);
  head.mtp = 1;
  EXPECT_DOUBLE_EQ(activations.loss_peak(head), kTokens * rows * 14);
  head = {};
  EXPECT_EQ(activations.loss_peak(head), 0);
  Stack gathers = megatron_stack(20);
  gathers.vocab_parallel_loss = false;
  head.head = true;
  EXPECT_DOUBLE_EQ(Activations(s, gathers).loss_peak(head), kTokens * rows * 8 * 20);
}

TEST(Activations, SelectionByOpKeepsEverySecondProduct) {
  Scenario s = scenario(llama70b(), 1);
  s.recompute = {Granularity::kSelective, {"core_attn"}, {}};
  Stack stack = megatron_stack();
  stack.selective_by_op = true;
  // input, q, attention output, v, gate, down projection's output; log-sum-exp
  const double per_token = 2 * (8192 + 8192 + 8192 + 1024 + 28672 + 8192) + 4 * 64;
  EXPECT_DOUBLE_EQ(Activations(s, stack).kept(false, false), kTokens * per_token);
}

// Domain 7.1: sorted Zipf placement, E 256, a 0.2: EP8 1.49, EP64 2.09.
TEST(Imbalance, OfZipfRouting) {
  Scenario s = scenario(deepseek_v3(), 64, with_experts(layout(1, 1, 1), 8));
  EXPECT_EQ(expert_imbalance(s), 1);
  s.moe.routing = {RoutingKind::kZipf, 0.2, 0, 1, ""};
  EXPECT_NEAR(expert_imbalance(s), 1.49, 0.005);
  s.layout.ep = 64;
  EXPECT_NEAR(expert_imbalance(s), 2.09, 0.005);
  s.moe.capacity_factor = 1.25;
  EXPECT_EQ(expert_imbalance(s), 1.25);
  s.moe.routing = {};
  EXPECT_EQ(expert_imbalance(s), 1);
  s.moe.pad_to_capacity = true;
  EXPECT_EQ(expert_imbalance(s), 1.25);
}

// However skewed, an expert receives at most every token: E / k times the mean.
TEST(Imbalance, IsBoundedByTopK) {
  Scenario s = scenario(deepseek_v3(), 256, with_experts(layout(1, 1, 1), 256));
  s.moe.routing = {RoutingKind::kZipf, 20, 0, 1, ""};
  EXPECT_DOUBLE_EQ(expert_imbalance(s), 256.0 / 8);
}

}  // namespace
}  // namespace stepcast::memory_test
