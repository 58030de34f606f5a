#include "result/breakdown.h"

#include <algorithm>

namespace stepcast {
namespace {

// Order of the table. The first eleven are OpClass values in other order; see `slot`.
constexpr std::array kNames = {"gemm", "attention", "memory_bound", "tp",   "cp",        "ep",     "pp",
                               "dp",   "bubble",    "imbalance",    "host", "optimizer", "jitter", "other"};
enum Slot {
  kGemm,
  kAttention,
  kMemoryBound,
  kTp,
  kCp,
  kEp,
  kPp,
  kDp,
  kBubble,
  kImbalance,
  kHost,
  kOptimizer,
  kJitter,
  kOther
};

std::size_t slot(OpClass c) {
  switch (c) {
    case OpClass::kGemm:
      return kGemm;
    case OpClass::kAttention:
      return kAttention;
    case OpClass::kMemoryBound:
      return kMemoryBound;
    case OpClass::kTp:
      return kTp;
    case OpClass::kCp:
      return kCp;
    case OpClass::kEp:
      return kEp;
    case OpClass::kPp:
      return kPp;
    case OpClass::kDp:
      return kDp;
    case OpClass::kOptimizer:
      return kOptimizer;
    case OpClass::kImbalance:
      return kImbalance;
    case OpClass::kOther:
      return kOther;
  }
  return kOther;
}

}  // namespace

double Breakdown::total() const {
  double sum = 0;
  for (const auto& [name, value] : seconds) sum += value;
  return sum;
}

double Breakdown::of(const std::string& name) const {
  for (const auto& [known, value] : seconds)
    if (known == name) return value;
  return 0;
}

void RankRecorder::task(std::int32_t rank, const Instance& /*instance*/, const Task& task, Ticks ready,
                        Ticks start, Ticks end) {
  if (rank != rank_) return;
  const OpClass cls = graph_.ops[task.op].cls;
  if (task.stream != Stream::kCompute) {
    if (end > start) transfers_.push_back({start, end, cls});
    return;
  }
  compute_.push_back({start, end, cls});
  ready_.push_back(ready);
}

void RankRecorder::message(std::int32_t receiver, std::uint32_t op, Ticks start, Ticks end) {
  if (receiver == rank_ && end > start) transfers_.push_back({start, end, graph_.ops[op].cls});
}

// An idle stretch of the compute stream: transfers under way are exposed communication, the rest is waiting.
void RankRecorder::fill_gap(Ticks from, Ticks to, Ticks host_from, std::array<Ticks, 14>& sums) {
  const auto wait = [&](Ticks a, Ticks b) {
    // without a pipeline peer nothing but the host can be late
    const Ticks host = graph_.ranks == 1 ? b - a : std::max(0.0, b - std::max(a, host_from));
    sums[kHost] += host;
    sums[kBubble] += (b - a) - host;
  };
  Ticks at = from;
  while (next_transfer_ < transfers_.size() && transfers_[next_transfer_].end <= from) ++next_transfer_;
  for (std::size_t i = next_transfer_; i < transfers_.size() && transfers_[i].start < to && at < to; ++i) {
    const Interval& t = transfers_[i];
    if (t.end <= at) continue;
    if (t.start > at) wait(at, t.start);
    const Ticks begin = std::max(at, t.start);
    const Ticks end = std::min(to, t.end);
    sums[slot(t.cls)] += end - begin;
    at = end;
  }
  if (at < to) wait(at, to);
}

Breakdown RankRecorder::breakdown(Ticks makespan) {
  std::sort(transfers_.begin(), transfers_.end(), [](const Interval& a, const Interval& b) {
    return a.start != b.start ? a.start < b.start : a.end < b.end;
  });
  std::array<Ticks, 14> sums{};
  Ticks at = 0;
  for (std::size_t i = 0; i < compute_.size(); ++i) {
    const Interval& c = compute_[i];
    if (c.start > at) fill_gap(at, c.start, ready_[i], sums);
    sums[slot(c.cls)] += c.end - c.start;
    at = c.end;
  }
  if (makespan > at) fill_gap(at, makespan, makespan, sums);
  Breakdown result;
  for (std::size_t i = 0; i < kNames.size(); ++i) result.seconds.emplace_back(kNames[i], seconds(sums[i]));
  return result;
}

}  // namespace stepcast
