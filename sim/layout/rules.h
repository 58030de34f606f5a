// The framework's validity rules as values. A rule number is that of docs/rules.md.
#pragma once

#include <string>
#include <vector>

#include "layout/megatron_arguments.h"

namespace stepcast {

struct Violation {
  int rule = 0;
  std::string pointer;  // of the scenario key to change, "/layout/pp"
  std::string found;    // with the values: "64 GPUs do not divide by tp 8 x cp 1 x pp 3 = 24"
  std::string allowed;  // what would be legal: "pp 1, 2, 4, 8; or 48 or 72 GPUs"
};

// Every rule that the arguments break, in rule order. Never throws. A size below 1 or above 1e9 breaks "rule
// 0", and then nothing else is looked at.
std::vector<Violation> check_rules(const MegatronArguments& arguments);

}  // namespace stepcast
