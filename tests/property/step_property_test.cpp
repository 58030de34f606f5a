// What holds for every step: random legal layouts of a small dense and a small MoE model on 8 to 64 GPUs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/durations.h"
#include "engine/replay.h"
#include "result/document.h"
#include "support/random.h"
#include "unit/graph/scenarios.h"

namespace stepcast::graph_test {
namespace {

constexpr std::size_t kLegal = 120;  // layouts that each property looks at

class Random {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}
  template <typename T>
  T pick(const std::vector<T>& values) {
    return values[random_bits(seed_, counter_++) % values.size()];
  }
  bool one_in(std::uint64_t n) { return random_bits(seed_, counter_++) % n == 0; }

 private:
  std::uint64_t seed_;
  std::uint64_t counter_ = 0;
};

// Any combination of sizes and options, legal or not.
Json random_scenario(Random& r) {
  const bool experts = r.one_in(2);
  const auto gpus = r.pick<std::int64_t>({8, 16, 32, 64});
  Json layout = {{"tp", r.pick<std::int64_t>({1, 1, 2, 4, 8})},
                 {"cp", r.pick<std::int64_t>({1, 1, 1, 2})},
                 {"pp", r.pick<std::int64_t>({1, 1, 2, 4})},
                 {"vpp", r.pick<std::int64_t>({1, 1, 1, 2})}};
  if (experts) layout["ep"] = r.pick<std::int64_t>({1, 2, 4, 8, 16});
  if (experts) layout["etp"] = r.pick<std::int64_t>({1, 1, 2});
  if (layout["vpp"] == 1 && r.one_in(5)) layout["schedule"] = "gpipe";
  if (r.one_in(3)) layout["cp_comm"] = r.pick<std::string>({"a2a", "allgather"});
  Json changes = {
      {"batch", {{"micro", r.pick<std::int64_t>({1, 1, 2})}}},
      {"precision",
       {{"recipe", r.pick<std::string>({"bf16", "bf16", "fp16", "fp32", "fp8-tensor", "fp8-block"})}}},
      {"sharding", {{"zero_stage", r.pick<int>({1, 1, 1, 0, 2, 3})}}},
      {"recompute", {{"granularity", r.pick<std::string>({"none", "none", "full", "selective"})}}},
      {"overlap",
       {{"tp", r.one_in(4)},
        {"grad_reduce", !r.one_in(4)},
        {"param_gather", !r.one_in(4)},
        {"p2p", !r.one_in(4)}}},
      {"moe", {{"dispatcher", r.pick<std::string>({"allgather", "alltoall", "deepep", "hybridep"})}}},
      {"kernels",
       {{"attention", r.pick<std::string>({"auto", "auto", "unfused"})},
        {"fused_norm", !r.one_in(4)},
        {"cuda_graphs", r.pick<std::string>({"none", "none", "layer", "full"})}}},
      {"software", {{"stack", r.pick<std::string>({"megatron-lm", "fsdp", "torchtitan"})}}}};
  if (r.one_in(5)) changes["sharding"]["scope"] = "node";
  if (experts && r.one_in(4)) changes["moe"]["routing"] = {{"kind", "zipf"}, {"s", 0.5}};
  Json model = experts ? moe_model() : dense_model();
  model["layers"] = r.pick<std::int64_t>({8, 8, 8, 1, 2, 5});
  return scenario_json(model, gpus, layout, changes);
}

std::optional<Scenario> read_if_legal(const Json& json) {
  try {
    Scenario scenario = read(json);
    require_simulated(scenario);
    return scenario;
  } catch (const InputError&) {
    return std::nullopt;
  }
}

// Runs `property` on so many legal scenarios of a seed.
void for_legal(std::uint64_t seed, std::size_t count,
               const std::function<void(const Json&, const Scenario&)>& property) {
  Random random(seed);
  std::size_t legal = 0;
  for (int tries = 0; legal < count; ++tries) {
    ASSERT_LT(tries, 20000) << "too few layouts are legal";
    const Json json = random_scenario(random);
    const std::optional<Scenario> scenario = read_if_legal(json);
    if (!scenario) continue;
    ++legal;
    SCOPED_TRACE(json.dump());
    property(json, *scenario);
    if (testing::Test::HasFailure()) return;  // one counterexample is enough
  }
}

double step_time(const Json& json) { return forecast(read(json)).step_time_s; }

// The cluster of `json` with one quantity changed.
Json overridden(Json json, const char* key, double value) {
  json["cluster"]["overrides"][key] = value;
  return json;
}

TEST(EveryStep, HasABreakdownThatAddsUp) {
  for_legal(1, 2 * kLegal, [](const Json&, const Scenario& s) {
    const Forecast f = forecast(s);
    EXPECT_TRUE(std::isfinite(f.step_time_s) && f.step_time_s > 0);
    EXPECT_NEAR(f.breakdown.total(), f.step_time_s, 1e-9);
    for (const auto& [name, value] : f.breakdown.seconds) EXPECT_GE(value, 0) << name;
    EXPECT_LE(f.mfu, 1);
    EXPECT_GE(f.hfu, f.mfu * (1 - 1e-12));
  });
}

// Sums of what the compute stream of a rank runs.
struct ComputeSums {
  static constexpr bool kObserves = true;
  std::vector<Ticks> of_rank;
  void task(std::int32_t rank, const Instance&, const Task& task, Ticks, Ticks start, Ticks end) {
    if (task.stream == Stream::kCompute) of_rank[static_cast<std::size_t>(rank)] += end - start;
  }
  void message(std::int32_t, std::uint32_t, Ticks, Ticks) {}
};

// A step with its durations.
struct Timed {
  explicit Timed(const Scenario& s)
      : step(s, s.stack),
        profile(load_profile(data_folder() / "calib" / "profiles" / (s.cluster.calibration + ".json"))),
        times(op_times(step.graph, profile, ClosedForms(step.scenario, profile))) {}
  ReplayInput input(Ticks launch) const { return {step.graph, times.ticks, launch}; }

  Step step;
  Profile profile;
  OpTimes times;
};

TEST(EveryStep, TakesAtLeastTheComputeOfEachRank) {
  for_legal(2, kLegal, [](const Json&, const Scenario& s) {
    const Timed timed(s);
    ComputeSums sums{std::vector<Ticks>(static_cast<std::size_t>(timed.step.graph.ranks), 0)};
    const ReplayResult result = replay(timed.input(ticks(s.stack.launch_s)), sums);
    EXPECT_EQ(seconds(result.makespan), forecast(s).step_time_s);
    for (const Ticks sum : sums.of_rank) EXPECT_GE(result.makespan, sum);
  });
}

TEST(EveryStep, IsNeverFasterWithDearerLaunches) {
  for_legal(3, kLegal, [](const Json&, const Scenario& s) {
    const Timed timed(s);
    Ticks last = 0;
    for (const double launch_s : {0.0, 1e-6, 5e-6, 8e-6, 2e-5, 1e-4}) {
      const Ticks makespan = replay(timed.input(ticks(launch_s))).makespan;
      EXPECT_GE(makespan, last) << launch_s;
      last = makespan;
    }
  });
}

TEST(EveryStep, IsNeverSlowerOnFasterLinks) {
  for_legal(4, kLegal, [](const Json& json, const Scenario& s) {
    const double before = forecast(s).step_time_s;
    EXPECT_LE(step_time(overridden(json, "nvlink_bytes_per_s", 2 * s.cluster.nvlink_bytes_per_s)), before);
    EXPECT_LE(step_time(overridden(json, "nic_gbit_per_s", 2 * s.cluster.nic_gbit_per_s)), before);
    EXPECT_GE(step_time(overridden(json, "nvlink_bytes_per_s", 0.5 * s.cluster.nvlink_bytes_per_s)), before);
    EXPECT_GE(step_time(overridden(json, "nic_gbit_per_s", 0.5 * s.cluster.nic_gbit_per_s)), before);
  });
}

TEST(EveryStep, TakesAsLongWithMoreMemory) {
  for_legal(5, kLegal / 2, [](const Json& json, const Scenario& s) {
    const Json larger = overridden(json, "hbm_bytes", 4 * static_cast<double>(s.cluster.gpu.hbm_bytes));
    const Forecast before = forecast(s), after = forecast(read(larger));
    EXPECT_EQ(after.step_time_s, before.step_time_s);
    EXPECT_EQ(after.memory.peak().device, before.memory.peak().device);
    EXPECT_TRUE(after.memory.fits() || !before.memory.fits());
  });
}

// Twice the micro-batches take longer, but not twice as long and a step more.
TEST(EveryStep, TakesLongerForMoreMicrobatches) {
  for_legal(6, kLegal / 2, [](const Json& json, const Scenario& s) {
    Json more = json;
    more["batch"]["global"] = 2 * s.batch.global;
    const double before = forecast(s).step_time_s, after = step_time(more);
    EXPECT_GT(after, before);
    EXPECT_LE(after, 2 * before * (1 + 1e-12));
  });
}

TEST(EveryStep, GivesTheSameBytesTwice) {
  for_legal(7, kLegal / 2, [](const Json& json, const Scenario& s) {
    const std::string first = result_document(s, forecast(s)).dump();
    const Scenario again = read(json);
    EXPECT_EQ(result_document(again, forecast(again)).dump(), first);
  });
}

// A result's scenario can be fed back (from any folder), and says the same again. Assumptions are of what the
// input left open, so a resolved scenario has fewer.
TEST(EveryStep, CanBeReadBackFromItsResult) {
  for_legal(8, kLegal / 2, [](const Json&, const Scenario& s) {
    Json first = result_document(s, forecast(s));
    const Scenario echoed = read_scenario(first["scenario"], "echo", "", "/");
    Json second = result_document(echoed, forecast(echoed));
    const Scenario twice = read_scenario(second["scenario"], "echo", "", "/");
    EXPECT_EQ(result_document(twice, forecast(twice)).dump(1), second.dump(1));
    first["provenance"].erase("assumptions");
    second["provenance"].erase("assumptions");
    EXPECT_EQ(second.dump(1), first.dump(1));
  });
}

TEST(EveryStep, HasNoBubbleWithoutAPipeline) {
  for_legal(9, kLegal, [](const Json&, const Scenario& s) {
    EXPECT_TRUE(s.layout.pp > 1 || forecast(s).breakdown.of("bubble") == 0);
  });
}

// Whatever is asked for is forecast or refused, never an internal error.
TEST(EveryScenario, WithExpertOverlapIsForecastOrRefused) {
  Random random(10);
  int forecasts = 0;
  for (int tries = 0; tries < 2000; ++tries) {
    Json json = random_scenario(random);
    json["overlap"]["moe_a2a"] = true;
    if (random.one_in(2)) json["batch"]["global"] = random.pick<std::int64_t>({8, 16, 32, 64});
    try {
      const Scenario scenario = read(json);
      EXPECT_GT(forecast(scenario).step_time_s, 0);
      ++forecasts;
    } catch (const InputError&) {
    } catch (const std::exception& error) {
      FAIL() << error.what() << ": " << json.dump();
    }
  }
  EXPECT_GT(forecasts, 100);
}

// Full recompute executes more and saves memory. It costs time unless it hides under the transfers of ZeRO-3.
TEST(EveryStep, TakesLongerAndLessMemoryWithRecompute) {
  for_legal(11, kLegal / 2, [](const Json& json, const Scenario&) {
    Json none = json, full = json;
    none["recompute"] = {{"granularity", "none"}};
    full["recompute"] = {{"granularity", "full"}};
    const Forecast plain = forecast(read(none)), recomputed = forecast(read(full));
    EXPECT_GE(recomputed.step_time_s, plain.step_time_s);
    EXPECT_GT(recomputed.hfu * recomputed.step_time_s, plain.hfu * plain.step_time_s);
    EXPECT_LE(recomputed.memory.peak().device, plain.memory.peak().device * (1 + 1e-12));
  });
}

}  // namespace
}  // namespace stepcast::graph_test
