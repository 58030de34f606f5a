#include "memory/advice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "unit/memory/fixtures.h"

namespace stepcast::memory_test {
namespace {

bool any_starts_with(const std::vector<std::string>& lines, const std::string& text) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.rfind(text, 0) == 0; });
}

TEST(Advice, SaysNothingWhenItFits) {
  const Scenario s = scenario(llama70b(), 256, layout(8, 1, 8));
  const MemoryReport report = report_of(s);
  ASSERT_TRUE(report.fits());
  EXPECT_TRUE(what_would_fit(s, report).empty());
}

TEST(Advice, NamesTheGapTheRoomAndChanges) {
  Scenario s = scenario(llama70b(), 64, layout(8, 1, 1));
  s.batch.micro = 2;
  const MemoryReport report = report_of(s);
  ASSERT_FALSE(report.fits());
  const std::vector<std::string> lines = what_would_fit(s, report);
  EXPECT_TRUE(any_starts_with(lines, "does not fit by "));
  EXPECT_TRUE(any_starts_with(lines, "PP rank 0 holds "));
  for (const char* change : {"recompute.granularity full: ", "batch.micro 1: ", "optimizer.grad_dtype bf16: ",
                             "layout.pp 2: ", "offload.optimizer_fraction 1: "})
    EXPECT_TRUE(any_starts_with(lines, change)) << change;
  EXPECT_FALSE(any_starts_with(lines, "layout.ep"));
  EXPECT_FALSE(any_starts_with(lines, "layout.tp"));  // 16 is more than a node
}

// 70.55e9 parameters x 18 bytes over 79.2 GiB less 0.9e9 + 2 x 0.3e9 bytes, over 1.05: 16 GPUs.
TEST(Advice, CountsGpusForTheStates) {
  const Scenario s = scenario(llama70b(), 8, layout(8, 1, 1));
  EXPECT_EQ(gpus_for_states(s, report_of(s)), 16);
}

TEST(Advice, OffersOnlyLegalLayouts) {
  const Scenario s = scenario(deepseek_v3(), 64, with_experts(layout(1, 1, 1), 64));
  const MemoryReport report = report_of(s);
  ASSERT_FALSE(report.fits());
  // 64 GPUs do not divide by ep 128; pp 2 with ep 64 needs 128.
  const std::vector<std::string> lines = what_would_fit(s, report);
  EXPECT_FALSE(any_starts_with(lines, "layout.ep"));
  EXPECT_FALSE(any_starts_with(lines, "layout.pp"));
}

TEST(Advice, WarnsNearTheLimit) {
  const Scenario s = scenario(llama70b(), 256, layout(8, 1, 8));
  MemoryReport report = report_of(s);
  EXPECT_TRUE(memory_warnings(report).empty());
  report.capacity = report.peak().device / 0.97;
  EXPECT_EQ(memory_warnings(report).size(), 1U);
  report.capacity = report.peak().device / 1.1;
  EXPECT_TRUE(memory_warnings(report).empty());
}

}  // namespace
}  // namespace stepcast::memory_test
