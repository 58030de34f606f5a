// What is wrong with an input. Loaders collect every problem and throw them together; nothing else throws
// InputError.
#pragma once

#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace stepcast {

struct Problem {
  std::string file;     // as the user named it; "--set" and the like for command-line input
  std::string pointer;  // JSON pointer, empty for the whole file
  std::string found;    // what is wrong
  std::string allowed;  // what would be right
};

// "FILE: /json/pointer: what is wrong; what is allowed"
std::string to_string(const Problem& problem);

class InputError : public std::exception {
 public:
  // `hints` are sentences on what would be right, beyond each problem's own; no part of what().
  explicit InputError(std::vector<Problem> problems, std::vector<std::string> hints = {});
  explicit InputError(Problem problem) : InputError(std::vector<Problem>{std::move(problem)}) {}
  const std::vector<Problem>& problems() const { return problems_; }
  const std::vector<std::string>& hints() const { return hints_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::vector<Problem> problems_;
  std::vector<std::string> hints_;
  std::string text_;
};

// Throws InputError when there is at least one problem.
void throw_if_any(const std::vector<Problem>& problems);

}  // namespace stepcast
