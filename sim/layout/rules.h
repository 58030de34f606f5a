// The framework's validity rules as values: what Megatron would refuse at start, what it would run differently
// from what was asked (with layers missing, say), and what it only warns of. Numbers are those of
// docs/rules.md: 1 to 56 Megatron's, from 101 on other engines' and schedules', 0 for sizes that no program
// takes.
//
// A rule that needs something unknown is left out: the number of GPUs (0), the GPU's compute capability (0),
// CUDA_DEVICE_MAX_CONNECTIONS (absent), a size of the model that was not given (0), or an option whose value
// nobody filled in (MegatronArguments::unfilled).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "layout/megatron_arguments.h"

namespace stepcast {

struct Violation {
  int rule = 0;
  std::string option;    // to change, Megatron's field name: "pipeline_model_parallel_size"
  std::string found;     // with the values: "64 GPUs do not divide by tp 8 x cp 1 x pp 3 = 24"
  std::string allowed;   // what would be legal: "pp 1, 2, 4, 8; or 48 or 72 GPUs"
  bool warning = false;  // Megatron warns or corrects it, and runs
};

struct Rule {
  int number = 0;
  std::string options;  // all that it reads, with blanks between
  void (*check)(const MegatronArguments& arguments, std::vector<Violation>& violations) = nullptr;

  bool reads(std::string_view option) const;
};

// Every rule that is checked, in order of their numbers.
const std::vector<Rule>& all_rules();

// Every rule that the arguments break, in rule order. Never throws. A size below its least value or above 1e9
// breaks "rule 0", and then nothing else is looked at.
std::vector<Violation> check_rules(const MegatronArguments& arguments);

// What Megatron only warns of or corrects by itself, as text with the rule's number.
std::vector<std::string> rule_warnings(const MegatronArguments& arguments);

}  // namespace stepcast
