// How long a step takes to build and to replay, a task. `limit` is the least that any replay must do for each
// task: load a duration, take a maximum, add, store a clock; the ratio replay_step / limit in one run says how far
// the replay is from it.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <filesystem>

#include "base/data_folder.h"
#include "engine/durations.h"
#include "engine/replay.h"
#include "graph/build.h"
#include "layout/scenario.h"
#include "result/forecast.h"

namespace stepcast {
namespace {

Scenario scenario() { return load_scenario(data_folder() / "scenarios" / "moe-1.8t-1024xh100.json"); }

void load(benchmark::State& state) {
  for (auto unused : state) benchmark::DoNotOptimize(scenario());
}

void build(benchmark::State& state) {
  const Scenario s = scenario();
  const StageSplit split = split_of(s);
  std::uint64_t tasks = 0;
  for (auto unused : state) tasks += build_step(s, split, s.stack).task_count();
  state.SetItemsProcessed(static_cast<std::int64_t>(tasks));
}

void replay_step(benchmark::State& state) {
  const Scenario s = scenario();
  const StepGraph graph = build_step(s, split_of(s), s.stack);
  const std::vector<Ticks> durations(graph.ops.size(), 1000);
  std::uint64_t tasks = 0;
  for (auto unused : state) tasks += replay({graph, durations, 10}).tasks;
  state.SetItemsProcessed(static_cast<std::int64_t>(tasks));
}

void limit(benchmark::State& state) {
  const Scenario s = scenario();
  const StepGraph graph = build_step(s, split_of(s), s.stack);
  const std::vector<Ticks> durations(graph.ops.size(), 1000);
  const auto tasks = static_cast<std::int64_t>(graph.task_count());
  std::array<Ticks, kStreams> clock{};
  for (auto unused : state) {
    std::size_t op = 0;
    for (std::int64_t i = 0; i < tasks; ++i) {
      Ticks& own = clock[i & 1];
      own = std::max(own, clock[2]) + durations[op];
      if (++op == durations.size()) op = 0;
    }
    benchmark::DoNotOptimize(clock);
  }
  state.SetItemsProcessed(state.iterations() * tasks);
}

void whole_forecast(benchmark::State& state) {
  for (auto unused : state) benchmark::DoNotOptimize(forecast(scenario()).step_time_s);
}

BENCHMARK(load)->Unit(benchmark::kMillisecond);
BENCHMARK(build)->Unit(benchmark::kMillisecond);
BENCHMARK(replay_step)->Unit(benchmark::kMillisecond);
BENCHMARK(limit)->Unit(benchmark::kMillisecond);
BENCHMARK(whole_forecast)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stepcast
