// Cases of the framework's rules: arguments that break one, just meet it, or are only warned of.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "layout/megatron_arguments.h"
#include "layout/rules.h"

namespace stepcast::rule_test {

using Change = std::function<void(MegatronArguments&)>;

enum class Outcome { kMet, kBroken, kWarned };

struct RuleCase {
  int rule = 0;
  Outcome outcome = Outcome::kMet;
  std::string option;  // that the violation names
  MegatronArguments arguments;
};

// On 64 GPUs, breaking no rule: a dense model of 64 layers, and one with 64 experts.
MegatronArguments dense();
MegatronArguments moe();

// The same with PP and virtual stages.
MegatronArguments pipeline(std::int64_t pp, std::int64_t vpp);

RuleCase met(int rule, MegatronArguments arguments, const Change& change);
RuleCase broken(int rule, std::string option, MegatronArguments arguments, const Change& change);
RuleCase warned(int rule, std::string option, MegatronArguments arguments, const Change& change);

// The numbers of the rules that are broken, each once.
std::vector<int> broken_rules(const MegatronArguments& arguments);

// Each case does what it says and breaks no other rule.
void expect_cases(const std::vector<RuleCase>& cases);

// Of tests/unit/layout/rules_*_test.cpp.
std::vector<RuleCase> grid_cases();
std::vector<RuleCase> pipeline_cases();
std::vector<RuleCase> expert_cases();
std::vector<RuleCase> training_cases();

}  // namespace stepcast::rule_test
