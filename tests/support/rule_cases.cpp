#include "support/rule_cases.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace stepcast::rule_test {
namespace {

RuleCase a_case(int rule, Outcome outcome, std::string option, MegatronArguments arguments,
                const Change& change) {
  change(arguments);
  return {rule, outcome, std::move(option), std::move(arguments)};
}

bool names(const MegatronArguments& arguments, int rule, const std::string& option) {
  const std::vector<Violation> violations = check_rules(arguments);
  return std::any_of(violations.begin(), violations.end(), [&](const Violation& violation) {
    return violation.rule == rule && violation.option == option && !violation.found.empty() &&
           !violation.allowed.empty();
  });
}

bool warns(const MegatronArguments& arguments, int rule, const std::string& option) {
  const std::vector<std::string> warnings = rule_warnings(arguments);
  return std::any_of(warnings.begin(), warnings.end(), [&](const std::string& warning) {
    return warning.rfind(option + ": ", 0) == 0 &&
           warning.find("(rule " + std::to_string(rule) + ")") != std::string::npos;
  });
}

}  // namespace

MegatronArguments dense() {
  MegatronArguments a;
  a.world_size = 64;
  a.num_layers = 64;
  a.num_attention_heads = 64;
  a.group_query_attention = true;
  a.num_query_groups = 8;
  a.position_embedding_type = "rope";
  a.add_bias_linear = false;
  a.bf16 = true;
  a.seq_length = 4096;
  a.global_batch_size = 1024;
  return a;
}

MegatronArguments moe() {
  MegatronArguments a = dense();
  a.num_experts = 64;
  a.expert_tensor_parallel_size = 1;
  a.moe_token_dispatcher_type = "alltoall";
  a.moe_grouped_gemm = true;
  return a;
}

MegatronArguments pipeline(std::int64_t pp, std::int64_t vpp) {
  MegatronArguments a = dense();
  a.pipeline_model_parallel_size = pp;
  if (vpp > 1) a.num_virtual_stages_per_pipeline_rank = vpp;
  return a;
}

RuleCase met(int rule, MegatronArguments arguments, const Change& change) {
  return a_case(rule, Outcome::kMet, "", std::move(arguments), change);
}

RuleCase broken(int rule, std::string option, MegatronArguments arguments, const Change& change) {
  return a_case(rule, Outcome::kBroken, std::move(option), std::move(arguments), change);
}

RuleCase warned(int rule, std::string option, MegatronArguments arguments, const Change& change) {
  return a_case(rule, Outcome::kWarned, std::move(option), std::move(arguments), change);
}

std::vector<int> broken_rules(const MegatronArguments& arguments) {
  std::vector<int> numbers;
  for (const Violation& violation : check_rules(arguments)) numbers.push_back(violation.rule);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

void expect_cases(const std::vector<RuleCase>& cases) {
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const RuleCase& c = cases[i];
    SCOPED_TRACE(testing::Message() << "case " << i << ", rule " << c.rule << " " << c.option);
    const bool refused = c.outcome == Outcome::kBroken;
    EXPECT_EQ(broken_rules(c.arguments), refused ? std::vector<int>{c.rule} : std::vector<int>{});
    if (refused) {
      EXPECT_TRUE(names(c.arguments, c.rule, c.option));
    }
    EXPECT_EQ(warns(c.arguments, c.rule, c.option), c.outcome == Outcome::kWarned);
  }
}

}  // namespace stepcast::rule_test
