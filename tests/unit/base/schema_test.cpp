// Schemas: what is refused and how it is named, what null means, defaults.
#include "base/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/data_folder.h"
#include "base/json.h"

namespace stepcast {
namespace {

using testing::HasSubstr;

const Json kLeast = {{"model", "llama-3-8b"},
                     {"cluster", {{"topology", "dgx-h100"}, {"gpus", 8}}},
                     {"batch", {{"seq_len", 4096}, {"global", 8}}}};

std::vector<Problem> problems_of(const Json& document, const std::string& prefix = "",
                                 const std::string& schema = "scenario") {
  std::vector<Problem> problems;
  check_schema(document, schema, "f.json", prefix, problems);
  return problems;
}

// The least scenario with one value changed.
Json with(const std::string& pointer, const Json& value) {
  Json document = kLeast;
  document[Json::json_pointer(pointer)] = value;
  return document;
}

Problem only_problem(const Json& document, const std::string& prefix = "") {
  const std::vector<Problem> problems = problems_of(document, prefix);
  if (problems.size() != 1) {
    ADD_FAILURE() << problems.size() << " problems of " << document.dump();
    return {};
  }
  EXPECT_EQ(problems[0].file, "f.json");
  return problems[0];
}

std::vector<std::string> pointers_of(const std::vector<Problem>& problems) {
  std::vector<std::string> pointers;
  for (const Problem& problem : problems) pointers.push_back(problem.pointer);
  std::sort(pointers.begin(), pointers.end());
  return pointers;
}

TEST(CheckSchema, TakesTheLeastThatIsRequired) { EXPECT_TRUE(problems_of(kLeast).empty()); }

TEST(CheckSchema, NamesAnUnknownKeyWithTheNearestKnownOne) {
  const Problem problem = only_problem(with("/layout/sequence_paralel", true));
  EXPECT_EQ(problem.pointer, "/layout/sequence_paralel");
  EXPECT_EQ(problem.found, "unknown key");
  EXPECT_THAT(problem.allowed, HasSubstr("did you mean \"sequence_parallel\"?"));
}

TEST(CheckSchema, EscapesTheUnknownKeyInItsPointer) {
  Json document = kLeast;
  document["layout"]["t/p"] = 1;
  EXPECT_EQ(only_problem(document).pointer, "/layout/t~1p");
}

TEST(CheckSchema, NamesAMissingKeyAndWhatItMustBe) {
  Json document = kLeast;
  document["batch"].erase("seq_len");
  const Problem problem = only_problem(document);
  EXPECT_EQ(problem.pointer, "/batch/seq_len");
  EXPECT_EQ(problem.found, "missing");
  EXPECT_THAT(problem.allowed, HasSubstr("an integer"));
}

TEST(CheckSchema, NamesAWrongType) {
  for (const Json& value : {Json("8"), Json(8.5), Json(true), Json::array({8}), Json::object()}) {
    const Problem problem = only_problem(with("/layout/tp", value));
    EXPECT_EQ(problem.pointer, "/layout/tp");
    EXPECT_EQ(problem.found, value.dump());
    EXPECT_THAT(problem.allowed, HasSubstr("an integer"));
  }
}

TEST(CheckSchema, NamesAValueOutOfRangeWithTheRange) {
  for (const std::int64_t value : {std::int64_t{0}, std::int64_t{-8}, std::int64_t{1000001}}) {
    const Problem problem = only_problem(with("/layout/tp", value));
    EXPECT_EQ(problem.pointer, "/layout/tp");
    EXPECT_EQ(problem.found, std::to_string(value));
    EXPECT_THAT(problem.allowed, HasSubstr("1000000"));
  }
  EXPECT_TRUE(problems_of(with("/layout/tp", 1)).empty());
  EXPECT_TRUE(problems_of(with("/layout/tp", 1000000)).empty());
}

TEST(CheckSchema, ListsTheNamesOfAnEnumeration) {
  const Problem problem = only_problem(with("/precision/recipe", "fp6"));
  EXPECT_EQ(problem.pointer, "/precision/recipe");
  EXPECT_EQ(problem.found, "\"fp6\"");
  for (const char* name : {"bf16", "fp8-block", "mxfp8"}) EXPECT_THAT(problem.allowed, HasSubstr(name));
}

TEST(CheckSchema, ReachesIntoLists) {
  const Problem problem = only_problem(with("/recompute/modules", {"core_attn", "attention"}));
  EXPECT_EQ(problem.pointer, "/recompute/modules/1");
  EXPECT_THAT(problem.allowed, HasSubstr("core_attn"));
}

TEST(CheckSchema, FindsEveryProblemAtOnce) {
  Json document = with("/layout/tp", 0);
  document["layout"]["ppp"] = 2;
  document["batch"].erase("global");
  document["overlap"]["tp"] = "yes";
  document["nonsense"] = 1;
  EXPECT_THAT(pointers_of(problems_of(document)),
              testing::IsSupersetOf({"/batch/global", "/layout/ppp", "/nonsense", "/overlap/tp"}));
}

TEST(CheckSchema, PutsThePrefixBeforeEveryPointer) {
  EXPECT_EQ(only_problem(with("/layout/tp", 0), "/runs/3/scenario").pointer, "/runs/3/scenario/layout/tp");
}

TEST(CheckSchema, RefusesADocumentThatIsNoObject) {
  for (const Json& document : {Json::array(), Json(1), Json("x"), Json(nullptr), Json(true)}) {
    const std::vector<Problem> problems = problems_of(document, "/p");
    ASSERT_FALSE(problems.empty()) << document.dump();
    EXPECT_EQ(problems[0].pointer, "/p");
    EXPECT_THAT(problems[0].allowed, HasSubstr("object"));
  }
}

TEST(CheckSchema, TakesNullForNotGiven) {
  EXPECT_TRUE(problems_of(with("/layout/tp", nullptr)).empty());
  EXPECT_TRUE(problems_of(with("/layout", nullptr)).empty());
  EXPECT_TRUE(problems_of(with("/recompute/layers", nullptr)).empty());
  EXPECT_EQ(only_problem(with("/batch/seq_len", nullptr)).found, "missing");
  EXPECT_EQ(only_problem(with("/batch/nonsense", nullptr)).found, "unknown key");
}

TEST(CheckSchema, KeepsTheNullsOfFree) {
  Json document = kLeast;
  document["free"] = {{"/layout/tp", nullptr}};
  EXPECT_TRUE(problems_of(document).empty());
  EXPECT_TRUE(with_defaults(document, "scenario")["free"].contains("/layout/tp"));
}

// What is shown of a value is short, whole characters, and never trips over text that is not UTF-8.
TEST(CheckSchema, ShortensLongValues) {
  const Problem problem = only_problem(with("/layout/tp", std::string(10000, 'x')));
  EXPECT_LE(problem.found.size(), 60u);
  EXPECT_THAT(problem.found, HasSubstr("..."));
}

TEST(CheckSchema, ShortensBetweenCharacters) {
  for (const std::string& start : {std::string(), std::string("a")}) {
    std::string text = start;
    for (int i = 0; i < 100; ++i) text += "\xc3\xa9";
    const Problem problem = only_problem(with("/layout/tp", text));
    EXPECT_NO_THROW((void)Json(problem.found).dump()) << problem.found;
  }
}

TEST(CheckSchema, SurvivesTextThatIsNotUtf8) {
  for (const char* pointer : {"/layout/tp", "/precision/recipe", "/software/date", "/cluster/gpus"})
    EXPECT_EQ(only_problem(with(pointer, "\xff\xfe")).pointer, pointer);
  Json document = kLeast;
  document["\xff"] = 1;
  EXPECT_EQ(only_problem(document).found, "unknown key");
}

TEST(WithDefaults, FillsInEveryDefault) {
  const Json filled = with_defaults(kLeast, "scenario");
  EXPECT_EQ(filled["schema"], "stepcast/scenario/1");
  EXPECT_EQ(filled["layout"]["tp"], 1);
  EXPECT_EQ(filled["layout"]["schedule"], "auto");
  EXPECT_EQ(filled["precision"]["recipe"], "bf16");
  EXPECT_EQ(filled["overlap"]["grad_reduce"], true);
  EXPECT_EQ(filled["offload"]["experts"]["resident_fraction"], 1);
  EXPECT_EQ(filled["moe"]["routing"]["kind"], "balanced");
  EXPECT_EQ(filled["batch"]["micro"], 1);
  EXPECT_EQ(filled.begin().key(), "schema");  // keys in the schema's order
}

TEST(WithDefaults, KeepsWhatIsGiven) {
  Json document = with("/layout/tp", 8);
  document["overlap"] = {{"grad_reduce", false}};
  const Json filled = with_defaults(document, "scenario");
  EXPECT_EQ(filled["layout"]["tp"], 8);
  EXPECT_EQ(filled["layout"]["pp"], 1);
  EXPECT_EQ(filled["overlap"]["grad_reduce"], false);
  EXPECT_EQ(filled["overlap"]["p2p"], true);
}

TEST(WithDefaults, FillsInForNull) {
  EXPECT_EQ(with_defaults(with("/layout/tp", nullptr), "scenario")["layout"]["tp"], 1);
  EXPECT_EQ(with_defaults(with("/layout", nullptr), "scenario")["layout"]["cp"], 1);
  EXPECT_FALSE(with_defaults(with("/recompute/layers", nullptr), "scenario")["recompute"].contains("layers"));
}

TEST(WithDefaults, IsIdempotent) {
  const Json once = with_defaults(with("/layout/tp", 4), "scenario");
  EXPECT_EQ(with_defaults(once, "scenario").dump(), once.dump());
}

// Every default is a value that the schema takes.
TEST(WithDefaults, GivesAValidDocument) {
  EXPECT_TRUE(problems_of(with_defaults(kLeast, "scenario")).empty());
}

TEST(Schemas, OfShippedFilesAreKept) {
  const auto check = [](const std::string& folder, const std::string& schema) {
    for (const std::string& name : data_names(folder)) {
      const Json document = load_json(data_folder() / folder / (name + ".json"));
      for (const Problem& problem : problems_of(document, "", schema))
        ADD_FAILURE() << name << to_string(problem);
    }
  };
  check("scenarios", "scenario");
  check("scenarios/models", "model");
  check("topologies", "topology");
  check("calib/profiles", "profile");
  check("calib/stacks", "stack");
}

}  // namespace
}  // namespace stepcast
