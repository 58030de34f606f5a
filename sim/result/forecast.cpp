#include "result/forecast.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <memory>
#include <mutex>

#include "base/data_folder.h"
#include "base/units.h"
#include "engine/durations.h"
#include "engine/replay.h"
#include "graph/build.h"
#include "memory/advice.h"
#include "model/flops.h"
#include "model/parameters.h"

namespace stepcast {
namespace {

constexpr double kMostTasks = 3e7;  // well below a second of replay

// Profiles are read once; many scenarios share them.
std::shared_ptr<const Profile> profile_named(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Profile>> cache;
  const std::lock_guard lock(mutex);
  auto& entry = cache[name];
  if (!entry)
    entry = std::make_shared<Profile>(
        load_profile(resolve_data(name, "calib/profiles", "/", name, "/calibration")));
  return entry;
}

void refuse_endless(const Scenario& s) {
  const double tasks = estimate_tasks(s);
  if (tasks > kMostTasks)
    throw NotSimulated({s.file, s.prefix + "/batch/global",
                        fmt::format("about {:.1e} tasks in a step ({} micro-batches, cp {})", tasks,
                                    s.microbatches(), s.layout.cp),
                        fmt::format("at most {:.0e}: fewer or larger micro-batches", kMostTasks)});
}

// FLOPs that all GPUs together execute on tensor cores in a step.
double executed_flops(const StepGraph& graph, const Scenario& s) {
  std::vector<double> of_program;
  for (const Program& program : graph.programs) {
    double flops = 0;
    for (const Task& task : program) {
      const Op& op = graph.ops[task.op];
      if (!op.communicates && op.cls != OpClass::kImbalance) flops += op.kernel.flops();
    }
    of_program.push_back(flops);
  }
  double sum = 0;
  for (const Instance& instance : graph.instances)
    sum += of_program[static_cast<std::size_t>(instance.program)];
  return sum * real(s.cluster.gpus) / real(s.layout.pp);
}

Traffic traffic_of(const StepGraph& graph, const OpTimes& times, std::int32_t rank) {
  Traffic traffic;
  const auto add = [&](std::uint32_t op, double count) {
    const TransferCost& cost = times.transfers[op];
    const double bytes = count * (cost.nvlink_bytes + cost.network_bytes);
    switch (graph.ops[op].cls) {
      case OpClass::kTp:
        traffic.tp += bytes;
        break;
      case OpClass::kCp:
        traffic.cp += bytes;
        break;
      case OpClass::kEp:
        traffic.ep += bytes;
        break;
      case OpClass::kPp:
        traffic.pp += bytes;
        break;
      case OpClass::kDp:
        traffic.dp += bytes;
        break;
      default:
        return;
    }
    traffic.nvlink += count * cost.nvlink_bytes;
    traffic.network += count * cost.network_bytes;
  };
  std::vector<double> runs(graph.programs.size(), 0);
  for (const Instance& instance : graph.instances) {
    if (instance.rank != rank) continue;
    runs[static_cast<std::size_t>(instance.program)] += 1;
    for (const Message& message : instance.send)
      if (message.number != kNone && message.op != kNone) add(static_cast<std::uint32_t>(message.op), 1);
  }
  for (std::size_t p = 0; p < runs.size(); ++p) {
    if (runs[p] <= 0) continue;
    for (const Task& task : graph.programs[p]) {
      const Op& op = graph.ops[task.op];
      if (op.communicates && !op.contends) add(task.op, runs[p]);
    }
  }
  return traffic;
}

void add_rates(Forecast& f, const Scenario& s, double executed) {
  const auto gpus = static_cast<double>(s.cluster.gpus);
  f.tokens_per_s = s.tokens_per_step() / f.step_time_s;
  const std::int64_t rows = padded_vocab(s.model.vocab, s.model.vocab_divisor, s.layout.tp);
  const double flops = model_flops_per_token(s.model, s.batch.seq_len, rows) * s.tokens_per_step();
  f.model_tflops_per_gpu = flops / f.step_time_s / gpus / 1e12;
  f.mfu = f.model_tflops_per_gpu * 1e12 / s.cluster.gpu.bf16_flops;
  f.hfu = executed / f.step_time_s / gpus / s.cluster.gpu.bf16_flops;
}

void add_warnings(Forecast& f) {
  for (const std::string& line : memory_warnings(f.memory)) f.warnings.push_back(line);
  f.warnings.emplace_back("no interval yet: step_time_interval_s is [t, t]");
}

}  // namespace

Forecast forecast(const Scenario& s) {
  require_simulated(s);
  Forecast f;
  f.assumptions = s.assumptions;
  for (const std::string& line : memory_assumptions(s)) f.assumptions.push_back(line);
  f.warnings = s.warnings;
  const Profile profile = with_bandwidth(*profile_named(s.cluster.calibration), s.cluster.gpu.hbm_bytes_per_s,
                                         s.cluster.host_link_bytes_per_s);
  const StageSplit split = split_of(s);
  f.memory = memory_report(s, split, s.stack);

  refuse_endless(s);
  const StepGraph graph = build_step(s, split, s.stack);
  const OpTimes times = op_times(graph, profile, ClosedForms(s, profile));
  if (!times.extrapolated.empty())
    f.assumptions.push_back(
        fmt::format("extrapolated, not measured on this GPU: {}", fmt::join(times.extrapolated, ", ")));
  const ReplayInput input{graph, times.ticks, ticks(s.stack.launch_s)};
  const ReplayResult plain = replay(input);
  f.step_time_s = seconds(plain.makespan);
  if (!std::isfinite(f.step_time_s) || f.step_time_s <= 0)
    throw InputError(
        {"profile " + profile.name, "", "gives no finite step time", "rates and factors above 0"});
  f.interval_s = {f.step_time_s, f.step_time_s};
  f.last_rank = plain.last_rank;
  f.ranks_simulated = graph.ranks;
  f.tasks = plain.tasks;

  RankRecorder recorder(graph, plain.last_rank);
  replay(input, recorder);
  f.breakdown = recorder.breakdown(plain.makespan);
  f.traffic = traffic_of(graph, times, plain.last_rank);
  add_rates(f, s, executed_flops(graph, s));
  f.calibration = profile.name;
  f.calibration_kind = profile.kind;
  f.calibration_sha256 = profile.sha256;
  add_warnings(f);
  return f;
}

}  // namespace stepcast
