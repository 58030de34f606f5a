// What each kind of layer saves, and what each recompute module leaves, worked out by hand. Bytes per token.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "memory/activations.h"
#include "unit/memory/fixtures.h"

namespace stepcast::memory_test {
namespace {

constexpr double kTokens = 4096;

Scenario dense() { return scenario(llama70b(), 1); }
Scenario mixtral_ep8() { return scenario(mixtral(), 8, with_experts(layout(1, 1, 1), 8)); }
Scenario deepseek() { return scenario(deepseek_v3(), 64, with_experts(layout(1, 1, 1), 64)); }

double kept(Scenario s, bool moe, const std::vector<std::string>& modules) {
  if (!modules.empty()) s.recompute = {Granularity::kSelective, modules, {}};
  return Activations(s, megatron_stack()).kept(moe, false) / kTokens;
}

struct Row {
  std::vector<std::string> modules;
  double bytes;
};

// h 8192, 64 heads of 128, 8 KV heads, f 28672. Norms 4 x 2 h = 65536; q, k, v 2 (64 + 16) 128 = 20480;
// output 16384, log-sum-exp 256; FFN 6 f = 172032.
TEST(Layer, GqaWithADenseFfn) {
  const double attention = 20480 + 16384, lse = 256, ffn = 172032, norms = 65536, norm = 16384;
  for (const Row& row :
       std::vector<Row>{{{}, norms + attention + lse + ffn},
                        {{"core_attn"}, norms + attention + ffn},
                        {{"layernorm"}, norms - 2 * norm + attention + lse + ffn},
                        {{"mlp"}, norms - norm + attention + lse},
                        {{"mla_up_proj", "moe_act", "moe", "shared_experts"}, norms + attention + lse + ffn},
                        {{"core_attn", "layernorm", "mlp"}, 2 * norm + attention}})
    EXPECT_DOUBLE_EQ(kept(dense(), false, row.modules), row.bytes) << row.bytes;
}

// h 6144, 48 heads, 8 KV heads, 2 experts a token of f 16384. Norms 4 x 12288; q, k, v 2 (48 + 16) 128 =
// 16384; output 12288, log-sum-exp 192; router 9 x 8; expert input 2 x 2 x 6144 = 24576, FC1 2 x 2 x 2 x 16384
// = 131072, activation 65536, probabilities 8.
TEST(Layer, GqaWithExperts) {
  const double attention = 16384 + 12288, lse = 192, norm = 12288;
  const double moe = 72 + 24576 + 131072 + 65536 + 8;
  for (const Row& row : std::vector<Row>{{{}, 4 * norm + attention + lse + moe},
                                         {{"core_attn"}, 4 * norm + attention + moe},
                                         {{"moe_act"}, 4 * norm + attention + lse + moe - 65536},
                                         {{"layernorm"}, 2 * norm + attention + lse + moe},
                                         {{"moe"}, 4 * norm + attention + lse},
                                         {{"moe", "layernorm"}, 2 * norm + attention + lse},
                                         {{"mlp", "shared_experts"}, 4 * norm + attention + lse + moe}})
    EXPECT_DOUBLE_EQ(kept(mixtral_ep8(), true, row.modules), row.bytes) << row.bytes;
}

// h 7168; latents 4 x 1536 + 2 (512 + 64) + 2 x 512 = 8320; q, k, v 2 x 128 x 512 = 131072; output 32768;
// log-sum-exp 512. All that can be recomputed is: norm inputs, latents and the attention's output stay.
TEST(Layer, MlaWithSharedExperts) {
  const double norm = 14336, latents = 8320, output = 32768;
  EXPECT_DOUBLE_EQ(kept(deepseek(), true, {"core_attn", "layernorm", "mla_up_proj", "moe"}),
                   2 * norm + latents + output);
  EXPECT_DOUBLE_EQ(kept(deepseek(), false, {"core_attn", "layernorm", "mla_up_proj", "mlp"}),
                   2 * norm + latents + output);
  EXPECT_DOUBLE_EQ(kept(deepseek(), true, {"mla_up_proj", "core_attn", "moe"}),
                   3 * norm + norm + latents + output);
}

struct QuantisedRow {
  Recipe recipe;
  double capability;
  double q;  // bytes of an element that a linear layer saves
};

// Inputs of linear layers: both norm outputs, both latents, the attention's output (beside the 2 bytes that
// attention keeps), expert input and both activation outputs.
TEST(Layer, QuantisedInputs) {
  const double plain = 2 * 2 * 7168 + 2 * (1536 + 512 + 64) + 2 * 128 * 512 + 2 * 128 * 128 + 4 * 128 +
                       4 * 8 * 2048 + 9 * 256 + 4 * 8 + 4 * 2048;
  const double linear = 2 * 7168 + 1536 + 512 + 8 * 7168 + 8 * 2048 + 2048;
  for (const QuantisedRow& row : {QuantisedRow{Recipe::kBf16, 9, 2},
                                  {Recipe::kFp8Tensor, 9, 1},
                                  {Recipe::kFp8Tensor, 10, 1},
                                  {Recipe::kFp8Block, 9, 1 + 4.0 / 128},
                                  {Recipe::kFp8Block, 10, 1 + 1.0 / 32},
                                  {Recipe::kMxfp8, 10, 1 + 1.0 / 32},
                                  {Recipe::kNvfp4, 10, 0.5625},
                                  {Recipe::kNvfp4Weights, 9, 2}}) {
    Scenario s = deepseek();
    s.precision.recipe = row.recipe;
    s.cluster.gpu.compute_capability = row.capability;
    const double copy = row.q < 2 ? row.q * 128 * 128 : 0;
    EXPECT_NEAR(kept(s, true, {}), plain + row.q * linear + copy, 1e-6) << row.q;
  }
}

// The checkpoint of the MoE part keeps its input as it came, in two bytes.
TEST(Layer, RecomputedExpertsKeepTheirInputUnquantised) {
  Scenario s = deepseek();
  s.precision.recipe = Recipe::kFp8Tensor;
  const double quantised = 7168, plain = 2 * 7168;
  EXPECT_DOUBLE_EQ(kept(s, true, {"moe"}) - kept(s, true, {"moe", "layernorm"}), quantised + plain);
}

// Embedding 2 h; head: final norm's input and output; MTP: input and output of three norms, and its layer.
TEST(Layer, EndsOfTheModel) {
  const Scenario s = deepseek();
  const Activations activations(s, megatron_stack());
  Stage stage;
  EXPECT_EQ(activations.stage(stage), 0);
  stage.embedding = true;
  EXPECT_DOUBLE_EQ(activations.stage(stage), kTokens * 2 * 7168);
  stage.embedding = false;
  stage.head = true;
  EXPECT_DOUBLE_EQ(activations.stage(stage), kTokens * 4 * 7168);
  stage.head = false;
  stage.mtp = 1;
  EXPECT_DOUBLE_EQ(activations.stage(stage), activations.kept(true, false) + kTokens * 12 * 7168);
}

// With dropout (GPT-3) the embedding's mask stays too: 2 h + h.
TEST(Layer, EmbeddingWithDropout) {
  Scenario s = scenario(gpt175b(), 8, layout(8, 1, 1), 2048);
  s.kernels.attention = AttentionKernel::kUnfused;
  Stage stage;
  stage.embedding = true;
  EXPECT_DOUBLE_EQ(Activations(s, megatron_stack()).stage(stage), 2048.0 * 3 * 12288 / 8);
}

// FP32 logits of DeepSeek-V3 at 4096 tokens: 2,118,123,520 bytes; with BF16 logits and gradient 8 bytes each.
TEST(Layer, HeadWithFp32Logits) {
  const Scenario s = deepseek();
  Stage head;
  head.head = true;
  EXPECT_DOUBLE_EQ(Activations(s, megatron_stack(4)).loss_peak(head), 2118123520);
  EXPECT_DOUBLE_EQ(Activations(s, megatron_stack(8)).loss_peak(head), 2.0 * 2118123520);
}

}  // namespace
}  // namespace stepcast::memory_test
