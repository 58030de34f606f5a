// The loss table: each instant of the rank that ends last belongs to one class. Compute comes before exposed
// communication, communication before waiting; a wait is `host` when the launching thread was late, else
// `bubble`.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "engine/replay.h"

namespace stepcast {

struct Breakdown {
  // gemm, attention, memory_bound, tp, cp, ep, pp, dp, bubble, imbalance, host, optimizer, jitter, other;
  // seconds. Adds up to the step time.
  std::vector<std::pair<std::string, double>> seconds;

  double total() const;
  double of(const std::string& name) const;
};

// Observes one rank during a replay.
class RankRecorder {
 public:
  static constexpr bool kObserves = true;
  RankRecorder(const StepGraph& graph, std::int32_t rank) : graph_(graph), rank_(rank) {}

  void task(std::int32_t rank, const Instance& instance, const Task& task, Ticks ready, Ticks start,
            Ticks end);
  void message(std::int32_t receiver, std::uint32_t op, Ticks start, Ticks end);

  // `makespan` is the end of the step; what the rank spends after its last task is waiting.
  Breakdown breakdown(Ticks makespan);

 private:
  struct Interval {
    Ticks start;
    Ticks end;
    OpClass cls;
  };
  void fill_gap(Ticks from, Ticks to, Ticks host_from, std::array<Ticks, 14>& sums);

  const StepGraph& graph_;
  std::int32_t rank_;
  std::vector<Interval> compute_;
  std::vector<Ticks> ready_;  // of each compute task: from here on only the host kept it waiting
  std::vector<Interval> transfers_;
  std::size_t next_transfer_ = 0;
};

}  // namespace stepcast
