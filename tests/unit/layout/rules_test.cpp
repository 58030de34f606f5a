// The framework's rules as a whole: their table, what is said, and sizes that mean harm. Each rule's cases are
// in rules_*_test.cpp, published oracles in rule_oracles_test.cpp.
#include "layout/rules.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/schema.h"
#include "layout/scenario_pointer.h"
#include "support/random.h"
#include "support/rule_cases.h"

namespace stepcast::rule_test {
namespace {

using Arguments = MegatronArguments;

std::vector<RuleCase> every_case() {
  std::vector<RuleCase> all;
  for (const auto& cases : {grid_cases(), pipeline_cases(), expert_cases(), training_cases()})
    all.insert(all.end(), cases.begin(), cases.end());
  return all;
}

Violation only(const Arguments& arguments) {
  const std::vector<Violation> violations = check_rules(arguments);
  EXPECT_EQ(violations.size(), 1U);
  return violations.empty() ? Violation{} : violations.front();
}

// ---- the table

TEST(Rules, EveryRuleIsBrokenOnceAndMetOnce) {
  std::map<int, std::set<Outcome>> outcomes;
  for (const RuleCase& c : every_case()) outcomes[c.rule].insert(c.outcome);
  for (const Rule& rule : all_rules()) {
    SCOPED_TRACE(rule.number);
    EXPECT_TRUE(outcomes[rule.number].contains(Outcome::kMet));
    EXPECT_TRUE(outcomes[rule.number].contains(Outcome::kBroken) ||
                outcomes[rule.number].contains(Outcome::kWarned));
  }
  EXPECT_EQ(outcomes.size(), all_rules().size());
}

TEST(Rules, AreInOrderAndNoneIsMissing) {
  std::set<int> missing = {29, 52};  // docs/rules.md says why
  int last = 0;
  for (const Rule& rule : all_rules()) {
    EXPECT_GT(rule.number, last);
    for (int number = last + 1; number < rule.number && number <= 56; ++number)
      EXPECT_EQ(missing.erase(number), 1U) << number;
    last = rule.number;
  }
  EXPECT_TRUE(missing.empty());
}

TEST(Rules, ReadWholeNames) {
  const Rule rule = {1, "fp8_param fp8", nullptr};
  EXPECT_TRUE(rule.reads("fp8"));
  EXPECT_TRUE(rule.reads("fp8_param"));
  EXPECT_FALSE(rule.reads("fp"));
  EXPECT_FALSE(rule.reads("param"));
}

struct Field {
  const char* name;
  Change change;
};

std::vector<Field> fields() {
  return {
      {"world_size", [](Arguments& a) { a.world_size = 48; }},
      {"tensor_model_parallel_size", [](Arguments& a) { a.tensor_model_parallel_size = 3; }},
      {"context_parallel_size", [](Arguments& a) { a.context_parallel_size = 3; }},
      {"pipeline_model_parallel_size", [](Arguments& a) { a.pipeline_model_parallel_size = 5; }},
      {"num_virtual_stages_per_pipeline_rank",
       [](Arguments& a) { a.num_virtual_stages_per_pipeline_rank = 3; }},
      {"num_layers_per_virtual_pipeline_stage",
       [](Arguments& a) { a.num_layers_per_virtual_pipeline_stage = 3; }},
      {"pipeline_model_parallel_layout", [](Arguments& a) { a.pipeline_model_parallel_layout = "Et|t|L"; }},
      {"decoder_first_pipeline_num_layers", [](Arguments& a) { a.decoder_first_pipeline_num_layers = 3; }},
      {"expert_model_parallel_size", [](Arguments& a) { a.expert_model_parallel_size = 3; }},
      {"expert_tensor_parallel_size", [](Arguments& a) { a.expert_tensor_parallel_size = 3; }},
      {"micro_batch_size", [](Arguments& a) { a.micro_batch_size = 7; }},
      {"global_batch_size", [](Arguments& a) { a.global_batch_size = 7; }},
      {"num_layers", [](Arguments& a) { a.num_layers = 7; }},
      {"num_experts", [](Arguments& a) { a.num_experts = a.num_experts == 0 ? 7 : 0; }},
      {"num_attention_heads", [](Arguments& a) { a.num_attention_heads = 7; }},
      {"num_query_groups", [](Arguments& a) { a.num_query_groups = 7; }},
      {"mtp_num_layers", [](Arguments& a) { a.mtp_num_layers = 2; }},
      {"seq_length", [](Arguments& a) { a.seq_length = 4097; }},
      {"schedule", [](Arguments& a) { a.schedule = "dualpipe"; }},
      {"sequence_parallel", [](Arguments& a) { a.sequence_parallel = !a.sequence_parallel; }},
      {"tp_comm_overlap", [](Arguments& a) { a.tp_comm_overlap = !a.tp_comm_overlap; }},
      {"overlap_moe_expert_parallel_comm",
       [](Arguments& a) { a.overlap_moe_expert_parallel_comm = !a.overlap_moe_expert_parallel_comm; }},
      {"overlap_p2p_communication",
       [](Arguments& a) { a.overlap_p2p_communication = !a.overlap_p2p_communication; }},
      {"overlap_param_gather", [](Arguments& a) { a.overlap_param_gather = !a.overlap_param_gather; }},
      {"moe_shared_expert_overlap",
       [](Arguments& a) { a.moe_shared_expert_overlap = !a.moe_shared_expert_overlap; }},
      {"delay_wgrad_compute", [](Arguments& a) { a.delay_wgrad_compute = !a.delay_wgrad_compute; }},
      {"recompute_granularity", [](Arguments& a) { a.recompute_granularity = "full"; }},
      {"recompute_modules",
       [](Arguments& a) {
         a.recompute_modules = {"moe", "mla_up_proj"};
       }},
      {"moe_token_dispatcher_type", [](Arguments& a) { a.moe_token_dispatcher_type = "flex"; }},
      {"use_megatron_fsdp", [](Arguments& a) { a.use_megatron_fsdp = !a.use_megatron_fsdp; }},
      {"fp8", [](Arguments& a) { a.fp8 = "e4m3"; }},
      {"ckpt_format", [](Arguments& a) { a.ckpt_format = "zarr"; }},
      {"cuda_device_max_connections", [](Arguments& a) { a.cuda_device_max_connections = 1; }},
      {"enable_zero_bubble", [](Arguments& a) { a.enable_zero_bubble = true; }},
      {"zero_bubble_v_schedule", [](Arguments& a) { a.zero_bubble_v_schedule = true; }},
  };
}

std::string findings_of(const Rule& rule, const Arguments& arguments) {
  std::vector<Violation> violations;
  rule.check(arguments, violations);
  std::string text;
  for (const Violation& v : violations) text += v.option + v.found + "\n";
  return text;
}

// The search for legal layouts leaves out changes that a broken rule does not read, and rules are skipped
// when nobody filled in what they read: the lists must be complete.
TEST(Rules, ReadOnlyWhatTheyList) {
  for (const RuleCase& c : every_case())
    for (const Field& field : fields()) {
      Arguments changed = c.arguments;
      field.change(changed);
      for (const Rule& rule : all_rules()) {
        if (rule.reads(field.name)) continue;
        ASSERT_EQ(findings_of(rule, c.arguments), findings_of(rule, changed))
            << "rule " << rule.number << " reads " << field.name;
      }
    }
}

// ---- what is said

TEST(Rules, SeveralAtOnce) {
  Arguments a = moe();
  a.tensor_model_parallel_size = 48;
  a.seq_length = 4095;
  a.context_parallel_size = 2;
  a.expert_model_parallel_size = 128;
  EXPECT_EQ(broken_rules(a), (std::vector<int>{1, 2, 3, 6, 8, 10}));
}

TEST(Rules, MessagesNameTheValuesAndWhatIsLegal) {
  const auto message = [](Arguments a, const Change& change) {
    change(a);
    const Violation v = only(a);
    return v.option + ": " + v.found + "; " + v.allowed;
  };
  EXPECT_EQ(message(dense(),
                    [](Arguments& a) {
                      a.tensor_model_parallel_size = 8, a.pipeline_model_parallel_size = 3, a.num_layers = 63;
                    }),
            "pipeline_model_parallel_size: 64 GPUs do not divide by tp 8 x cp 1 x pp 3 = 24; pp 1, 2, 4, 8; "
            "or 48 or 72 GPUs");
  EXPECT_EQ(
      message(dense(), [](Arguments& a) { a.num_attention_heads = 40, a.tensor_model_parallel_size = 16; }),
      "tensor_model_parallel_size: 40 attention heads do not divide by tp 16; tp 1, 2, 4, 8");
  EXPECT_EQ(message(moe(), [](Arguments& a) { a.num_experts = 8, a.expert_model_parallel_size = 16; }),
            "expert_model_parallel_size: 8 experts do not divide by ep 16; ep 1, 2, 4, 8");
  EXPECT_EQ(message(dense(), [](Arguments& a) { a.global_batch_size = 1000; }),
            "global_batch_size: 1000 sequences do not divide by micro 1 x dp 64 = 64; 960 or 1024");
  EXPECT_EQ(message(pipeline(4, 2), [](Arguments& a) { a.global_batch_size = 160; }),
            "global_batch_size: 10 micro-batches with vpp 2 do not divide by pp 4; 128 or 192");
  EXPECT_EQ(message(pipeline(8, 1),
                    [](Arguments& a) { a.num_layers = 61, a.decoder_first_pipeline_num_layers = 7; }),
            "decoder_first_pipeline_num_layers: 61 layers with 7 on the first of pp 8: the 54 left do not "
            "divide by 7 stages; counts that leave 49 or 56 layers");
  EXPECT_EQ(message(dense(),
                    [](Arguments& a) {
                      a.tensor_model_parallel_size = 8, a.tensor_parallel_num_weight_shards = 128;
                    }),
            "tensor_parallel_num_weight_shards: 64 GPUs do not divide by tp 8 x cp 1 x pp 1 x gtp 16 = 128; "
            "gtp 1, 2, 4, 8; or 128 GPUs");
}

TEST(Rules, Warnings) {
  Arguments a = dense();
  a.sequence_parallel = true;
  EXPECT_TRUE(check_rules(a).empty());
  EXPECT_EQ(rule_warnings(a),
            std::vector<std::string>{"sequence_parallel: sequence parallelism at tp 1 is switched off (rule "
                                     "7); tp above 1"});
  EXPECT_TRUE(rule_warnings(dense()).empty());
}

// Every value that a message offers for the key it points to mends the rule.
TEST(Rules, OfferedSizesAreLegal) {
  for (std::int64_t tp = 1; tp <= 16; ++tp) {
    Arguments a = dense();
    a.num_attention_heads = 24;
    a.num_query_groups = 6;
    a.tensor_model_parallel_size = tp;
    for (const Violation& v : check_rules(a)) {
      if (v.rule != 3 && v.rule != 4) continue;
      EXPECT_EQ(v.allowed, "tp 1, 2");  // divisors of gcd(24, 64) = 8 that go with 6 key/value heads
    }
  }
}

TEST(Rules, PointAtKeysOfAScenario) {
  std::set<std::string> options;
  for (const Rule& rule : all_rules()) {
    std::istringstream words(rule.options);
    for (std::string word; words >> word;) options.insert(word);
  }
  for (const std::string& option : options) {
    const std::string pointer = scenario_pointer(option);
    const bool of_model = pointer.rfind("/model/", 0) == 0;
    EXPECT_TRUE(pointer.empty() || of_model || schema_has("scenario", pointer)) << option << " " << pointer;
  }
  EXPECT_EQ(scenario_pointer("tensor_model_parallel_size"), "/layout/tp");
  EXPECT_EQ(scenario_pointer("ckpt_format"), "");
}

// ---- what nobody filled in

TEST(Rules, AreSkippedWhenWhatTheyReadIsNotFilledIn) {
  Arguments a = dense();
  a.tensor_model_parallel_size = 3;
  EXPECT_EQ(broken_rules(a), (std::vector<int>{1, 3, 4}));
  a.unfilled["--tensor-model-parallel-size"] = "$TP";
  EXPECT_TRUE(broken_rules(a).empty());

  a = dense();
  a.fp8 = "e4m3";
  a.fp4 = "e2m1";
  EXPECT_EQ(broken_rules(a), std::vector<int>{42});
  a.unfilled["fp8_format"] = "${FP8:-}";
  EXPECT_TRUE(broken_rules(a).empty());

  a = pipeline(4, 2);
  a.microbatch_group_size_per_vp_stage = 3;
  EXPECT_EQ(broken_rules(a), std::vector<int>{18});
  a.unfilled["--microbatch-group-size-per-virtual-pipeline-stage"] = "$N";
  EXPECT_TRUE(broken_rules(a).empty());
  a.unfilled = {{"", ""}, {"--", ""}, {"---", "x"}};
  EXPECT_EQ(broken_rules(a), std::vector<int>{18});
}

// ---- hostile sizes

TEST(Rules, HugeSizesNeitherOverflowNorHang) {
  const auto start = std::chrono::steady_clock::now();
  Arguments a = moe();
  for (std::int64_t* size : {&a.tensor_model_parallel_size, &a.context_parallel_size,
                             &a.pipeline_model_parallel_size, &a.expert_model_parallel_size, &a.num_experts})
    *size = 999'983;
  a.num_virtual_stages_per_pipeline_rank = 999'983;
  a.expert_tensor_parallel_size = 999'983;
  a.world_size = 1'000'000;
  EXPECT_FALSE(check_rules(a).empty());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(Rules, SizesOutOfRangeAreRuleZero) {
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-4}, INT64_MAX, INT64_MIN}) {
    Arguments a = dense();
    a.pipeline_model_parallel_size = size;
    a.microbatch_group_size_per_vp_stage = 1;
    EXPECT_EQ(only(a).rule, 0);
    EXPECT_EQ(only(a).option, "pipeline_model_parallel_size");
    a = dense();
    a.num_query_groups = size;
    EXPECT_EQ(only(a).rule, 0);
    a = dense();
    a.tensor_model_parallel_size = size;
    EXPECT_EQ(only(a).option, "tensor_model_parallel_size");  // and not ETP, which follows
  }
}

// Whatever stands in an option, nothing is divided by zero and nothing overflows.
TEST(Rules, AnyValuesAreHandled) {
  const std::int64_t extremes[] = {INT64_MIN, -1, 0, 1, 2, 3, 7, 64, 999'999'937, 1'000'000'000, INT64_MAX};
  std::uint64_t counter = 0;
  const auto pick = [&]() { return extremes[random_bits(7, counter++) % std::size(extremes)]; };
  for (int round = 0; round < 3000; ++round) {
    Arguments a = round % 2 == 0 ? dense() : moe();
    std::int64_t* const sizes[] = {&a.world_size,
                                   &a.num_layers,
                                   &a.num_attention_heads,
                                   &a.num_query_groups,
                                   &a.num_experts,
                                   &a.moe_router_topk,
                                   &a.mtp_num_layers,
                                   &a.seq_length,
                                   &a.micro_batch_size,
                                   &a.tensor_model_parallel_size,
                                   &a.context_parallel_size,
                                   &a.pipeline_model_parallel_size,
                                   &a.expert_model_parallel_size,
                                   &a.num_distributed_optimizer_instances,
                                   &a.cpu_offloading_num_layers,
                                   &a.num_layers_at_start_in_bf16,
                                   &a.num_layers_at_end_in_bf16};
    std::optional<std::int64_t>* const maybes[] = {&a.global_batch_size,
                                                   &a.num_layers_per_virtual_pipeline_stage,
                                                   &a.num_virtual_stages_per_pipeline_rank,
                                                   &a.decoder_first_pipeline_num_layers,
                                                   &a.decoder_last_pipeline_num_layers,
                                                   &a.microbatch_group_size_per_vp_stage,
                                                   &a.expert_tensor_parallel_size,
                                                   &a.tensor_parallel_num_weight_shards,
                                                   &a.expert_tensor_parallel_num_weight_shards,
                                                   &a.moe_router_num_groups,
                                                   &a.moe_router_group_topk,
                                                   &a.moe_shared_expert_intermediate_size,
                                                   &a.max_position_embeddings,
                                                   &a.cuda_device_max_connections};
    const bool small = round % 3 == 0;  // most rules are looked at only when every size is in range
    for (int i = 0; i < 4; ++i) {
      const std::int64_t value = small ? 1 + pick() % 8 * (pick() > 0 ? 1 : 0) : pick();
      *sizes[random_bits(1, counter++) % std::size(sizes)] = value;
      *maybes[random_bits(2, counter++) % std::size(maybes)] = small ? std::abs(value) + 1 : value;
    }
    const std::vector<Violation> violations = check_rules(a);
    for (const Violation& v : violations) EXPECT_FALSE(v.found.empty());
  }
}

}  // namespace
}  // namespace stepcast::rule_test
