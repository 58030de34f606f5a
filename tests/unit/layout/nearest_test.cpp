// The legal layouts next to an illegal one.
#include "layout/nearest.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "layout/rules.h"
#include "support/random.h"
#include "support/rule_cases.h"

namespace stepcast::rule_test {
namespace {

using Arguments = MegatronArguments;

std::string nearest(Arguments a, const Change& change) {
  change(a);
  return nearest_legal_text(a);
}

TEST(Nearest, OfASizeThatDoesNotDivide) {
  EXPECT_EQ(nearest(dense(), [](Arguments& a) { a.tensor_model_parallel_size = 3; }),
            "tp 4 (dp 16); tp 2 (dp 32); tp 8 (dp 8)");
  EXPECT_EQ(nearest(dense(), [](Arguments& a) { a.pipeline_model_parallel_size = 3, a.num_layers = 63; }),
            "pp 1 (dp 64)");
  EXPECT_EQ(nearest(moe(), [](Arguments& a) { a.expert_model_parallel_size = 48; }),
            "ep 64 (dp 64); ep 32 (dp 64); ep 16 (dp 64)");
  EXPECT_EQ(nearest(pipeline(8, 3), [](Arguments&) {}), "vpp 4 (dp 8); vpp 2 (dp 8); vpp 8 (dp 8)");
}

TEST(Nearest, OfABatch) {
  EXPECT_EQ(nearest(dense(), [](Arguments& a) { a.global_batch_size = 1000; }),
            "global batch 1024 (dp 64); global batch 960 (dp 64); global batch 896 (dp 64)");
}

TEST(Nearest, SwitchesAreTurned) {
  EXPECT_EQ(nearest(moe(), [](Arguments& a) { a.tensor_model_parallel_size = 2; }),
            "sequence_parallel on (dp 32); tp 1 (dp 64)");
  const std::string overlap = nearest(moe(), [](Arguments& a) {
    a.expert_model_parallel_size = 8, a.pipeline_model_parallel_size = 4;
    a.overlap_moe_expert_parallel_comm = true;
  });
  EXPECT_NE(overlap.find("vpp 2 (dp 16)"), std::string::npos) << overlap;
  EXPECT_NE(overlap.find("overlap_moe_expert_parallel_comm off (dp 16)"), std::string::npos) << overlap;
}

TEST(Nearest, RecomputeIsMended) {
  EXPECT_EQ(nearest(dense(), [](Arguments& a) { a.recompute_granularity = "full"; }),
            "recompute full uniform 1 (dp 64); recompute off (dp 64)");
  EXPECT_EQ(nearest(moe(),
                    [](Arguments& a) {
                      a.recompute_granularity = "selective", a.recompute_modules = {"mlp", "mla_up_proj"};
                    }),
            "recompute mlp (dp 64); recompute off (dp 64)");
}

TEST(Nearest, ALayoutStringIsDroppedWithItsStages) {
  const std::string text =
      nearest(pipeline(2, 1), [](Arguments& a) { a.pipeline_model_parallel_layout = "Et*32|t*31L"; });
  EXPECT_EQ(text, "no layout string (dp 32); pp 1, no layout string (dp 64); pp 4, no layout string (dp 16)");
}

TEST(Nearest, NothingForWhatNoLayoutMends) {
  EXPECT_EQ(nearest(dense(), [](Arguments&) {}), "");
  EXPECT_EQ(nearest(dense(), [](Arguments& a) { a.fp8 = "e4m3", a.fp4 = "e2m1"; }), "");
  EXPECT_EQ(nearest(dense(), [](Arguments& a) { a.pipeline_model_parallel_size = 0; }), "");
  EXPECT_EQ(nearest(dense(), [](Arguments& a) { a.tensor_model_parallel_size = INT64_MAX; }), "");
}

TEST(Nearest, WithoutTheNumberOfGpus) {
  EXPECT_EQ(nearest(dense(), [](Arguments& a) { a.world_size = 0, a.tensor_model_parallel_size = 3; }),
            "tp 4; tp 2; tp 8");
}

TEST(Nearest, WhatNobodyFilledInIsLeft) {
  const std::string text = nearest(dense(), [](Arguments& a) {
    a.seq_length = 4098, a.context_parallel_size = 4;
    a.unfilled["--tensor-model-parallel-size"] = "$TP";
  });
  EXPECT_EQ(text.find("tp "), std::string::npos) << text;
  EXPECT_NE(text.find("cp 1"), std::string::npos) << text;
}

TEST(Nearest, AsManyAsAsked) {
  Arguments a = dense();
  a.tensor_model_parallel_size = 3;
  EXPECT_TRUE(nearest_legal(a, 0).empty());
  EXPECT_EQ(nearest_legal(a, 1).size(), 1U);
  EXPECT_EQ(nearest_legal(a, 5).size(), 5U);
}

Arguments random_arguments(std::uint64_t seed) {
  std::uint64_t counter = 0;
  const auto number = [&](std::uint64_t below) {
    return static_cast<std::int64_t>(random_bits(seed, counter++) % below);
  };
  const auto flag = [&]() { return number(8) == 0; };
  Arguments a = number(2) == 0 ? dense() : moe();
  const std::int64_t worlds[] = {0, 8, 24, 60, 64, 96, 512, 1024, 4608};
  a.world_size = worlds[number(std::size(worlds))];
  a.num_layers = 1 + number(96);
  a.num_attention_heads = 8 * (1 + number(16));
  a.num_query_groups = 1 + number(16);
  a.tensor_model_parallel_size = 1 + number(9);
  a.context_parallel_size = 1 + number(4);
  a.pipeline_model_parallel_size = 1 + number(9);
  if (flag()) a.num_virtual_stages_per_pipeline_rank = 1 + number(5);
  if (flag()) a.num_layers_per_virtual_pipeline_stage = 1 + number(5);
  if (flag()) a.pipeline_model_parallel_layout = "Et|(t|)*6tL";
  if (flag()) a.decoder_first_pipeline_num_layers = 1 + number(5);
  a.even_split_required = flag();
  if (a.num_experts > 0) a.expert_model_parallel_size = 1 + number(70);
  if (flag()) a.expert_tensor_parallel_size = 1 + number(4);
  a.micro_batch_size = 1 + number(4);
  a.global_batch_size = 1 + number(2048);
  a.sequence_parallel = flag();
  a.tp_comm_overlap = flag();
  a.overlap_moe_expert_parallel_comm = flag();
  a.delay_wgrad_compute = flag();
  a.moe_shared_expert_overlap = flag();
  a.overlap_p2p_communication = !flag();
  a.overlap_param_gather = flag();
  a.use_distributed_optimizer = !flag();
  if (flag()) a.recompute_granularity = "full";
  const char* const schedules[] = {"", "", "interleaved", "1f1b", "bfs", "dualpipe", "zb-v"};
  a.schedule = schedules[number(std::size(schedules))];
  return a;
}

TEST(Nearest, AnswersAreLegalAndNoneIsGivenTwice) {
  int answered = 0;
  const auto start = std::chrono::steady_clock::now();
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const Arguments a = random_arguments(seed);
    if (check_rules(a).empty()) continue;
    const std::vector<Arguments> answers = nearest_legal(a);
    EXPECT_EQ(nearest_legal(a), answers) << "not deterministic";
    if (!answers.empty()) ++answered;
    for (std::size_t i = 0; i < answers.size(); ++i) {
      EXPECT_TRUE(check_rules(answers[i]).empty());
      EXPECT_FALSE(difference(a, answers[i]).empty());
      for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(answers[i] == answers[j]);
    }
  }
  EXPECT_GT(answered, 50);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(Nearest, HostileSizesAndStringsAreCheap) {
  const auto start = std::chrono::steady_clock::now();
  Arguments a = moe();
  a.world_size = 1'000'000'000;
  a.num_experts = 735'134'400;  // with the most divisors below 1e9
  a.expert_model_parallel_size = 999'999'937;
  a.global_batch_size = 735'134'400;
  a.tensor_model_parallel_size = 999'983;
  nearest_legal(a);
  a = pipeline(64, 1);
  a.pipeline_model_parallel_layout = "E(t|)*49999L";
  nearest_legal(a);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Nearest, DifferenceNamesWhatChanged) {
  Arguments from = pipeline(4, 2);
  Arguments to = from;
  to.tensor_model_parallel_size = 4;
  to.num_virtual_stages_per_pipeline_rank.reset();
  EXPECT_EQ(difference(from, to), "tp 4, vpp 1 (dp 4)");
  to.micro_batch_size = 2;
  to.global_batch_size = 512;
  to.expert_tensor_parallel_size = 2;
  to.sequence_parallel = true;
  EXPECT_EQ(difference(from, to),
            "tp 4, vpp 1, etp 2, micro-batch 2, global batch 512, sequence_parallel on (dp 4)");
  EXPECT_EQ(difference(from, from), "");
}

}  // namespace
}  // namespace stepcast::rule_test
