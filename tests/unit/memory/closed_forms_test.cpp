// The memory oracles of the project (domain_oracles.json, category memory), by id: from the closed forms, or
// from the ledger's own functions where these say the same.
#include "support/closed_forms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "memory/activations.h"
#include "memory/states.h"
#include "unit/memory/fixtures.h"

namespace stepcast::memory_test {
namespace {

struct Oracle {
  std::string id;
  double expected;
  double tolerance;  // relative
  std::function<double()> value;
};

double bf16_bytes_per_parameter(std::int64_t ranks) {
  const Scenario s = scenario(llama70b(), ranks);
  HeldParameters one;
  one.plain = 1;
  return state_bytes(s, one).on_gpu();
}

double fp16_bytes_per_parameter(std::int64_t ranks) {
  Scenario s = scenario(llama70b(), ranks);
  s.precision.recipe = Recipe::kFp16;
  s.optimizer.grad_bytes = 2;
  HeldParameters one;
  one.plain = 1;
  return state_bytes(s, one).on_gpu();
}

KorthikantiLayer gpt_layer() { return {2048, 1, 12288, 96, 8}; }

MegatronEstimate llama_estimate(std::int64_t tp, std::int64_t pp, std::int64_t dp) {
  MegatronSizes sizes;
  sizes.tp = tp;
  sizes.pp = pp;
  sizes.dp = dp;
  return megatron_weights(llama70b(), sizes);
}

double logits_fp32() {
  const Scenario s = scenario(deepseek_v3(), 1);
  const Activations activations(s, megatron_stack(4));
  Stage head;
  head.head = true;
  return activations.loss_peak(head);
}

double llama_layer_per_token() {
  const Scenario s = scenario(llama70b(), 1);
  return Activations(s, megatron_stack()).everything(false) / 4096;
}

double local_experts() {
  const Scenario s = scenario(deepseek_v3(), 64, with_experts(layout(1, 1, 1), 64));
  return held_by_layer(s, 10).experts;
}

std::vector<Oracle> oracles() {
  constexpr double kElements = 4096.0 * 7168;
  return {
      {"bytes_per_param_bf16_distopt_d8", 7.5, 0, [] { return bf16_bytes_per_parameter(8); }},
      {"bytes_per_param_fp16_distopt_d4", 8.0, 0, [] { return fp16_bytes_per_parameter(4); }},
      {"zero_stage0_7p5B_64", 120.0, 1e-9, [] { return zero_bytes(0, 7.5e9, 64) / 1e9; }},
      {"zero_stage1_7p5B_64", 31.40625, 1e-9, [] { return zero_bytes(1, 7.5e9, 64) / 1e9; }},
      {"zero_stage2_7p5B_64", 16.640625, 1e-9, [] { return zero_bytes(2, 7.5e9, 64) / 1e9; }},
      {"zero_stage3_7p5B_64", 1.875, 1e-9, [] { return zero_bytes(3, 7.5e9, 64) / 1e9; }},
      {"ds_zero2_estimator", 4250000000, 0, [] { return deepspeed_zero2_bytes(1e9, 8, false); }},
      {"ds_zero3_estimator", 3212500000, 0,
       [] { return deepspeed_zero3_bytes(1e10, 1e8, 64, DeepSpeedOffload::kNone); }},
      {"kor_notp", 2868903936, 0, [] { return gpt_layer().without_tp(); }},
      {"kor_tpsp", 358612992, 0, [] { return gpt_layer().sequence_parallel(); }},
      {"kor_sel", 106954752, 0, [] { return gpt_layer().selective_recompute(); }},
      {"kor_full", 50331648, 0, [] { return gpt_layer().full_recompute(); }},
      {"megatron_weight_opt_llama70b_tp8_pp4_dp8", 17036590080, 1e-9,
       [] { return llama_estimate(8, 4, 8).bytes; }},
      {"megatron_weight_opt_llama70b_tp8_pp1_dp4", 79397462016, 1e-9,
       [] { return llama_estimate(8, 1, 4).bytes; }},
      {"megatron_weight_opt_llama70b_tp4_pp4_dp16", 30656558592, 1e-9,
       [] { return llama_estimate(4, 4, 16).bytes; }},
      {"megatron_activation_llama70b_tp8_pp4", 21508423680, 1e-9,
       [] { return megatron_activations(llama70b(), 8192, 1, 8, 4, 1, 16); }},
      {"act_layer_llama70b_bytes_per_token", 274688, 0, llama_layer_per_token},
      {"logits_fp32_bytes", 2118123520, 0, logits_fp32},
      {"dsv3_local_expert_params_ep64_per_layer", 176160768, 0, local_experts},
      {"mxfp8_tensor_bytes", 30277632, 0, [] { return mxfp8_bytes(kElements); }},
      {"nvfp4_tensor_bytes", 16515076, 0, [] { return nvfp4_bytes(kElements); }},
      {"fp8_blockwise_act_bytes", 30277632, 0, [] { return fp8_block_bytes(kElements); }},
  };
}

TEST(MemoryOracles, HaveTheirValues) {
  for (const Oracle& oracle : oracles())
    EXPECT_NEAR(oracle.value(), oracle.expected, oracle.tolerance * oracle.expected) << oracle.id;
}

TEST(MemoryOracles, MegatronCountsTheMostLoadedShard) {
  EXPECT_DOUBLE_EQ(llama_estimate(8, 4, 8).parameters, 2271545344);
  EXPECT_DOUBLE_EQ(llama_estimate(8, 1, 4).parameters, 8821940224);
  EXPECT_DOUBLE_EQ(llama_estimate(4, 4, 16).parameters, 4541712384);
}

TEST(MemoryOracles, CoverTheFile) {
  const char* folder = std::getenv("STEPCAST_DATA");
  if (folder == nullptr) GTEST_SKIP() << "STEPCAST_DATA is not set";
  const Json file = load_json(std::filesystem::path(folder) / "domain_oracles.json");
  std::set<std::string> known;
  for (const Oracle& oracle : oracles()) known.insert(oracle.id);
  for (const Json& entry : file["oracles"]) {
    if (entry["category"] != "memory") continue;
    EXPECT_TRUE(known.contains(entry["id"].get<std::string>())) << entry["id"];
    for (const Oracle& oracle : oracles()) {
      const bool same = oracle.id == entry["id"] && entry["expected"].is_number();
      if (same) {
        EXPECT_NEAR(oracle.expected, entry["expected"].get<double>(), 1e-9 * oracle.expected) << oracle.id;
      }
    }
  }
}

// The ledger's layer is Korthikanti's in the setting of that paper: dropout, unfused attention, biases, f = 4
// h.
TEST(Korthikanti, IsTheLedgerOfAGptLayer) {
  const auto ledger = [](std::int64_t tp, bool sequence_parallel) {
    Layout l = layout(tp, 1, 1);
    l.sequence_parallel = sequence_parallel;
    Scenario s = scenario(gpt175b(), tp, l, 2048);
    s.kernels.attention = AttentionKernel::kUnfused;
    return Activations(s, megatron_stack()).everything(false);
  };
  EXPECT_DOUBLE_EQ(ledger(1, false), gpt_layer().without_tp());
  EXPECT_DOUBLE_EQ(ledger(8, false), gpt_layer().tensor_parallel());
  EXPECT_DOUBLE_EQ(ledger(8, true), gpt_layer().sequence_parallel());
}

TEST(Korthikanti, SelectiveAndFullRecompute) {
  Scenario s = scenario(gpt175b(), 8, layout(8, 1, 1), 2048);
  s.kernels.attention = AttentionKernel::kUnfused;
  s.recompute = {Granularity::kSelective, {"core_attn"}, {}};
  EXPECT_DOUBLE_EQ(Activations(s, megatron_stack()).kept(false, false), gpt_layer().selective_recompute());
  s.layout.sequence_parallel = false;
  EXPECT_DOUBLE_EQ(Activations(s, megatron_stack()).kept(false, true), gpt_layer().full_recompute());
}

TEST(DeepSpeedEstimator, IsTheLedgerWithTwoByteGradients) {
  Scenario s = scenario(llama70b(), 8);
  s.sharding.engine = Engine::kDeepSpeed;
  s.sharding.zero_stage = 2;
  s.optimizer.grad_bytes = 2;
  HeldParameters billion;
  billion.plain = 1e9;
  EXPECT_DOUBLE_EQ(state_bytes(s, billion).on_gpu(), deepspeed_zero2_bytes(1e9, 8, false));
}

// One stage: all p stages' worth of layers, and logits in fp32 on the same rank: + 4 s b (h + V') / t.
TEST(MegatronActivations, WithoutAPipelineTheLogitsCount) {
  const Model m = llama70b();
  const double sb = 8192;
  const double layers = sb * 8192 * (18 + 4 * 28672.0 / 8192) * 80;
  const double expected = (layers + 8 * sb + sb * 8192 + sb * 8192 * 4 * (1 + 129024.0 / 8192)) / 8;
  EXPECT_DOUBLE_EQ(megatron_activations(m, 8192, 1, 8, 1, 1, 16), expected);
}

}  // namespace
}  // namespace stepcast::memory_test
