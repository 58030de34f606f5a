// One direction: a folder of sim/ includes only itself and the folders before it in kOrder.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kOrder = {"base",     "topology", "model", "cost",    "layout",
                                         "schedule", "memory",   "graph", "network", "engine",
                                         "result",   "search",   "plan",  "observe", "app"};

const fs::path kSource = STEPCAST_SOURCE_DIR;

std::size_t place(const std::string& folder) {
  return std::find(kOrder.begin(), kOrder.end(), folder) - kOrder.begin();
}

std::string first_folder(const fs::path& path) { return path.begin()->string(); }

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

// What is wrong with a quoted include of a file in `folder`; empty when nothing is.
std::string fault(const std::string& folder, const std::string& include) {
  const std::string target = first_folder(include);
  if (target == "tests" || target == "kernels") return "sim/ uses nothing of " + target + "/";
  if (place(target) == kOrder.size()) return "not of the form \"FOLDER/NAME.h\" with a folder of sim/";
  if (place(target) > place(folder)) return target + " stands after " + folder;
  return "";
}

// The quoted includes of a source text.
std::vector<std::string> quoted_includes(const std::string& text) {
  static const std::regex pattern(R"re(^\s*#\s*include\s*"([^"]+)")re");
  std::vector<std::string> includes;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_search(line, match, pattern)) includes.push_back(match[1]);
  }
  return includes;
}

std::vector<std::string> folders_in(const fs::path& folder) {
  std::vector<std::string> names;
  if (!fs::exists(folder)) return names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  return names;
}

TEST(IncludeRule, TellsRightFromWrong) {
  EXPECT_EQ(fault("graph", "base/json.h"), "");
  EXPECT_EQ(fault("graph", "graph/graph.h"), "");
  EXPECT_NE(fault("graph", "engine/replay.h"), "");
  EXPECT_NE(fault("base", "app/main.h"), "");
  EXPECT_NE(fault("app", "tests/support/run.h"), "");
  EXPECT_NE(fault("app", "kernels/harness.h"), "");
  EXPECT_NE(fault("app", "../kernels/harness.h"), "");
  EXPECT_NE(fault("base", "json.h"), "");
  EXPECT_EQ(quoted_includes("#include <map>\n  # include \"app/made_up.h\"  // no\n// #include \"x.h\"\n"),
            std::vector<std::string>{"app/made_up.h"});
}

TEST(IncludeRule, HoldsInEveryFile) {
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "sim")) {
    const fs::path& file = entry.path();
    if (file.extension() != ".h" && file.extension() != ".cpp") continue;
    ++files;
    const std::string folder = first_folder(fs::relative(file, kSource / "sim"));
    for (const std::string& include : quoted_includes(text_of(file))) {
      EXPECT_EQ(fault(folder, include), "") << file.string() << ": #include \"" << include << '"';
    }
  }
  EXPECT_GT(files, 0);
}

TEST(IncludeRule, TableKnowsEveryFolder) {
  for (const fs::path& parent : {kSource / "sim", kSource / "tests" / "unit"}) {
    for (const std::string& folder : folders_in(parent)) {
      EXPECT_LT(place(folder), kOrder.size()) << (parent / folder).string() << " is not in the table";
    }
  }
}

TEST(IncludeRule, TableIsTheOrderOfTheBuild) {
  std::string list = "set(STEPCAST_FOLDERS";
  for (const std::string& folder : kOrder) list += " " + folder;
  EXPECT_NE(text_of(kSource / "CMakeLists.txt").find(list + ")"), std::string::npos) << list << ")";
}

}  // namespace
