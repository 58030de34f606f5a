// Runs the program as a user would and keeps what it says.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

namespace stepcast::test {

struct Answer {
  int exit_code = -1;
  std::string out;
  std::string err;
};

inline std::string slurp(const std::string& file) {
  std::ifstream stream(file);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

inline Answer run_program(const std::string& arguments, const std::string& folder = STEPCAST_SOURCE_DIR) {
  const std::string base = testing::TempDir() + "stepcast_" + std::to_string(::getpid());
  const std::string command = "cd '" + folder + "' && '" STEPCAST_PROGRAM "' " + arguments + " >'" + base +
                              ".out' 2>'" + base + ".err' </dev/null";
  const int status = std::system(command.c_str());
  Answer answer{WIFEXITED(status) ? WEXITSTATUS(status) : -1, slurp(base + ".out"), slurp(base + ".err")};
  std::remove((base + ".out").c_str());
  std::remove((base + ".err").c_str());
  return answer;
}

inline std::string write_temporary(const std::string& name, const std::string& text) {
  std::string file = testing::TempDir() + "stepcast_" + std::to_string(::getpid()) + "_" + name;
  std::ofstream(file) << text;
  return file;
}

}  // namespace stepcast::test
