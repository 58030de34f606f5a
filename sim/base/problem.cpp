#include "base/problem.h"

namespace stepcast {

std::string to_string(const Problem& problem) {
  std::string text = problem.file;
  for (const std::string* part : {&problem.pointer, &problem.found}) {
    if (part->empty()) continue;
    if (!text.empty()) text += ": ";
    text += *part;
  }
  if (!problem.allowed.empty()) text += "; " + problem.allowed;
  return text;
}

InputError::InputError(std::vector<Problem> problems, std::vector<std::string> hints)
    : problems_(std::move(problems)), hints_(std::move(hints)) {
  for (const Problem& problem : problems_) {
    if (!text_.empty()) text_ += '\n';
    text_ += to_string(problem);
  }
}

void throw_if_any(const std::vector<Problem>& problems) {
  if (!problems.empty()) throw InputError(problems);
}

}  // namespace stepcast
