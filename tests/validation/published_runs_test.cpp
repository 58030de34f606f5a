// The error table on every published run that ships. The bound is what one constant of FLOP/s a GPU kind,
// recipe and dense or MoE, fitted to these very runs, reaches (0.29); nothing here is fitted to them.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "observe/validate.h"

namespace stepcast {
namespace {

const Json& document() {
  static const Json result = [] {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(STEPCAST_SOURCE_DIR) /
                                                                 "scenarios" / "published"))
      files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return validation_document(validate_runs(files, 0, [](std::size_t, std::size_t) {}));
  }();
  return result;
}

TEST(PublishedRuns, AreAllForecastOrSkippedForASchedule) {
  EXPECT_EQ(document()["runs"].size(), 1326U);
  for (const Json& run : document()["runs"]) {
    if (run["status"] == "ok") continue;
    EXPECT_EQ(run["status"], "skipped") << run["id"] << run["why"];
    EXPECT_NE(run["why"].get<std::string>().find("schedule"), std::string::npos) << run["why"];
  }
}

TEST(PublishedRuns, StepTimesBeatOneConstantAGpuKind) {
  const Json& summary = document()["summary"];
  EXPECT_GT(summary["n"].get<int>(), 1100);
  EXPECT_LT(summary["mean_abs_error"].get<double>(), 0.20);
  EXPECT_LT(summary["median_abs_error"].get<double>(), 0.15);
}

TEST(PublishedRuns, OutOfMemoryIsSeen) { EXPECT_GT(document()["summary"]["oom"]["f1"].get<double>(), 0.85); }

}  // namespace
}  // namespace stepcast
