// Orders, tables and peaks of the pipeline schedules. Ids in comments are those of the domain's oracles.
#include "schedule/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace stepcast {
namespace {

PipelineShape shape(std::int64_t pp, std::int64_t microbatches, std::int64_t chunks = 1,
                    std::int64_t group = 0, std::int64_t extra_warmup = 0) {
  return {pp, chunks, microbatches, group > 0 ? group : pp, extra_warmup};
}

// "F0.0 B2.1": pass, stage = chunk * pp + rank, micro-batch.
std::string text(const std::vector<PipelineOp>& order, std::int64_t pp, std::int64_t rank) {
  std::ostringstream out;
  for (const PipelineOp& op : order)
    out << (out.tellp() > 0 ? " " : "") << op.pass << op.chunk * pp + rank << '.' << op.microbatch;
  return out.str();
}

std::vector<std::int64_t> peaks(ScheduleOrder order, const PipelineShape& s) {
  std::vector<std::int64_t> all;
  for (std::int64_t rank = 0; rank < s.pp; ++rank) all.push_back(peak_in_flight(order(s, rank)));
  return all;
}

using Counts = std::vector<std::int64_t>;

// --- 1F1B ---

// Domain 5.2: rank r warms up with min(p - r - 1, m) forwards, then alternates F(w + i), B(i), then drains.
TEST(OneFOneB, AlternatesAfterItsWarmup) {
  const PipelineShape s = shape(4, 6);
  EXPECT_EQ(text(order_1f1b(s, 0), 1, 0), "F0.0 F0.1 F0.2 F0.3 B0.0 F0.4 B0.1 F0.5 B0.2 B0.3 B0.4 B0.5");
  EXPECT_EQ(text(order_1f1b(s, 2), 1, 0), "F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 F0.4 B0.3 F0.5 B0.4 B0.5");
  EXPECT_EQ(text(order_1f1b(s, 3), 1, 0), "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3 F0.4 B0.4 F0.5 B0.5");
}

TEST(OneFOneB, WarmsUpWithNoMoreThanThereIs) {
  EXPECT_EQ(text(order_1f1b(shape(8, 2), 0), 1, 0), "F0.0 F0.1 B0.0 B0.1");
  EXPECT_EQ(text(order_1f1b(shape(8, 1), 7), 1, 0), "F0.0 B0.0");
}

// Expert overlap (domain 5.8) at p = 1: F(0); then for each i F(i + 1) beside B(i); then B(m - 1).
TEST(OneFOneB, TakesOneForwardMoreForExpertOverlap) {
  EXPECT_EQ(text(order_1f1b(shape(1, 3, 1, 0, 1), 0), 1, 0), "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2");
  EXPECT_EQ(text(order_1f1b(shape(2, 3, 1, 0, 1), 0), 1, 0), "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2");
}

TEST(OneFOneB, HoldsWhatTheOraclesSay) {
  EXPECT_EQ(peaks(order_1f1b, shape(4, 8)), (Counts{4, 3, 2, 1}));               // 1f1b_peak_p4_m8
  EXPECT_EQ(peaks(order_1f1b, shape(8, 16)), (Counts{8, 7, 6, 5, 4, 3, 2, 1}));  // 1f1b_peak_p8_m16
  EXPECT_EQ(peaks(order_1f1b, shape(4, 2)), (Counts{2, 2, 2, 1}));               // min(m, p - r)
}

// --- interleaved ---

// schedule_table_p2_n3_m5_v2
TEST(Interleaved, TableRunsInGroups) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> expected = {
      {0, 0}, {1, 0}, {2, 0}, {0, 1}, {1, 1}, {2, 1}, {3, 0}, {4, 0}, {3, 1}, {4, 1}};
  std::vector<std::pair<std::int64_t, std::int64_t>> table;
  for (const PipelineOp& op : interleaved_table(shape(2, 5, 2, 3))) {
    EXPECT_EQ(op.pass, 'F');
    table.emplace_back(op.microbatch, op.chunk);
  }
  EXPECT_EQ(table, expected);
}

TEST(Interleaved, RunsInTheOraclesOrder) {
  const PipelineShape s = shape(2, 4, 2);
  // interleaved_order_p2_m4_v2_rank0
  EXPECT_EQ(text(order_interleaved(s, 0), 2, 0),
            "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3");
  // interleaved_order_p2_m4_v2_rank1
  EXPECT_EQ(text(order_interleaved(s, 1), 2, 1),
            "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3");
}

TEST(Interleaved, HoldsWhatTheOraclesSay) {
  // interleaved_peak_*: min(m v, 2 (p - r - 1) + (v - 1) p + 1)
  EXPECT_EQ(peaks(order_interleaved, shape(4, 8, 2)), (Counts{11, 9, 7, 5}));
  EXPECT_EQ(peaks(order_interleaved, shape(4, 8, 4)), (Counts{19, 17, 15, 13}));
  EXPECT_EQ(peaks(order_interleaved, shape(8, 16, 2)), (Counts{23, 21, 19, 17, 15, 13, 11, 9}));
  EXPECT_EQ(peaks(order_interleaved, shape(8, 16, 4)), (Counts{39, 37, 35, 33, 31, 29, 27, 25}));
}

TEST(Interleaved, WarmsUpWithNoMoreThanThereIs) {
  // p 4, m 4, v 2: rank 0 would warm up with 2 x 3 + 4 = 10 forwards of 8.
  EXPECT_EQ(peak_in_flight(order_interleaved(shape(4, 4, 2), 0)), 8);
  const std::vector<PipelineOp> order = order_interleaved(shape(4, 4, 2), 0);
  EXPECT_TRUE(
      std::all_of(order.begin(), order.begin() + 8, [](const PipelineOp& op) { return op.pass == 'F'; }));
}

TEST(Interleaved, TakesOneForwardMoreForExpertOverlap) {
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const std::int64_t without = peak_in_flight(order_interleaved(shape(4, 8, 2), rank));
    EXPECT_EQ(peak_in_flight(order_interleaved(shape(4, 8, 2, 0, 1), rank)), without + 1);
  }
}

// --- GPipe ---

TEST(Gpipe, RunsAllForwardsThenAllBackwards) {
  EXPECT_EQ(text(order_gpipe(shape(4, 3), 1), 1, 0), "F0.0 F0.1 F0.2 B0.2 B0.1 B0.0");
  EXPECT_EQ(peaks(order_gpipe, shape(4, 5)), (Counts{5, 5, 5, 5}));
}

// --- every schedule ---

struct Case {
  const Schedule* schedule;
  PipelineShape shape;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Schedule& schedule : schedules()) {
    const bool chunked = schedule.name == "interleaved";
    for (const std::int64_t pp : {1, 2, 3, 4, 8}) {
      for (const std::int64_t chunks : chunked ? Counts{1, 2, 3, 5} : Counts{1}) {
        for (const std::int64_t m : {1, 2, 3, 7, 8, 16}) {
          for (const std::int64_t extra : {0, 1}) {
            if (!chunked) {
              all.push_back({&schedule, shape(pp, m, 1, 0, extra)});
              continue;
            }
            for (const std::int64_t group : {pp, pp + 1})  // rule 18: group <= m, and a rest of at least pp
              if (group <= m && (m % group == 0 || m % group >= pp))
                all.push_back({&schedule, shape(pp, m, chunks, group, extra)});
          }
        }
      }
    }
  }
  return all;
}

std::string name_of(const Case& c) {
  std::ostringstream out;
  out << c.schedule->name << " p " << c.shape.pp << " v " << c.shape.chunks << " m " << c.shape.microbatches
      << " N " << c.shape.group << " extra " << c.shape.extra_warmup;
  return out.str();
}

TEST(EverySchedule, RunsEachPassOfEachChunkAndMicrobatchOnceAndForwardsFirst) {
  for (const Case& c : cases()) {
    for (std::int64_t rank = 0; rank < c.shape.pp; ++rank) {
      std::set<std::tuple<char, std::int64_t, std::int64_t>> done;
      const std::vector<PipelineOp> order = c.schedule->order(c.shape, rank);
      for (const PipelineOp& op : order) {
        EXPECT_TRUE(op.pass == 'F' || op.pass == 'B') << name_of(c);
        EXPECT_TRUE(op.chunk >= 0 && op.chunk < c.shape.chunks) << name_of(c);
        EXPECT_TRUE(op.microbatch >= 0 && op.microbatch < c.shape.microbatches) << name_of(c);
        EXPECT_TRUE(done.insert({op.pass, op.chunk, op.microbatch}).second) << name_of(c) << " rank " << rank;
        EXPECT_TRUE(op.pass == 'F' || done.contains({'F', op.chunk, op.microbatch}))
            << name_of(c) << " rank " << rank;
      }
      EXPECT_EQ(order.size(), static_cast<std::size_t>(2 * c.shape.chunks * c.shape.microbatches))
          << name_of(c);
    }
  }
}

// Each rank runs its order as far as what it needs has been run: F(q, i) needs F(q - 1, i), B(q, i) needs B(q
// + 1, i).
TEST(EverySchedule, DoesNotDeadlock) {
  for (const Case& c : cases()) {
    std::vector<std::vector<PipelineOp>> orders;
    for (std::int64_t rank = 0; rank < c.shape.pp; ++rank) orders.push_back(c.schedule->order(c.shape, rank));
    std::set<std::tuple<char, std::int64_t, std::int64_t>> done;
    std::vector<std::size_t> next(orders.size(), 0);
    const std::int64_t last = c.shape.pp * c.shape.chunks - 1;
    std::size_t left = 0;
    for (const auto& order : orders) left += order.size();
    for (std::size_t before = left + 1; left > 0 && left < before;) {
      before = left;
      for (std::size_t rank = 0; rank < orders.size(); ++rank) {
        for (; next[rank] < orders[rank].size(); ++next[rank], --left) {
          const PipelineOp& op = orders[rank][next[rank]];
          const std::int64_t stage = op.chunk * c.shape.pp + static_cast<std::int64_t>(rank);
          const bool first = op.pass == 'F' ? stage == 0 : stage == last;
          if (!first && !done.contains({op.pass, stage + (op.pass == 'F' ? -1 : 1), op.microbatch})) break;
          done.insert({op.pass, stage, op.microbatch});
        }
      }
    }
    EXPECT_EQ(left, 0u) << name_of(c);
  }
}

TEST(EverySchedule, IsFoundByItsName) {
  for (const Schedule& schedule : schedules()) {
    EXPECT_EQ(find_schedule(schedule.name), &schedule);
    EXPECT_FALSE(schedule.description.empty());
  }
  EXPECT_EQ(find_schedule("none"), nullptr);
  EXPECT_EQ(find_schedule(""), nullptr);
  for (const char* name : {"gpipe", "1f1b", "interleaved"}) EXPECT_NE(find_schedule(name), nullptr);
}

TEST(PeakInFlight, CountsForwardsWithoutTheirBackward) {
  EXPECT_EQ(peak_in_flight({}), 0);
  EXPECT_EQ(peak_in_flight({{'F', 0, 0}, {'F', 1, 0}, {'B', 1, 0}, {'F', 0, 1}, {'B', 0, 0}, {'B', 0, 1}}),
            2);
}

}  // namespace
}  // namespace stepcast
