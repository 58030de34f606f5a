#include "memory/in_flight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "schedule/schedule.h"
#include "unit/memory/fixtures.h"

namespace stepcast::memory_test {
namespace {

Scenario pipeline(const std::string& schedule, std::int64_t pp, std::int64_t chunks,
                  std::int64_t microbatches) {
  Layout l = layout(1, 1, pp, chunks);
  l.schedule = schedule;
  Scenario s = scenario(llama70b(), pp, l);
  s.batch.global = microbatches;
  return s;
}

double alive(const std::string& schedule, std::int64_t pp, std::int64_t chunks, std::int64_t microbatches,
             std::int64_t rank) {
  const std::vector<ChunkBytes> ones(static_cast<std::size_t>(chunks), ChunkBytes{1, 0});
  const PeakMoment peak = fullest_moment(pipeline(schedule, pp, chunks, microbatches), rank, ones);
  const double sum = std::accumulate(peak.alive.begin(), peak.alive.end(), 0.0);
  EXPECT_DOUBLE_EQ(sum, peak.bytes);
  return sum;
}

struct Row {
  std::string schedule;
  std::int64_t pp, chunks, m, rank;
  double alive;
};

// Domain 4.3; "verified by simulation" there: interleaved p 4 v 2 m 8, ZB-V p 4, DualPipeV p 4 m 8.
TEST(InFlight, ClosedForms) {
  for (const Row& r : std::vector<Row>{
           {"gpipe", 4, 1, 8, 0, 8},       {"gpipe", 4, 1, 8, 3, 8},        {"bfs", 4, 2, 8, 1, 16},
           {"1f1b", 8, 1, 32, 0, 8},       {"1f1b", 8, 1, 32, 7, 1},        {"1f1b", 8, 1, 4, 0, 4},
           {"1f1b", 1, 1, 4, 0, 1},        {"interleaved", 4, 2, 8, 0, 11}, {"interleaved", 4, 2, 8, 1, 9},
           {"interleaved", 4, 2, 8, 2, 7}, {"interleaved", 4, 2, 8, 3, 5},  {"interleaved", 4, 2, 4, 0, 8},
           {"zb-h1", 8, 1, 32, 5, 8},      {"zb-2p", 8, 1, 32, 5, 15},      {"zb-2p", 8, 1, 4, 0, 4},
           {"zb-v", 4, 2, 8, 0, 8},        {"zb-v", 4, 2, 8, 3, 8},         {"v-half", 8, 2, 32, 0, 10},
           {"v-half", 7, 2, 32, 3, 8},     {"v-min", 8, 2, 32, 0, 8},       {"v-min", 9, 2, 32, 4, 8},
           {"dualpipe", 8, 2, 32, 0, 9},   {"dualpipe", 8, 2, 32, 5, 9},    {"dualpipe-v", 4, 2, 8, 0, 9},
           {"dualpipe-v", 4, 2, 8, 3, 9}})
    EXPECT_EQ(alive(r.schedule, r.pp, r.chunks, r.m, r.rank), r.alive)
        << r.schedule << " p " << r.pp << " rank " << r.rank;
}

// The closed forms count what the schedules do.
TEST(InFlight, AgreesWithTheSchedules) {
  for (const std::int64_t pp : {1, 2, 3, 4, 8}) {
    for (const std::int64_t m : {1, 2, 4, 7, 16, 64}) {
      for (std::int64_t rank = 0; rank < pp; ++rank) {
        const auto peak = [&](const ScheduleOrder order, std::int64_t chunks) {
          return static_cast<double>(peak_in_flight(order({pp, chunks, m, pp, 0}, rank)));
        };
        EXPECT_EQ(alive("gpipe", pp, 1, m, rank), peak(order_gpipe, 1));
        EXPECT_EQ(alive("1f1b", pp, 1, m, rank), peak(order_1f1b, 1));
        for (const std::int64_t chunks : {2, 3, 5})
          EXPECT_EQ(alive("interleaved", pp, chunks, m, rank), peak(order_interleaved, chunks))
              << pp << " " << m;
      }
    }
  }
}

TEST(InFlight, ExpertOverlapKeepsOneMoreChunk) {
  Scenario s = pipeline("interleaved", 4, 2, 16);
  s.overlap.moe_a2a = true;
  const PeakMoment peak = fullest_moment(s, 1, {{1, 0}, {1, 0}});
  EXPECT_EQ(peak.bytes, 10);
}

// p 4, v 2, m 8, rank 0: warm-up of 10, forward 11 makes it 7 of chunk 0 and 4 of chunk 1; backward 0 ends
// one of chunk 1, forward 12 adds the eighth of chunk 0: heavier when chunk 0 weighs 10 and chunk 1 one.
TEST(InFlight, WeighsChunks) {
  const Scenario s = pipeline("interleaved", 4, 2, 8);
  const PeakMoment peak = fullest_moment(s, 0, {{10, 0}, {1, 0}});
  EXPECT_EQ(peak.alive, (std::vector<double>{8, 3}));
  EXPECT_EQ(peak.bytes, 83);
}

// More micro-batches than a period of the steady phase change nothing.
TEST(InFlight, IsTheSameForLongSteps) {
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const std::vector<ChunkBytes> chunks = {{3, 1}, {1, 4}, {2, 0}};
    EXPECT_EQ(fullest_moment(pipeline("interleaved", 4, 3, 32), rank, chunks).bytes,
              fullest_moment(pipeline("interleaved", 4, 3, 4096), rank, chunks).bytes);
  }
}

// The chunk whose backward adds most decides the moment.
TEST(InFlight, NamesTheBackward) {
  const PeakMoment peak = fullest_moment(pipeline("zb-v", 4, 2, 8), 0, {{1, 5}, {1, 7}});
  EXPECT_EQ(peak.chunk, 1);
  EXPECT_EQ(peak.bytes, 8 + 7);
}

}  // namespace
}  // namespace stepcast::memory_test
