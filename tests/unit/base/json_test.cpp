// Reading with errors that name the place, writing whole or not at all, assignments of `--set`, nearest
// names.
#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "base/schema.h"

namespace stepcast {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// The one problem that `act` throws.
template <typename Act>
Problem problem_of(const Act& act) {
  try {
    act();
  } catch (const InputError& error) {
    EXPECT_EQ(error.problems().size(), 1u) << error.what();
    return error.problems().front();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

Problem parse_problem(const std::string& text) {
  return problem_of([&] { parse_json(text, "f.json"); });
}

class JsonFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("stepcast-json-test." + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  static std::string read(const fs::path& file) {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    return text.str();
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder_)) all.push_back(entry.path().filename().string());
    return all;
  }

  fs::path folder_;
};

// --- parsing ---

TEST(ParseJson, KeepsTheOrderOfKeys) {
  EXPECT_EQ(parse_json(R"({"schema":"s","b":1,"a":[2,3]})", "f").dump(), R"({"schema":"s","b":1,"a":[2,3]})");
}

TEST(ParseJson, NamesTheFileAndThePlace) {
  // The colon is missing: the parser stops at the 2, which is the seventh character of the second line.
  const Problem problem = parse_problem("{\"a\": 1,\n  \"b\" 2}");
  EXPECT_EQ(problem.file, "f.json");
  EXPECT_EQ(problem.pointer, "");
  EXPECT_THAT(problem.found, HasSubstr("line 2, column 7"));
  EXPECT_FALSE(problem.allowed.empty());
}

TEST(ParseJson, NamesThePlaceOfAnErrorInTheFirstLine) {
  EXPECT_THAT(parse_problem("[1, x]").found, HasSubstr("line 1, column 5"));
}

TEST(ParseJson, NamesTheEndOfATruncatedFile) {
  // Eight characters, and the ninth is missing.
  EXPECT_THAT(parse_problem("{\"a\": 12").found, HasSubstr("line 1, column 9"));
  EXPECT_THAT(parse_problem("{\"a\":\n\n").found, HasSubstr("line 3, column 1"));
}

TEST(ParseJson, RefusesWhatIsNoJson) {
  for (const char* text : {"", " ", "{", "[1,]", "{\"a\":1,}", "{a:1}", "'a'", "01", "1.", "+1", "NaN",
                           "Infinity", "[1] 2", "// note\n1", "\"\\x\"", "\"a\nb\"", "nul"})
    EXPECT_THROW(parse_json(text, "f"), InputError) << text;
}

TEST(ParseJson, RefusesAKeyThatIsGivenTwice) {
  const Problem problem = parse_problem(R"({"a": {"tp": 1, "pp": 2, "tp": 3}})");
  EXPECT_THAT(problem.found, HasSubstr("\"tp\""));
  EXPECT_THAT(problem.found, HasSubstr("twice"));
}

TEST(ParseJson, TakesOneKeyInDifferentObjects) {
  EXPECT_NO_THROW(parse_json(R"([{"tp": 1}, {"tp": 2, "x": {"tp": 3}}, {"tp": 4}])", "f"));
  EXPECT_NO_THROW(parse_json(R"({"tp": {"tp": {"tp": 1}}})", "f"));
}

TEST(ParseJson, FindsATwiceGivenKeyBehindANestedObject) {
  EXPECT_THAT(parse_problem(R"({"a": 1, "b": {"c": {}}, "a": 2})").found, HasSubstr("\"a\""));
}

TEST(ParseJson, TakesAHundredLevelsAndNoMore) {
  const auto nested = [](std::size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  EXPECT_NO_THROW(parse_json(nested(100), "f"));
  EXPECT_THAT(parse_problem(nested(102)).found, HasSubstr("deep"));
  EXPECT_THAT(parse_problem(nested(100000)).found, HasSubstr("deep"));  // and does not overflow the stack
  std::string objects;
  for (int i = 0; i < 5000; ++i) objects += R"({"a":)";
  EXPECT_THROW(parse_json(objects, "f"), InputError);
}

TEST(ParseJson, RefusesANumberThatNoDoubleHolds) {
  EXPECT_THAT(parse_problem("[1e400]").found, HasSubstr("range"));
  EXPECT_THAT(parse_problem("[-1e400]").found, HasSubstr("range"));
  EXPECT_DOUBLE_EQ(parse_json("1e308", "f").get<double>(), 1e308);
}

TEST(ParseJson, RefusesTextThatIsNotUtf8) {
  for (const char* text :
       {"{\"a\": \"\xff\"}", "{\"\xc3\": 1}", "[\"\xed\xa0\x80\"]", "\xff", "[\"\xc3\xa9\"] \xa9"})
    EXPECT_THROW(parse_json(text, "f"), InputError) << text;
  EXPECT_EQ(parse_json("\"\xc3\xa9\"", "f").get<std::string>(), "\xc3\xa9");
}

// --- files ---

TEST_F(JsonFiles, LoadsAFile) { EXPECT_EQ(load_json(write("a.json", "{\"a\": 1}\n"))["a"], 1); }

TEST_F(JsonFiles, NamesAFileThatIsNotThere) {
  const Problem problem = problem_of([&] { load_json(folder_ / "none.json"); });
  EXPECT_EQ(problem.file, (folder_ / "none.json").string());
  EXPECT_THAT(problem.found, HasSubstr("no such file"));
}

TEST_F(JsonFiles, RefusesADirectoryAndAnEmptyFile) {
  EXPECT_THAT(problem_of([&] { load_json(folder_); }).found, HasSubstr("directory"));
  EXPECT_THAT(problem_of([&] { load_json(write("empty.json", "")); }).found, HasSubstr("empty"));
}

TEST_F(JsonFiles, NamesTheFileOfASyntaxError) {
  const fs::path file = write("bad.json", "{\n  \"a\": tru\n}");
  const Problem problem = problem_of([&] { load_json(file); });
  EXPECT_EQ(problem.file, file.string());
  EXPECT_THAT(problem.found, HasSubstr("line 2"));
}

TEST_F(JsonFiles, WritesAndReplacesAFile) {
  const fs::path file = folder_ / "out.json";
  write_file(file, "first");
  EXPECT_EQ(read(file), "first");
  write_file(file, std::string("se\0cond\xff", 8));
  EXPECT_EQ(read(file), std::string("se\0cond\xff", 8));
  EXPECT_THAT(names(), testing::ElementsAre("out.json"));  // nothing temporary is left
}

TEST_F(JsonFiles, LeavesTheOldFileWhenItCannotBeReplaced) {
  const fs::path target = folder_ / "folder";
  fs::create_directories(target / "inside");  // a folder that is not empty cannot be replaced by a file
  const Problem problem = problem_of([&] { write_file(target, "text"); });
  EXPECT_EQ(problem.file, target.string());
  EXPECT_THAT(problem.found, HasSubstr("cannot be written"));
  EXPECT_TRUE(fs::is_directory(target / "inside"));
  EXPECT_THAT(names(), testing::ElementsAre("folder"));
}

TEST_F(JsonFiles, RefusesAFolderThatCannotBeWritten) {
  for (const fs::path& file : {folder_ / "none" / "out.json", fs::path("/proc/stepcast-out.json")}) {
    const Problem problem = problem_of([&] { write_file(file, "text"); });
    EXPECT_EQ(problem.file, file.string());
    EXPECT_THAT(problem.found, HasSubstr("cannot be written: "));
    EXPECT_FALSE(fs::exists(file));
  }
}

TEST_F(JsonFiles, RefusesAReadOnlyFolder) {
  if (::geteuid() == 0) GTEST_SKIP() << "root writes everywhere";
  const fs::path file = write("kept.json", "old");
  fs::permissions(folder_, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THROW(write_file(file, "new"), InputError);
  fs::permissions(folder_, fs::perms::owner_all);
  EXPECT_EQ(read(file), "old");
}

// --- pointers and assignments ---

TEST(ChildPointer, EscapesTildeAndSlash) {
  EXPECT_EQ(child_pointer("", "a"), "/a");
  EXPECT_EQ(child_pointer("/layout/tp", "x/y"), "/layout/tp/x~1y");
  EXPECT_EQ(child_pointer("/a", "~/"), "/a/~0~1");
}

Json set(const std::string& document, const std::string& assignment) {
  Json json = parse_json(document, "f");
  apply_set(json, assignment);
  return json;
}

Problem set_problem(const std::string& document, const std::string& assignment) {
  return problem_of([&] { set(document, assignment); });
}

TEST(ApplySet, ReplacesAValue) {
  EXPECT_EQ(set(R"({"layout":{"tp":1,"pp":2}})", "/layout/tp=8").dump(), R"({"layout":{"tp":8,"pp":2}})");
}

TEST(ApplySet, TakesEveryKindOfJsonAndElseAString) {
  EXPECT_EQ(set("{}", "/a=1.5").dump(), R"({"a":1.5})");
  EXPECT_EQ(set("{}", "/a=true").dump(), R"({"a":true})");
  EXPECT_EQ(set("{}", "/a=null").dump(), R"({"a":null})");
  EXPECT_EQ(set("{}", R"(/a={"b":[1]})").dump(), R"({"a":{"b":[1]}})");
  EXPECT_EQ(set("{}", R"(/a="8")").dump(), R"({"a":"8"})");
  EXPECT_EQ(set("{}", "/a=fp8-block").dump(), R"({"a":"fp8-block"})");
  EXPECT_EQ(set("{}", "/a=").dump(), R"({"a":""})");
  EXPECT_EQ(set("{}", "/a=b=c").dump(), R"({"a":"b=c"})");
}

TEST(ApplySet, CreatesObjectsOnTheWay) {
  EXPECT_EQ(set("{}", "/a/b/c=1").dump(), R"({"a":{"b":{"c":1}}})");
  EXPECT_EQ(set(R"({"a":null})", "/a/0=1").dump(), R"({"a":{"0":1}})");  // an object, not a list
  EXPECT_EQ(set("null", "/a=1").dump(), R"({"a":1})");
}

TEST(ApplySet, UnescapesThePointer) { EXPECT_EQ(set("{}", "/x~1y/~0=1").dump(), R"({"x/y":{"~":1}})"); }

TEST(ApplySet, ReachesIntoLists) {
  EXPECT_EQ(set(R"({"a":[1,{"b":2}]})", "/a/1/b=3").dump(), R"({"a":[1,{"b":3}]})");
  EXPECT_EQ(set("[1,2]", "/1=5").dump(), "[1,5]");
}

TEST(ApplySet, RefusesAnElementThatIsNotThere) {
  for (const char* token : {"2", "-", "-1", "x", "", "99999999999999999999", "1e0", " 1"}) {
    const Problem problem = set_problem(R"({"a":[1,2]})", std::string("/a/") + token + "=0");
    EXPECT_EQ(problem.file, "--set");
    EXPECT_EQ(problem.pointer, std::string("/a/") + token);
    EXPECT_THAT(problem.found, HasSubstr("no element"));
  }
}

TEST(ApplySet, RefusesAPointerThatRunsThroughAScalar) {
  for (const char* scalar : {"1", "\"x\"", "true", "1.5"}) {
    const Problem problem = set_problem(std::string("{\"a\":") + scalar + "}", "/a/b=1");
    EXPECT_EQ(problem.pointer, "/a/b");
    EXPECT_THAT(problem.found, HasSubstr("no object"));
  }
}

TEST(ApplySet, RefusesWhatIsNoAssignment) {
  for (const char* text : {"", "=1", "/a", "a=1", "a/b=1", "tp"}) {
    const Problem problem = set_problem("{}", text);
    EXPECT_EQ(problem.file, "--set");
    EXPECT_THAT(problem.found, HasSubstr("no assignment")) << text;
    EXPECT_THAT(problem.allowed, HasSubstr("/layout/tp=8"));
  }
}

TEST(ApplySet, RefusesABadEscape) {
  for (const char* text : {"/a~2=1", "/a~=1", "/~/b=1"})
    EXPECT_THAT(set_problem("{}", text).found, HasSubstr("no JSON pointer")) << text;
}

TEST(ApplySet, LeavesTheDocumentAloneWhenItRefuses) {
  Json json = parse_json(R"({"a":1,"l":[1]})", "f");
  for (const char* text : {"/a/b=1", "/l/7=1", "/x~2=1", "nonsense"}) {
    EXPECT_THROW(apply_set(json, text), InputError);
    EXPECT_EQ(json.dump(), R"({"a":1,"l":[1]})") << text;
  }
}

TEST(ApplySet, DoesNotTakeAValueThatAFileCouldNotHold) {
  EXPECT_THROW(set("{}", R"(/a={"b":1,"b":2})"), InputError);  // given twice
  const std::string deep = std::string(200, '[') + std::string(200, ']');
  EXPECT_THROW(set("{}", "/a=" + deep), InputError);
}

TEST(ApplySet, SurvivesTextThatIsNotUtf8) {
  for (const char* text : {"/a=\xff", "/\xff=1", "/a\xc3/b=\"\xc3\"", "/a/\xed\xa0\x80=x"}) {
    Json json = Json::object();
    try {
      apply_set(json, text);
    } catch (const InputError&) {
      continue;
    }
    std::vector<Problem> problems;  // what names the value must not trip over it either
    check_schema(json, "scenario", "f", "", problems);
    EXPECT_FALSE(problems.empty());
  }
}

// --- names ---

TEST(NearestName, FindsATypingError) {
  const std::vector<std::string> known = {"tp", "sequence_parallel", "schedule", "microbatch_group"};
  EXPECT_EQ(nearest_name("sequence_paralel", known), "sequence_parallel");
  EXPECT_EQ(nearest_name("shedule", known), "schedule");
  EXPECT_EQ(nearest_name("tpp", known), "tp");
  EXPECT_EQ(nearest_name("microbatchgroup", known), "microbatch_group");
  EXPECT_EQ(nearest_name("tp", known), "tp");
}

TEST(NearestName, PrefersTheNearer) {
  EXPECT_EQ(nearest_name("grd_dtype", {"state_dtype", "grad_dtype"}), "grad_dtype");
  EXPECT_EQ(nearest_name("abc", {"abx", "aby"}), "abx");  // the first of those that tie
}

TEST(NearestName, SaysNothingWhenNothingIsNear) {
  EXPECT_EQ(nearest_name("zzzzzzzzzz", {"tp", "schedule"}), "");
  EXPECT_EQ(nearest_name("anything", {}), "");
  EXPECT_EQ(nearest_name(std::string(1000000, 'x'), {"tp"}), "");  // at once
}

// --- problems ---

TEST(Problems, ReadAsTheContractSays) {
  EXPECT_EQ(to_string({"f.json", "/layout/tp", "0", "an integer"}), "f.json: /layout/tp: 0; an integer");
  EXPECT_EQ(to_string({"f.json", "", "is a directory", ""}), "f.json: is a directory");
  EXPECT_EQ(to_string({"", "", "x", "y"}), "x; y");
}

TEST(Problems, AreThrownTogether) {
  EXPECT_NO_THROW(throw_if_any({}));
  try {
    throw_if_any({{"a", "", "x", ""}, {"b", "/p", "y", "z"}});
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.problems().size(), 2u);
    EXPECT_STREQ(error.what(), "a: x\nb: /p: y; z");
  }
}

}  // namespace
}  // namespace stepcast
