// Forecasts against runs: the status of each kind of record, and the summary's numbers worked out by hand.
#include "observe/validate.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"

namespace stepcast {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::vector<RunOutcome> validate(const fs::path& file) {
  return validate_runs({file}, 1, [](std::size_t, std::size_t) {});
}

fs::path mixed() { return fs::path(STEPCAST_SOURCE_DIR) / "tests" / "data" / "runs" / "mixed.json"; }

// --- records ---

TEST(Validate, GivesEachRecordItsStatus) {
  const std::vector<RunOutcome> outcomes = validate(mixed());
  ASSERT_EQ(outcomes.size(), 4u);
  EXPECT_EQ(outcomes[0].status, "ok") << outcomes[0].why;
  EXPECT_EQ(outcomes[1].status, "skipped");
  EXPECT_THAT(outcomes[1].why, HasSubstr("zb-v"));
  EXPECT_THAT(outcomes[1].why, HasSubstr("/runs/1/scenario/layout/schedule"));
  EXPECT_EQ(outcomes[2].status, "error");
  EXPECT_THAT(outcomes[2].why, HasSubstr("/runs/2/scenario/layout/tp"));
  EXPECT_EQ(outcomes[3].status, "ok") << outcomes[3].why;
}

TEST(Validate, ComparesLikeWithLike) {
  const RunOutcome ok = validate(mixed())[0];
  ASSERT_TRUE(ok.step_time_error && ok.memory_error);
  EXPECT_GT(ok.predicted_s, 0);
  EXPECT_DOUBLE_EQ(*ok.step_time_error, ok.predicted_s / 0.1 - 1);
  EXPECT_DOUBLE_EQ(*ok.memory_error, ok.predicted["peak_memory_bytes"].get<double>() / 2e10 - 1);
  // allocated, not what the device shows
  EXPECT_LT(ok.predicted["peak_memory_bytes"].get<double>(), ok.predicted["device_bytes"].get<double>());
  EXPECT_FALSE(ok.oom_predicted);
}

TEST(Validate, ForecastsARunThatRanOutOfMemory) {
  const RunOutcome oom = validate(mixed())[3];
  EXPECT_TRUE(oom.oom_predicted);  // 405e9 parameters on 8 GPUs
  EXPECT_FALSE(oom.step_time_error.has_value());
  EXPECT_FALSE(oom.memory_error.has_value());
}

TEST(Validate, DocumentsEveryRecordInOrder) {
  const Json document = validation_document(validate(mixed()));
  EXPECT_EQ(document.begin().key(), "schema");
  EXPECT_EQ(document["schema"], "stepcast/validation/1");
  ASSERT_EQ(document["runs"].size(), 4u);
  EXPECT_EQ(document["runs"][0]["id"], "ok");
  EXPECT_TRUE(document["runs"][0].contains("step_time_error"));
  EXPECT_TRUE(document["runs"][0].contains("memory_error"));
  EXPECT_EQ(document["runs"][0]["oom_predicted"], false);
  EXPECT_EQ(document["runs"][0]["measured"]["step_time_s"], 0.1);
  EXPECT_TRUE(document["runs"][1].contains("why"));
  EXPECT_FALSE(document["runs"][1].contains("predicted"));
  EXPECT_FALSE(document["runs"][2].contains("step_time_error"));
  EXPECT_EQ(document["summary"]["n"], 1);  // only the one that was forecast and has a time
  EXPECT_EQ(document["summary"]["oom"]["tp"], 1);
  EXPECT_EQ(document["summary"]["oom_elsewhere"]["n"], 1);
  EXPECT_EQ(document["by"]["completeness"]["full"]["n"], 1);
  EXPECT_EQ(document["by"]["size"]["1-8"]["n"], 1);
  EXPECT_EQ(document["by"]["kind"]["dense"]["n"], 1);
  EXPECT_EQ(document["by"]["source"]["A test"]["n"], 1);
  EXPECT_FALSE(validation_text(validate(mixed()), document).empty());
}

TEST(Validate, ReportsProgressForEveryRecord) {
  std::atomic<std::size_t> calls{0}, largest{0};
  validate_runs({mixed(), mixed()}, 2, [&](std::size_t done, std::size_t all) {
    EXPECT_EQ(all, 8u);
    ++calls;
    if (done == all) largest = done;
  });
  EXPECT_EQ(calls, 8u);
  EXPECT_EQ(largest, 8u);
}

class RunFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("stepcast-validate-test." + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const Json& json, const std::string& name = "runs.json") const {
    write_file(folder_ / name, json.dump());
    return folder_ / name;
  }
  // The first record of the shipped file, changed.
  static Json runs_with(const std::string& pointer, const Json& value) {
    Json json = load_json(mixed());
    json["runs"] = Json::array({json["runs"][0]});
    json["runs"][0][Json::json_pointer(pointer)] = value;
    return json;
  }

  fs::path folder_;
};

TEST_F(RunFiles, ThatAreNoneAreRefusedTogether) {
  const fs::path bad = write({{"schema", "stepcast/scenario/1"}}, "bad.json");
  try {
    validate_runs({bad, folder_ / "none.json", mixed()}, 1, [](std::size_t, std::size_t) {});
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("bad.json"));
    EXPECT_THAT(error.what(), HasSubstr("none.json"));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("mixed.json")));
  }
}

TEST_F(RunFiles, ResolveModelsBesideThemselves) {
  write(load_json(mixed())["runs"][0]["scenario"]["model"], "model.json");
  EXPECT_EQ(validate(write(runs_with("/scenario/model", "model.json")))[0].status, "ok");
  EXPECT_EQ(validate(write(runs_with("/scenario/model", "other.json")))[0].status, "error");
}

TEST_F(RunFiles, KeepGoingAfterABrokenModelFile) {
  write_file(folder_ / "broken.json", "{\"name\": \"\xff\"}");
  const std::vector<RunOutcome> outcomes = validate(write(runs_with("/scenario/model", "broken.json")));
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes[0].status, "error");
  EXPECT_THAT(outcomes[0].why, HasSubstr("broken.json"));
}

// Null is "not given".
TEST_F(RunFiles, TakeNullForNotGiven) {
  std::vector<RunOutcome> outcomes;
  ASSERT_NO_THROW(outcomes = validate(write(runs_with("/measured/step_time_s", nullptr))));
  EXPECT_EQ(outcomes[0].status, "ok");
  EXPECT_FALSE(outcomes[0].step_time_error.has_value());
  ASSERT_NO_THROW(outcomes = validate(write(runs_with("/completeness", nullptr))));
  EXPECT_EQ(outcomes[0].completeness, "full");
}

TEST_F(RunFiles, SayTheKindOfMemoryThatWasMeasured) {
  const auto predicted = [&](const char* kind) {
    return validate(write(runs_with("/measured/peak_memory_kind", kind)))[0]
        .predicted["peak_memory_bytes"]
        .get<double>();
  };
  EXPECT_LT(predicted("allocated"), predicted("reserved"));
  EXPECT_LT(predicted("reserved"), predicted("device"));
}

// --- the summary ---

RunOutcome outcome(const std::string& id, double predicted, double measured) {
  RunOutcome o;
  o.id = id;
  o.series = "s";
  o.source = "Paper, table 1";
  o.completeness = "full";
  o.topology = "dgx-h100";
  o.recipe = "bf16";
  o.kind = "dense";
  o.size = "1-8";
  o.workload = "w";
  o.status = "ok";
  o.predicted = Json::object();
  o.measured_json = {{"step_time_s", measured}};
  o.measured.step_time_s = measured;
  o.predicted_s = o.flops_only_s = predicted;
  o.step_time_error = predicted / measured - 1;
  return o;
}

// Errors +10 %, -20 %, +30 % and 0.
std::vector<RunOutcome> four() {
  return {outcome("a", 1.1, 1), outcome("b", 1.6, 2), outcome("c", 5.2, 4), outcome("d", 8, 8)};
}

TEST(Summary, HoldsTheErrors) {
  const Json s = validation_document(four())["summary"];
  EXPECT_EQ(s["n"], 4);
  EXPECT_NEAR(s["mean_abs_error"].get<double>(), 0.15, 1e-12);    // (0.1 + 0.2 + 0.3 + 0) / 4
  EXPECT_NEAR(s["median_abs_error"].get<double>(), 0.15, 1e-12);  // between 0.1 and 0.2
  EXPECT_NEAR(s["p90_abs_error"].get<double>(), 0.27, 1e-12);     // 0.9 x 3 = 2.7: 0.2 + 0.7 x 0.1
  EXPECT_NEAR(s["max_abs_error"].get<double>(), 0.3, 1e-12);
  EXPECT_NEAR(s["bias"].get<double>(), 0.05, 1e-12);  // (0.1 - 0.2 + 0.3 + 0) / 4
}

TEST(Summary, HoldsTheIntervals) {
  std::vector<RunOutcome> runs = four();
  for (std::size_t i = 0; i < 4; ++i) runs[i].interval_width = 0.1 * static_cast<double>(i + 1);
  runs[1].in_interval = true;
  const Json s = validation_document(runs)["summary"];
  EXPECT_NEAR(s["interval_coverage"].get<double>(), 0.25, 1e-12);
  EXPECT_NEAR(s["median_interval_width"].get<double>(), 0.25, 1e-12);
}

TEST(Summary, HoldsTheMemoryErrors) {
  std::vector<RunOutcome> runs = four();
  runs[0].memory_error = 0.1;
  runs[1].memory_error = -0.3;
  EXPECT_NEAR(validation_document(runs)["summary"]["memory_mean_abs_error"].get<double>(), 0.2, 1e-12);
}

// Of the series that ran out of memory once: one found, one missed, one false alarm, one right. Of the other
// series one of two is predicted not to fit.
TEST(Summary, CountsOutOfMemory) {
  std::vector<RunOutcome> runs(6);
  const bool measured[] = {true, true, false, false, false, false};
  const bool predicted[] = {true, false, true, false, true, false};
  for (std::size_t i = 0; i < 6; ++i) {
    runs[i].status = "ok";
    runs[i].series = i < 4 ? "ran out" : "ran";
    runs[i].measured.oom = measured[i];
    runs[i].oom_predicted = predicted[i];
  }
  const Json s = validation_document(runs)["summary"];
  EXPECT_EQ(s["oom"].dump(), R"({"tp":1,"fp":1,"tn":1,"fn":1,"f1":0.5})");
  EXPECT_EQ(s["oom_elsewhere"].dump(), R"({"n":2,"fp":1})");
  runs[3].status = "error";  // what was not forecast is not counted
  EXPECT_EQ(validation_document(runs)["summary"]["oom"]["tn"], 0);
}

TEST(Summary, OfNothingIsFinite) {
  const Json document = validation_document({});
  EXPECT_EQ(document["summary"]["n"], 0);
  for (const auto& [key, value] : document["summary"].items())
    EXPECT_TRUE(!value.is_number() || value.get<double>() == 0) << key;
  EXPECT_TRUE(document["rankings"].empty());
  EXPECT_FALSE(validation_text({}, document).empty());
}

TEST(Summary, IsSplitByClass) {
  std::vector<RunOutcome> runs = four();
  runs[0].source = "Other paper (arXiv 1), table 2";
  runs[1].recipe = "fp8-block";
  runs[2].status = "error";
  runs[2].step_time_error.reset();
  runs[2].topology = runs[2].recipe = runs[2].kind = runs[2].size = "";  // it was not read
  const Json by = validation_document(runs)["by"];
  EXPECT_EQ(by["source"]["Other paper (arXiv 1)"]["n"], 1);
  EXPECT_EQ(by["source"]["Paper"]["n"], 2);
  EXPECT_EQ(by["recipe"]["bf16"]["n"], 2);
  EXPECT_NEAR(by["recipe"]["fp8-block"]["mean_abs_error"].get<double>(), 0.2, 1e-12);
  EXPECT_EQ(by["topology"].size(), 1u);
  for (const char* key : {"source", "topology", "recipe", "kind", "completeness", "size"})
    EXPECT_TRUE(by.contains(key));
}

// --- rankings ---

TEST(Rankings, HaveSpearmanAndRegret) {
  // Predicted 1, 2, 3 and measured 2, 1, 3: ranks differ by 1, 1, 0: 1 - 6 x 2 / (3 x 8) = 0.5. We pick the
  // first, which takes 2 where the best takes 1.
  const std::vector<RunOutcome> runs = {outcome("a", 1, 2), outcome("b", 2, 1), outcome("c", 3, 3)};
  const Json rankings = validation_document(runs)["rankings"];
  ASSERT_EQ(rankings.size(), 1u);
  EXPECT_EQ(rankings[0]["series"], "s");
  EXPECT_EQ(rankings[0]["workload"], "w");
  EXPECT_EQ(rankings[0]["n"], 3);
  EXPECT_NEAR(rankings[0]["spearman"].get<double>(), 0.5, 1e-12);
  EXPECT_NEAR(rankings[0]["regret"].get<double>(), 1, 1e-12);
}

TEST(Rankings, OfAPerfectForecastAreOneAndWithoutRegret) {
  const Json r =
      validation_document({outcome("a", 3, 9), outcome("b", 1, 2), outcome("c", 2, 4)})["rankings"][0];
  EXPECT_NEAR(r["spearman"].get<double>(), 1, 1e-12);
  EXPECT_NEAR(r["regret"].get<double>(), 0, 1e-12);
}

TEST(Rankings, ShareTheMeanRankOfTies) {
  std::vector<RunOutcome> runs = {outcome("a", 1, 2), outcome("b", 2, 1), outcome("c", 3, 3)};
  // FLOPs alone 1, 1, 2 have the ranks 0.5, 0.5, 2 against 1, 0, 2: 1.5 / sqrt(1.5 x 2)
  runs[0].flops_only_s = runs[1].flops_only_s = 1;
  runs[2].flops_only_s = 2;
  EXPECT_NEAR(validation_document(runs)["rankings"][0]["spearman_flops_only"].get<double>(),
              1.5 / std::sqrt(3), 1e-12);
  runs[2].flops_only_s = 1;  // all the same: no order
  EXPECT_EQ(validation_document(runs)["rankings"][0]["spearman_flops_only"], 0);
}

TEST(Rankings, AreOfOneWorkloadAndOfThreeRuns) {
  std::vector<RunOutcome> runs = four();
  runs[0].workload = "other";
  EXPECT_EQ(validation_document(runs)["rankings"].size(), 1u);
  EXPECT_EQ(validation_document(runs)["rankings"][0]["n"], 3);
  runs[1].series = "other";
  EXPECT_TRUE(validation_document(runs)["rankings"].empty());
}

// A run that ran out though it should fit is missed; one that ran though it should not is a false alarm. The
// furthest off comes first, and so many are shown.
TEST(Summary, ListsWhatMemoryWasCalledWrongly) {
  std::vector<RunOutcome> runs;
  for (int i = 0; i < 25; ++i) {
    runs.push_back(outcome(fmt::format("run{:02}", i), 1, 1));
    runs.back().capacity_bytes = 80 * 1073741824.0;
    runs.back().device_bytes = (81 + i) * 1073741824.0;
    runs.back().oom_predicted = true;
  }
  runs.push_back(outcome("out", 1, 1));
  runs.back().measured.oom = true;
  runs.back().device_bytes = 30 * 1073741824.0;
  runs.back().capacity_bytes = 80 * 1073741824.0;
  const std::string text = validation_text(runs, validation_document(runs));
  EXPECT_THAT(text, HasSubstr("missed or falsely called (26)"));
  EXPECT_THAT(text, HasSubstr("missed  predicted   30.0 of  80.0 GiB ( -50.0)  out"));
  EXPECT_THAT(text, HasSubstr("false   predicted  105.0 of  80.0 GiB ( +25.0)  run24"));
  EXPECT_THAT(text, HasSubstr("... 6 more"));
  EXPECT_LT(text.find("  out\n"), text.find("run24"));
}

TEST(Summary, ShowsMemoryByKind) {
  std::vector<RunOutcome> runs = four();
  runs[0].memory_error = 0.04;
  runs[0].measured.peak_memory_kind = "allocated";
  runs[1].memory_error = -0.02;
  runs[1].measured.peak_memory_kind = "reserved";
  const Json document = validation_document(runs);
  EXPECT_EQ(document["summary"]["memory_kinds"], (Json{{"allocated", 1}, {"reserved", 1}}));
  EXPECT_THAT(validation_text(runs, document), HasSubstr("3.0% of 1 allocated, 1 reserved"));
}

}  // namespace
}  // namespace stepcast
