// Replays a step graph with one duration an op: one scan over the instances, task by task (graph/step_graph.h
// has the rules). Complexity: tasks; memory: one clock a stream and rank, one number a message.
// Deterministic; times are whole picoseconds, so the result does not depend on anything but the graph and the
// durations.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "base/units.h"
#include "graph/step_graph.h"

namespace stepcast {

struct ReplayInput {
  const StepGraph& graph;
  const std::vector<Ticks>& durations;  // by op
  Ticks launch = 0;                     // host time of one kernel launch
};

// Called for every task and transfer; the default does nothing and costs nothing.
struct NoObserver {
  static constexpr bool kObserves = false;
  // `ready`: when everything but the host's launch allowed it to start
  void task(std::int32_t /*rank*/, const Instance&, const Task&, Ticks /*ready*/, Ticks /*start*/,
            Ticks /*end*/) {}
  void message(std::int32_t /*receiver*/, std::uint32_t /*op*/, Ticks, Ticks) {}
};

struct ReplayResult {
  Ticks makespan = 0;
  std::int32_t last_rank = 0;  // that ends last; the lowest of those that tie
  std::vector<Ticks> rank_end;
  std::uint64_t tasks = 0;
};

template <typename Observer>
ReplayResult replay(const ReplayInput& input, Observer& observer);

// --- implementation
// --------------------------------------------------------------------------------------------------

namespace replay_detail {

struct Rank {
  std::array<Ticks, kStreams> stream{};
  Ticks host = 0;
  std::vector<Ticks> event;
};

inline Ticks& clock(Rank& rank, Stream s) { return rank.stream[static_cast<std::size_t>(s)]; }

template <typename Observer>
void run_program(const ReplayInput& input, const Instance& instance, Rank& rank, Observer& observer) {
  const Program& program = input.graph.programs[static_cast<std::size_t>(instance.program)];
  for (const Task& task : program) {
    Ticks& own = clock(rank, task.stream);
    Ticks start = own;
    for (const std::int32_t event : task.wait)
      if (event >= 0) start = std::max(start, rank.event[static_cast<std::size_t>(event)]);
    for (unsigned joins = task.joins; joins != 0; joins &= joins - 1)
      start = std::max(start, rank.stream[static_cast<std::size_t>(__builtin_ctz(joins))]);
    if (task.host_sync) rank.host = std::max(rank.host, clock(rank, Stream::kCompute));
    rank.host += task.launches * input.launch;
    const Ticks ready = start;
    start = std::max(start, rank.host);
    own = start + input.durations[task.op];
    if (task.record_event >= 0) rank.event[static_cast<std::size_t>(task.record_event)] = own;
    if constexpr (Observer::kObserves) observer.task(instance.rank, instance, task, ready, start, own);
  }
}

}  // namespace replay_detail

template <typename Observer>
ReplayResult replay(const ReplayInput& input, Observer& observer) {
  using namespace replay_detail;
  const StepGraph& graph = input.graph;
  std::vector<Rank> ranks(static_cast<std::size_t>(graph.ranks));
  for (Rank& rank : ranks) rank.event.assign(static_cast<std::size_t>(graph.events), 0);
  struct Sent {
    Ticks start = 0;
    Ticks end = 0;
    std::int32_t op = kNone;
  };
  std::vector<Sent> sent(static_cast<std::size_t>(graph.messages));
  const auto end_of = [](const Rank& rank) {
    return *std::max_element(rank.stream.begin(), rank.stream.end());
  };

  ReplayResult result;
  for (std::size_t i = 0; i < graph.instances.size(); ++i) {
    if (i == graph.barrier) {
      Ticks all = 0;
      for (const Rank& rank : ranks) all = std::max(all, end_of(rank));
      for (Rank& rank : ranks) clock(rank, Stream::kCompute) = all;
    }
    const Instance& instance = graph.instances[i];
    Rank& rank = ranks[static_cast<std::size_t>(instance.rank)];
    Ticks& compute = clock(rank, Stream::kCompute);
    for (const std::int32_t number : instance.receive) {
      if (number == kNone) continue;
      const Sent& message = sent[static_cast<std::size_t>(number)];
      if constexpr (Observer::kObserves) {
        if (message.op != kNone)
          observer.message(instance.rank, static_cast<std::uint32_t>(message.op), message.start, message.end);
      }
      compute = std::max(compute, message.end);
    }
    if (instance.blocking) rank.host = std::max(rank.host, compute);
    run_program(input, instance, rank, observer);
    for (const Message& message : instance.send) {
      if (message.number == kNone) continue;
      Sent& out = sent[static_cast<std::size_t>(message.number)];
      out.op = message.op;
      out.start = out.end = compute;
      if (message.op == kNone) continue;
      Ticks& wire = clock(rank, Stream::kSend);
      out.start = std::max(compute, wire);
      wire = out.end = out.start + input.durations[static_cast<std::size_t>(message.op)];
      if constexpr (Observer::kObserves) {
        Task task;
        task.op = static_cast<std::uint32_t>(message.op);
        task.stream = Stream::kSend;
        observer.task(instance.rank, instance, task, out.start, out.start, out.end);
      }
      if (instance.blocking) compute = std::max(compute, wire);
    }
    result.tasks += graph.programs[static_cast<std::size_t>(instance.program)].size();
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    result.rank_end.push_back(end_of(ranks[r]));
    if (result.rank_end[r] > result.makespan) {
      result.makespan = result.rank_end[r];
      result.last_rank = static_cast<std::int32_t>(r);
    }
  }
  return result;
}

inline ReplayResult replay(const ReplayInput& input) {
  NoObserver nobody;
  return replay(input, nobody);
}

}  // namespace stepcast
