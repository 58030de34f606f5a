// The framework's rules: published oracles, and each rule just met and just broken.
#include "layout/rules.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace stepcast {
namespace {

using Change = std::function<void(MegatronArguments&)>;

// A dense model on 64 GPUs that breaks no rule.
MegatronArguments dense() {
  MegatronArguments a;
  a.world_size = 64;
  a.num_layers = 64;
  a.num_attention_heads = 64;
  a.num_query_groups = 8;
  a.seq_length = 4096;
  a.global_batch_size = 1024;
  return a;
}

MegatronArguments moe() {
  MegatronArguments a = dense();
  a.num_experts = 64;
  a.expert_tensor_parallel_size = 1;
  return a;
}

std::vector<int> rules(const MegatronArguments& arguments) {
  std::vector<int> numbers;
  for (const Violation& violation : check_rules(arguments)) numbers.push_back(violation.rule);
  return numbers;
}

Violation only(const MegatronArguments& arguments) {
  const std::vector<Violation> violations = check_rules(arguments);
  EXPECT_EQ(violations.size(), 1U);
  return violations.empty() ? Violation{} : violations.front();
}

struct Case {
  const char* name;
  MegatronArguments base;
  Change change;
  std::vector<int> broken;
};

// ---- oracles (domain_oracles.json); sizes that an oracle leaves open are taken so that nothing else is
// broken

TEST(Rules, Oracles) {
  const std::vector<Case> cases = {
      {"layout_world_not_divisible",
       dense(),
       [](auto& a) { a.tensor_model_parallel_size = 8, a.pipeline_model_parallel_size = 3; },
       {1}},
      {"layout_expert_grid_not_divisible",
       moe(),
       [](auto& a) {
         a.world_size = 48, a.tensor_model_parallel_size = 2, a.pipeline_model_parallel_size = 2;
         a.expert_model_parallel_size = 16, a.sequence_parallel = true, a.global_batch_size = 12 * 16;
       },
       {2}},
      {"layout_ep_larger_than_dp_ok",
       moe(),
       [](auto& a) {
         a.world_size = 256, a.tensor_model_parallel_size = 4, a.context_parallel_size = 2;
         a.pipeline_model_parallel_size = 4, a.expert_model_parallel_size = 64, a.num_experts = 256;
         a.sequence_parallel = true;
       },
       {}},
      {"layout_heads_tp",
       dense(),
       [](auto& a) { a.num_attention_heads = 40, a.tensor_model_parallel_size = 16; },
       {3}},
      {"layout_kv_lt_tp_ok",
       dense(),
       [](auto& a) { a.num_query_groups = 4, a.tensor_model_parallel_size = 8; },
       {}},
      {"layout_kv_tp_bad",
       dense(),
       [](auto& a) { a.num_attention_heads = 60, a.num_query_groups = 6, a.tensor_model_parallel_size = 4; },
       {4}},
      {"layout_moe_tp_without_sp",
       moe(),
       [](auto& a) { a.num_experts = 8, a.tensor_model_parallel_size = 2; },
       {8}},
      {"layout_cp_seq", dense(), [](auto& a) { a.world_size = 48, a.context_parallel_size = 3; }, {10}},
      {"layout_layers_pp_account",
       dense(),
       [](auto& a) {
         a.num_layers = 62, a.pipeline_model_parallel_size = 8;
         a.account_for_embedding_in_pipeline_split = a.account_for_loss_in_pipeline_split = true;
       },
       {}},
      {"layout_vpp_pp1", dense(), [](auto& a) { a.virtual_pipeline_model_parallel_size = 2; }, {15}},
      {"layout_vpp_pp2_no_overlap",
       dense(),
       [](auto& a) {
         a.pipeline_model_parallel_size = a.virtual_pipeline_model_parallel_size = 2;
         a.overlap_p2p_communication = false;
       },
       {15}},
      {"layout_m_remainder_ok",
       dense(),
       [](auto& a) {
         a.pipeline_model_parallel_size = 4, a.virtual_pipeline_model_parallel_size = 2;
         a.microbatch_group_size_per_vp_stage = 6, a.global_batch_size = 10 * 16;
       },
       {}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    MegatronArguments a = c.base;
    c.change(a);
    EXPECT_EQ(rules(a), c.broken);
  }
}

struct Published {
  const char* id;
  std::int64_t world, tp, pp, ep, vpp, batch, seq;
  std::int64_t layers, mtp, heads, kv_heads, experts;
  const char* layout;
  bool account;
};

TEST(Rules, PublishedLayoutsAreLegal) {
  const std::vector<Published> oracles = {
      {"layout_pub_dsv3_h100_1024", 1024, 2, 8, 64, 4, 8192, 4096, 61, 1, 128, 128, 256, "Et|(tt|)*30mL",
       false},
      {"layout_pub_dsv3_b200_256", 256, 1, 8, 32, 4, 2048, 4096, 61, 1, 128, 128, 256, "Et|(tt|)*30mL",
       false},
      {"layout_pub_dsv3_h100_256_4k", 256, 1, 8, 32, 4, 8192, 4096, 61, 1, 128, 128, 256,
       "Et*2|(tt|)*22t|(tt|)*7mL", false},
      {"layout_pub_dsv3_h100_256_128k", 256, 32, 8, 32, 4, 480, 131072, 61, 1, 128, 128, 256,
       "Et*2|(tt|)*22t|(tt|)*7mL", false},
      {"layout_pub_kimi_k2_gb200_128_128k", 128, 16, 2, 64, 16, 128, 131072, 61, 0, 64, 64, 384,
       "Et|t|(tt|)*29tL", false},
      {"layout_pub_qwen3_235b_h100_256", 256, 2, 8, 32, 4, 2048, 4096, 94, 0, 64, 4, 128, "", true},
      {"layout_pub_mixtral_8x22b_h100_128", 128, 2, 8, 8, 7, 256, 4096, 56, 0, 48, 8, 8, "", false},
      {"layout_pub_mixtral_8x7b_h100_64", 64, 1, 4, 8, 8, 256, 4096, 32, 0, 32, 8, 8, "", false},
  };
  for (const Published& p : oracles) {
    SCOPED_TRACE(p.id);
    MegatronArguments a;
    a.world_size = p.world;
    a.tensor_model_parallel_size = p.tp;
    a.pipeline_model_parallel_size = p.pp;
    a.expert_model_parallel_size = p.ep;
    a.expert_tensor_parallel_size = 1;
    a.virtual_pipeline_model_parallel_size = p.vpp;
    a.sequence_parallel = p.tp > 1;
    a.pipeline_model_parallel_layout = p.layout;
    a.account_for_embedding_in_pipeline_split = a.account_for_loss_in_pipeline_split = p.account;
    a.even_split_required = std::string(p.layout).empty();
    a.num_layers = p.layers;
    a.mtp_num_layers = p.mtp;
    a.num_attention_heads = p.heads;
    a.num_query_groups = p.kv_heads;
    a.num_experts = p.experts;
    a.seq_length = p.seq;
    a.global_batch_size = p.batch;
    for (const Violation& v : check_rules(a)) ADD_FAILURE() << "rule " << v.rule << ": " << v.found;
  }
}

// ---- each rule just met and just broken

TEST(Rules, JustMetAndJustBroken) {
  const auto pipeline = [](std::int64_t pp, std::int64_t vpp) {
    MegatronArguments a = dense();
    a.pipeline_model_parallel_size = pp;
    a.virtual_pipeline_model_parallel_size = vpp;
    return a;
  };
  const std::vector<Case> cases = {
      {"nothing broken", dense(), [](auto&) {}, {}},
      {"1 met",
       dense(),
       [](auto& a) {
         a.tensor_model_parallel_size = a.context_parallel_size = 4, a.pipeline_model_parallel_size = 4;
       },
       {}},
      {"1 broken by size",
       dense(),
       [](auto& a) { a.tensor_model_parallel_size = 64, a.pipeline_model_parallel_size = 2; },
       {1}},
      {"2 met", moe(), [](auto& a) { a.expert_model_parallel_size = 64; }, {}},
      {"2 broken by etp", moe(), [](auto& a) { a.expert_tensor_parallel_size = 3; }, {2}},
      {"2: etp defaults to tp (rule 5)",
       moe(),
       [](auto& a) {
         a.tensor_model_parallel_size = 2, a.sequence_parallel = true;
         a.expert_tensor_parallel_size.reset();
         a.expert_model_parallel_size = 64;
       },
       {2}},
      {"2 not said twice for a dense model",
       dense(),
       [](auto& a) { a.pipeline_model_parallel_size = 3; },
       {1}},
      {"3 met", dense(), [](auto& a) { a.num_attention_heads = 16, a.tensor_model_parallel_size = 16; }, {}},
      {"4 met, tp below",
       dense(),
       [](auto& a) { a.num_query_groups = 8, a.tensor_model_parallel_size = 8; },
       {}},
      {"4 met, tp above",
       dense(),
       [](auto& a) { a.num_query_groups = 1, a.tensor_model_parallel_size = 8; },
       {}},
      {"6 met", moe(), [](auto& a) { a.num_experts = 8, a.expert_model_parallel_size = 8; }, {}},
      {"6 broken", moe(), [](auto& a) { a.num_experts = 8, a.expert_model_parallel_size = 16; }, {6}},
      {"6 broken, dense", dense(), [](auto& a) { a.expert_model_parallel_size = 2; }, {6}},
      {"7 is silent: SP at tp 1", moe(), [](auto& a) { a.sequence_parallel = true; }, {}},
      {"8 met", moe(), [](auto& a) { a.tensor_model_parallel_size = 2, a.sequence_parallel = true; }, {}},
      {"8 not for dense models", dense(), [](auto& a) { a.tensor_model_parallel_size = 2; }, {}},
      {"9 met",
       dense(),
       [](auto& a) { a.tensor_model_parallel_size = 2, a.sequence_parallel = a.tp_comm_overlap = true; },
       {}},
      {"9 broken", dense(), [](auto& a) { a.tensor_model_parallel_size = 2, a.tp_comm_overlap = true; }, {9}},
      {"10 met", dense(), [](auto& a) { a.seq_length = 4104, a.context_parallel_size = 4; }, {}},
      {"10 broken", dense(), [](auto& a) { a.seq_length = 4100, a.context_parallel_size = 4; }, {10}},
      {"10 not at cp 1", dense(), [](auto& a) { a.seq_length = 4097; }, {}},
      {"11 met", dense(), [](auto& a) { a.global_batch_size = 128, a.micro_batch_size = 2; }, {}},
      {"11 broken", dense(), [](auto& a) { a.global_batch_size = 192, a.micro_batch_size = 2; }, {11}},
      {"11 broken below one micro-batch", dense(), [](auto& a) { a.global_batch_size = 32; }, {11}},
      {"12 not without its options", pipeline(8, 1), [](auto& a) { a.num_layers = 61; }, {}},
      {"12 broken", pipeline(8, 1), [](auto& a) { a.num_layers = 61, a.even_split_required = true; }, {12}},
      {"12 broken by one account",
       pipeline(8, 1),
       [](auto& a) { a.num_layers = 62, a.account_for_loss_in_pipeline_split = true; },
       {12}},
      {"12 met by one account",
       pipeline(8, 1),
       [](auto& a) { a.num_layers = 63, a.account_for_embedding_in_pipeline_split = true; },
       {}},
      {"12 not with a layout string",
       pipeline(2, 1),
       [](auto& a) {
         a.num_layers = 3, a.even_split_required = true, a.pipeline_model_parallel_layout = "Ett|tL";
       },
       {}},
      {"13 met", pipeline(8, 4), [](auto& a) { a.even_split_required = true; }, {}},
      {"13 broken", pipeline(8, 3), [](auto& a) { a.even_split_required = true; }, {13}},
      {"15 met", pipeline(2, 2), [](auto&) {}, {}},
      {"15 met without overlap", pipeline(4, 2), [](auto& a) { a.overlap_p2p_communication = false; }, {}},
      {"15 and 18 not for other orders",
       pipeline(1, 2),
       [](auto& a) { a.interleaved_schedule = false, a.global_batch_size = 64 * 3; },
       {}},
      {"17 met", pipeline(2, 1), [](auto& a) { a.pipeline_model_parallel_layout = "Et*32|t*32L"; }, {}},
      {"17 broken", pipeline(2, 1), [](auto& a) { a.pipeline_model_parallel_layout = "Et*32|t*31L"; }, {17}},
      {"17 broken grammar",
       pipeline(2, 1),
       [](auto& a) { a.pipeline_model_parallel_layout = "Et*|L"; },
       {17}},
      {"17 broken vpp",
       pipeline(2, 2),
       [](auto& a) { a.pipeline_model_parallel_layout = "Et*32|t*32L"; },
       {17}},
      {"18 met, default group", pipeline(4, 2), [](auto& a) { a.global_batch_size = 16 * 8; }, {}},
      {"18 broken, default group", pipeline(4, 2), [](auto& a) { a.global_batch_size = 16 * 10; }, {18}},
      {"18 broken, too few micro-batches",
       pipeline(4, 2),
       [](auto& a) { a.global_batch_size = 16 * 2; },
       {18}},
      {"18 broken, small remainder",
       pipeline(4, 2),
       [](auto& a) { a.microbatch_group_size_per_vp_stage = 6, a.global_batch_size = 16 * 9; },
       {18}},
      {"18 broken, group below pp",
       pipeline(4, 2),
       [](auto& a) { a.microbatch_group_size_per_vp_stage = 2, a.global_batch_size = 16 * 8; },
       {18}},
      {"18 broken, group above m",
       pipeline(4, 2),
       [](auto& a) { a.microbatch_group_size_per_vp_stage = 16, a.global_batch_size = 16 * 8; },
       {18}},
      {"18 met, group of all",
       pipeline(4, 2),
       [](auto& a) { a.microbatch_group_size_per_vp_stage = 8, a.global_batch_size = 16 * 8; },
       {}},
      {"18 not without virtual stages", pipeline(4, 1), [](auto& a) { a.global_batch_size = 16 * 3; }, {}},
      {"several at once",
       moe(),
       [](auto& a) {
         a.tensor_model_parallel_size = 48, a.seq_length = 4095, a.context_parallel_size = 2;
         a.expert_model_parallel_size = 128;
       },
       {1, 2, 3, 6, 8, 10}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    MegatronArguments a = c.base;
    c.change(a);
    EXPECT_EQ(rules(a), c.broken);
  }
}

// ---- what is said

TEST(Rules, MessagesNameTheValuesAndWhatIsLegal) {
  MegatronArguments a = dense();
  a.tensor_model_parallel_size = 8;
  a.pipeline_model_parallel_size = 3;
  Violation v = only(a);
  EXPECT_EQ(v.pointer, "/layout/pp");
  EXPECT_EQ(v.found, "64 GPUs do not divide by tp 8 x cp 1 x pp 3 = 24");
  EXPECT_EQ(v.allowed, "pp 1, 2, 4, 8; or 48 or 72 GPUs");

  a = dense();
  a.num_attention_heads = 40;
  a.tensor_model_parallel_size = 16;
  v = only(a);
  EXPECT_EQ(v.pointer, "/layout/tp");
  EXPECT_EQ(v.found, "40 attention heads do not divide by tp 16");
  EXPECT_EQ(v.allowed, "tp 1, 2, 4, 8");

  a = moe();
  a.num_experts = 8;
  a.expert_model_parallel_size = 16;
  EXPECT_EQ(only(a).allowed, "ep 1, 2, 4, 8");

  a = dense();
  a.global_batch_size = 1000;
  v = only(a);
  EXPECT_EQ(v.pointer, "/batch/global");
  EXPECT_EQ(v.allowed, "960 or 1024");

  a = dense();
  a.pipeline_model_parallel_size = 4;
  a.virtual_pipeline_model_parallel_size = 2;
  a.global_batch_size = 160;
  v = only(a);
  EXPECT_EQ(v.found, "10 micro-batches with vpp 2 do not divide by pp 4");
  EXPECT_EQ(v.allowed, "128 or 192");
}

// Every value that a message offers for the key it points to mends the rule.
TEST(Rules, OfferedSizesAreLegal) {
  for (std::int64_t tp = 1; tp <= 16; ++tp) {
    MegatronArguments a = dense();
    a.num_attention_heads = 24;
    a.num_query_groups = 6;
    a.tensor_model_parallel_size = tp;
    for (const Violation& v : check_rules(a)) {
      if (v.rule != 3 && v.rule != 4) continue;
      EXPECT_EQ(v.allowed, "tp 1, 2");  // divisors of gcd(24, 64) = 8 that go with 6 key/value heads
    }
  }
}

// ---- hostile sizes

TEST(Rules, HugeSizesNeitherOverflowNorHang) {
  const auto start = std::chrono::steady_clock::now();
  MegatronArguments a = moe();
  for (std::int64_t* size :
       {&a.tensor_model_parallel_size, &a.context_parallel_size, &a.pipeline_model_parallel_size,
        &a.expert_model_parallel_size, &a.virtual_pipeline_model_parallel_size, &a.num_experts})
    *size = 999'983;
  a.expert_tensor_parallel_size = 999'983;
  a.world_size = 1'000'000;
  EXPECT_FALSE(check_rules(a).empty());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(Rules, SizesOutOfRangeAreRuleZero) {
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-4}, INT64_MAX, INT64_MIN}) {
    MegatronArguments a = dense();
    a.pipeline_model_parallel_size = size;
    a.microbatch_group_size_per_vp_stage = 1;
    EXPECT_EQ(only(a).rule, 0);
    EXPECT_EQ(only(a).pointer, "/layout/pp");
    a = dense();
    a.num_query_groups = size;
    EXPECT_EQ(only(a).rule, 0);
  }
}

}  // namespace
}  // namespace stepcast
