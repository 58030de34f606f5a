// Splits launch files into named arguments: used by launch_line.cpp only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/problem.h"

namespace stepcast {

struct RawArgument {
  std::string name;                // without the dashes
  std::vector<std::string> words;  // variables not filled in yet
  std::string place;               // for messages: a pointer or "line 7"
};

struct RawLaunch {
  std::vector<RawArgument> arguments;
  std::map<std::string, std::string> variables;  // assigned in the file, or listed as its environment
  std::int64_t gpus = 0;                         // by torchrun's options; 0 = not said
  bool dump = false;                             // every argument is there, given or not
};

// By what the text looks like. Appends problems.
RawLaunch split_launch_text(const std::string& text, const std::string& file, std::vector<Problem>& problems);

}  // namespace stepcast
