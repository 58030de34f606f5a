#include "model/flops.h"

#include <gtest/gtest.h>

#include "unit/model/shipped_model.h"

namespace stepcast {
namespace {

using testing::model_of;
using testing::shipped_json;
using testing::shipped_model;

// FLOPs of a token forward and backward, from Megatron's num_floating_point_operations.
struct Expected {
  const char* model;
  std::int64_t mtp;
  std::int64_t seq_len;
  double flops;
};

constexpr Expected kExpected[] = {
    {"deepseek-v3", 0, 4096, 249812054016.0},     {"kimi-k2", 0, 4096, 204477394944.0},
    {"qwen3-30b-a3b", 0, 4096, 23006281728.0},    {"qwen3-235b-a22b", 0, 4096, 148034813952.0},
    {"llama-3.1-405b", 0, 8192, 2523955986432.0}, {"llama-3-70b", 0, 8192, 449222541312.0},
    {"llama-3-8b", 0, 8192, 51470401536.0},       {"mixtral-8x7b", 0, 4096, 79706456064.0},
};

TEST(Flops, AreMegatrons) {
  for (const Expected& expected : kExpected) {
    Model model = shipped_model(expected.model);
    model.mtp_layers = expected.mtp;
    const double flops = model_flops_per_token(model, expected.seq_len, model.vocab);
    EXPECT_NEAR(flops / expected.flops, 1, 1e-9) << expected.model;
  }
}

// NVIDIA's published TFLOP/s/GPU over tokens/s/GPU (Megatron-Bridge, performance summary), rounded by three
// digits.
TEST(Flops, AgreeWithPublishedRatios) {
  const Expected ratios[] = {{"kimi-k2", 0, 4096, 204579300074.46017},
                             {"qwen3-235b-a22b", 0, 4096, 148139745916.5154},
                             {"llama-3.1-405b", 0, 8192, 2524809160305.3438},
                             {"deepseek-v3", 1, 4096, 2.600e11}};  // counts the MTP layer
  for (const Expected& ratio : ratios) {
    Model model = shipped_model(ratio.model);
    model.mtp_layers = ratio.mtp;
    EXPECT_NEAR(model_flops_per_token(model, ratio.seq_len, model.vocab) / ratio.flops, 1, 0.004)
        << ratio.model;
  }
}

TEST(Flops, OfMtp) {
  const Model model = shipped_model("deepseek-v3");
  ASSERT_EQ(model.mtp_layers, 1);
  EXPECT_NEAR(model_flops_per_token(model, 4096, model.vocab) / 2.59993e11, 1, 2e-6);  // a six-digit figure
}

TEST(Flops, OfGpt3FollowTheClosedForm) {
  // 6 (12 L h^2 + h V) + 6 L h s, projections 4 h^2 and FFN 8 h^2
  const double h = 12288, l = 96, v = 51200, s = 2048;
  EXPECT_DOUBLE_EQ(model_flops_per_token(shipped_model("gpt3-175b"), 2048, 51200),
                   6 * (12 * l * h * h + h * v) + 6 * l * h * s);
}

// Forward pass of one causal layer, s 4096, n 32, d 128: 2 n (d + d) s s / 2.
TEST(Flops, OfCausalAttention) {
  Json object = {
      {"layers", 1}, {"hidden", 4096}, {"vocab", 1}, {"ffn_hidden", 1}, {"attention", {{"heads", 32}}}};
  const Model model = model_of(object);
  const double core = model_flops_per_token(model, 4096 + 2, 1) - model_flops_per_token(model, 2, 1);
  EXPECT_DOUBLE_EQ(core / 3 * 4096, 137438953472.0);
}

TEST(Flops, OfWindows) {
  EXPECT_DOUBLE_EQ(attended_keys(4096, 128), 126.015625);  // w - w (w - 1) / (2 s)
  EXPECT_DOUBLE_EQ(attended_keys(4096, 0), 2048);
  EXPECT_DOUBLE_EQ(attended_keys(100, 128), 50);
  Model model = shipped_model("gpt-oss-120b");  // layers 0, 2, 4, ... have a window of 128
  const double windowed = model_flops_per_token(model, 4096, model.vocab);
  model.attention.window = 0;
  const double full = model_flops_per_token(model, 4096, model.vocab);
  EXPECT_DOUBLE_EQ(full - windowed, 6.0 * 18 * 64 * 128 * (2048 - 126.015625));
}

TEST(Flops, OfLatentExperts) {
  Json object = {{"layers", 1},
                 {"hidden", 64},
                 {"vocab", 100},
                 {"attention", {{"heads", 4}}},
                 {"moe", {{"experts", 8}, {"top_k", 2}, {"ffn_hidden", 32}}}};
  const double plain = model_flops_per_token(model_of(object), 128, 100);
  object["moe"]["latent"] = 16;
  const double latent = model_flops_per_token(model_of(object), 128, 100);
  EXPECT_DOUBLE_EQ(plain - latent, 6.0 * (2 * 3 * 64 * 32 - 2 * 3 * 16 * 32 - 2 * 64 * 16));
}

TEST(Flops, OfAVisionEncoder) {
  Json object = shipped_json("qwen3-30b-a3b");
  const double text = model_flops_per_token(model_of(object), 4096, 151936);
  object["vision"] = {{"layers", 27}, {"hidden", 1152}, {"ffn_hidden", 4304},
                      {"heads", 16},  {"deepstack", 3}, {"patches_per_sequence", 4096}};
  const double h = 1152, f = 4304, p = 4096, q = 4 * h, out = 2048;
  const double forward =
      27 * ((8 * h * h + 4 * h * f) * p + 4 * h * p * p) + 4 * (p / 4) * (2 * q * q + 2 * q * out);
  EXPECT_NEAR(model_flops_per_token(model_of(object), 4096, 151936) - text, 3 * forward / 4096, 1);
}

}  // namespace
}  // namespace stepcast
