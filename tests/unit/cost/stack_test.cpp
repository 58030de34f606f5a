// Which stack file and entry a name and a date stand for.
#include "cost/stack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/data_folder.h"
#include "base/json.h"

namespace stepcast {
namespace {

using testing::HasSubstr;

Stack find(const std::string& name, const std::string& date = "", bool fsdp_like = false) {
  std::vector<std::string> assumptions;
  Stack stack = find_stack(name, date, fsdp_like, assumptions);
  EXPECT_TRUE(assumptions.empty()) << assumptions.front();
  return stack;
}

Json entries_of(const std::string& name) {
  return load_json(data_folder() / "calib" / "stacks" / (name + ".json"))["entries"];
}

TEST(FindStack, TakesTheNewestEntryWithoutADate) {
  for (const char* name : {"megatron-lm", "fsdp"}) {
    const Stack stack = find(name);
    EXPECT_EQ(stack.name, name);
    EXPECT_EQ(stack.date, entries_of(name).back()["date"].get<std::string>());
  }
}

TEST(FindStack, TakesTheNewestEntryThatIsNotAfterTheDate) {
  for (const std::string name : {"megatron-lm", "fsdp"}) {
    const Json entries = entries_of(name);
    ASSERT_GE(entries.size(), 2u);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const std::string date = entries[i]["date"];
      EXPECT_EQ(find(name, date).date, date);
    }
    // one month before the second entry: still the first
    EXPECT_EQ(find(name, "2023-01").date, entries[0]["date"].get<std::string>());
  }
  EXPECT_EQ(find("megatron-lm", "2023-06").date, "2019-09");
  EXPECT_EQ(find("megatron-lm", "2023-07").date, "2023-07");
}

// The contract: YYYY is its December.
TEST(FindStack, ReadsAYearAsItsDecember) {
  EXPECT_EQ(find("megatron-lm", "2023").date, "2023-07");
  EXPECT_EQ(find("megatron-lm", "2022").date, "2019-09");
}

TEST(FindStack, TakesTheOldestEntryForWhatIsBeforeIt) {
  EXPECT_EQ(find("megatron-lm", "2001-01").date, "2019-09");
  EXPECT_GT(find("megatron-lm", "2001-01").launch_s, 0);
}

// An entry overrides what it names; everything else goes on.
TEST(FindStack, KeepsTheConstantsOfOlderEntries) {
  for (const std::string name : {"megatron-lm", "fsdp"}) {
    Json expected = Json::object();
    for (const Json& entry : entries_of(name)) {
      if (entry.contains("attention")) expected["attention"] = entry["attention"];
      const Json constants = entry.value("constants", Json::object());
      for (const auto& [key, constant] : constants.items()) expected[key] = constant["value"];
      const Json got = stack_json(find(name, entry["date"]));
      for (const auto& [key, value] : expected.items()) {
        ASSERT_TRUE(got.contains(key)) << key;
        EXPECT_EQ(got[key], value) << name << ' ' << entry["date"] << ' ' << key;
      }
    }
  }
}

TEST(FindStack, SaysWhatItsConstantsStandFor) {
  int names = 0;
  for (const std::string& file : data_names("calib/stacks")) {
    const Json document = load_json(data_folder() / "calib" / "stacks" / (file + ".json"));
    for (const Json& name : document.value("stands_for", Json::array())) {
      std::vector<std::string> assumptions;
      EXPECT_EQ(find_stack(name, "", false, assumptions).name, file);
      ASSERT_EQ(assumptions.size(), 1u) << name;
      EXPECT_THAT(assumptions[0], HasSubstr(name.get<std::string>()));
      EXPECT_THAT(assumptions[0], HasSubstr(file));
      ++names;
    }
  }
  EXPECT_GT(names, 0);
}

// A file that builds on another has all of it but what it names itself.
TEST(FindStack, BuildsOnTheFileThatItIsLike) {
  int files = 0;
  for (const std::string& name : data_names("calib/stacks")) {
    const Json document = load_json(data_folder() / "calib" / "stacks" / (name + ".json"));
    if (!document.contains("like")) continue;
    ++files;
    Json expected = stack_json(find(document["like"]));
    for (const Json& entry : document["entries"]) {
      if (entry.contains("attention")) expected["attention"] = entry["attention"];
      for (const char* section : {"constants", "practices"}) {
        const Json named = entry.value(section, Json::object());
        for (const auto& [key, constant] : named.items()) expected[key] = constant["value"];
      }
    }
    expected["name"] = name;
    const Json got = stack_json(find(name));
    expected["date"] = got["date"];
    EXPECT_EQ(got, expected) << name;
  }
  EXPECT_GT(files, 0);
}

TEST(FindStack, GivesAnUnknownNameTheNearestKindAndSaysSo) {
  for (const bool fsdp_like : {false, true}) {
    std::vector<std::string> assumptions;
    const Stack stack = find_stack("my-own", "", fsdp_like, assumptions);
    EXPECT_EQ(stack.kind, fsdp_like ? "fsdp" : "megatron");
    ASSERT_EQ(assumptions.size(), 1u);
    EXPECT_THAT(assumptions[0], HasSubstr("my-own"));
    EXPECT_THAT(assumptions[0], HasSubstr("unknown"));
  }
}

TEST(FindStack, DoesNotTakeANameForAPath) {
  for (const char* name : {"", "../stacks/fsdp", "fsdp.json", "/etc/passwd", ".."}) {
    std::vector<std::string> assumptions;
    EXPECT_EQ(find_stack(name, "", false, assumptions).name, "megatron-lm") << name;
    EXPECT_EQ(assumptions.size(), 1u) << name;
  }
}

TEST(ShippedStacks, HaveEntriesOldestFirst) {
  for (const std::string& name : data_names("calib/stacks")) {
    std::string last;
    for (const Json& entry : entries_of(name)) {
      EXPECT_LT(last, entry["date"].get<std::string>()) << name;
      last = entry["date"];
    }
  }
}

// Every constant says its unit, range and source, lies in its range, and is one that the program knows.
TEST(ShippedStacks, NameEveryConstantAndItsSource) {
  for (const std::string& name : data_names("calib/stacks")) {
    const Json known = stack_json(find(name));
    for (const Json& entry : entries_of(name)) {
      const Json constants = entry.value("constants", Json::object());
      for (const auto& [key, constant] : constants.items()) {
        EXPECT_TRUE(known.contains(key)) << name << ' ' << key;
        EXPECT_FALSE(constant["source"].get<std::string>().empty()) << key;
        EXPECT_FALSE(constant["unit"].get<std::string>().empty()) << key;
        EXPECT_LE(constant["range"][0].get<double>(), constant["value"].get<double>()) << name << ' ' << key;
        EXPECT_GE(constant["range"][1].get<double>(), constant["value"].get<double>()) << name << ' ' << key;
      }
    }
  }
}

TEST(ShippedStacks, AreOneForEachName) {
  std::set<std::string> names;
  for (const std::string& name : data_names("calib/stacks")) {
    const Json document = load_json(data_folder() / "calib" / "stacks" / (name + ".json"));
    EXPECT_EQ(document["name"], name);
    EXPECT_TRUE(names.insert(name).second);
    for (const Json& other : document.value("stands_for", Json::array()))
      EXPECT_TRUE(names.insert(other.get<std::string>()).second) << other;
  }
  // those that the contract names
  for (const char* name :
       {"megatron-lm", "megatron-bridge", "nemo", "mlperf-nvidia", "megatron-deepspeed", "fsdp", "torchtitan",
        "llm-foundry", "internevo", "maxtext", "aleph-alpha", "kempnerforge", "meta", "sagemaker"})
    EXPECT_TRUE(names.contains(name)) << name;
}

}  // namespace
}  // namespace stepcast
