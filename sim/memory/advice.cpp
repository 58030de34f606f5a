#include "memory/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/units.h"
#include "layout/megatron_scenario.h"
#include "layout/rules.h"
#include "memory/states.h"

namespace stepcast {
namespace {

struct Change {
  std::string what;  // "recompute.granularity full"
  std::function<void(Scenario&)> apply;
};

// Sizes that follow from a changed layout. False when the ranks do not divide or a rule is broken.
bool settle(Scenario& s) {
  Layout& l = s.layout;
  const std::int64_t dense = l.tp * l.cp * l.pp;
  const std::int64_t expert = l.etp * l.ep * l.pp;
  if (s.cluster.gpus % dense != 0 || s.cluster.gpus % expert != 0) return false;
  l.dp = s.cluster.gpus / dense;
  l.edp = s.cluster.gpus / expert;
  if (s.batch.global % (s.batch.micro * l.dp) != 0) return false;
  return check_rules(megatron_arguments(s)).empty();
}

void double_pp(Scenario& s) {
  if (s.layout.microbatch_group == s.layout.pp) s.layout.microbatch_group *= 2;
  s.layout.pp *= 2;
  s.layout.stages.clear();
}

std::vector<Change> changes(const Scenario& s) {
  std::vector<Change> list;
  const auto offer = [&](bool when, std::string what, std::function<void(Scenario&)> apply) {
    if (when) list.push_back({std::move(what), std::move(apply)});
  };
  const Layout& l = s.layout;
  const bool full = s.recompute.granularity == Granularity::kFull && !s.recompute.layers;
  offer(!full, "recompute.granularity full", [](Scenario& c) { c.recompute = {Granularity::kFull, {}, {}}; });
  offer(s.batch.micro > 1, fmt::format("batch.micro {}", s.batch.micro / 2),
        [](Scenario& c) { c.batch.micro /= 2; });
  offer(s.optimizer.grad_bytes == 4 && s.precision.recipe != Recipe::kFp32, "optimizer.grad_dtype bf16",
        [](Scenario& c) { c.optimizer.grad_bytes = 2; });
  offer(s.optimizer.state_bytes == 4, "optimizer.state_dtype bf16",
        [](Scenario& c) { c.optimizer.state_bytes = 2; });
  offer(s.sharding.zero_stage == 0, "sharding.zero_stage 1", [](Scenario& c) { c.sharding.zero_stage = 1; });
  offer(s.model.moe && l.ep * 2 <= s.model.moe->experts, fmt::format("layout.ep {}", 2 * l.ep),
        [](Scenario& c) { c.layout.ep *= 2; });
  offer(l.tp * 2 <= s.cluster.gpus_per_node, fmt::format("layout.tp {} with sequence parallelism", 2 * l.tp),
        [](Scenario& c) {
          c.layout.tp *= 2;
          c.layout.sequence_parallel = true;
        });
  offer(l.pp * 2 * l.vpp <= s.model.layers, fmt::format("layout.pp {}", 2 * l.pp), double_pp);
  offer(s.offload.optimizer_fraction < 1, "offload.optimizer_fraction 1",
        [](Scenario& c) { c.offload.optimizer_fraction = 1; });
  return list;
}

std::string gib(double bytes) { return fmt::format("{:.1f} GiB", bytes / kGiB); }

std::string headline(const MemoryReport& report) {
  const StageMemory& worst = report.peak();
  return fmt::format("does not fit by {}: PP rank {} needs {} of {} ({})",
                     gib(worst.device - report.capacity), worst.rank, gib(worst.device), gib(report.capacity),
                     worst.peak_moment);
}

std::string room_on(const StageMemory& m) {
  std::vector<std::pair<double, std::string>> parts = {{m.parameters, "parameters"},
                                                       {m.gradients, "gradients"},
                                                       {m.optimizer, "optimizer"},
                                                       {m.activations, "activations"},
                                                       {m.buffers, "buffers"},
                                                       {m.runtime, "outside the allocator"},
                                                       {m.reserved - m.allocated, "fragmentation"}};
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [bytes, name] : parts) {
    if (bytes < 0.01 * m.device) continue;
    text +=
        fmt::format("{}{} {} ({:.0f} %)", text.empty() ? "" : ", ", name, gib(bytes), 100 * bytes / m.device);
  }
  return text;
}

}  // namespace

double gpus_for_states(const Scenario& scenario, const MemoryReport& report) {
  Scenario whole = scenario;
  whole.layout = {};
  whole.sharding.zero_stage = 0;
  whole.offload.resident_expert_fraction = 1;
  whole.layout.schedule = "1f1b";
  const bool fp32_master = report.stack.fp32_master;
  const StateBytes states = state_bytes(whole, held_by_rank(whole, split_of(whole), 0), fp32_master);
  const double room = (report.capacity - report.peak().runtime) / report.stack.fragmentation;
  return std::max(1.0, std::ceil(states.on_gpu() / std::max(1.0, room)));
}

std::vector<std::string> what_would_fit(const Scenario& scenario, const MemoryReport& report) {
  if (report.fits()) return {};
  std::vector<std::string> lines = {
      headline(report), "PP rank " + std::to_string(report.peak().rank) + " holds " + room_on(report.peak())};
  for (const Change& change : changes(scenario)) {
    Scenario changed = scenario;
    change.apply(changed);
    if (!settle(changed)) continue;
    const MemoryReport after = memory_report(changed, split_of(changed), report.stack);
    if (after.peak().device >= report.peak().device) continue;
    const double over = after.peak().device - after.capacity;
    lines.push_back(fmt::format("{}: {}, {}", change.what, gib(after.peak().device),
                                after.fits() ? "fits" : "still " + gib(over) + " too much"));
  }
  lines.push_back(fmt::format("model states kept once need {:.0f} GPUs of {}; the scenario has {}",
                              gpus_for_states(scenario, report), gib(report.capacity),
                              scenario.cluster.gpus));
  return lines;
}

std::vector<std::string> memory_warnings(const MemoryReport& report) {
  const double used = report.peak().device / report.capacity;
  if (!report.fits() || used <= kNearCapacity) return {};
  return {fmt::format(
      "PP rank {} uses {:.0f} % of the GPU's memory: above {:.0f} % the allocator retries and the "
      "step can be much slower",
      report.peak().rank, 100 * used, 100 * kNearCapacity)};
}

std::vector<std::string> memory_assumptions(const Scenario& s) {
  std::vector<std::string> notes;
  const auto note = [&](bool holds, const char* text) {
    if (holds) notes.emplace_back(std::string("memory: ") + text);
  };
  const RoutingKind routing = s.moe.routing.kind;
  note(s.precision.fp8_params && s.precision.recipe == Recipe::kMxfp8,
       "the gather of MXFP8 weights passes BF16 through the gradient buffer and needs no buffer of its own");
  note(!s.offload.activations.empty(), "offloaded activations need pinned host memory of their own size");
  note(s.offload.resident_expert_fraction < 1,
       "gradients and optimizer state of experts on the host stay there");
  note(s.model.vision.has_value(),
       "the vision encoder is on the first stage, split over TP, without sequence or context parallelism");
  note(s.kernels.cuda_graphs != CudaGraphs::kNone,
       "static buffers of CUDA graphs as the framework's documentation states them, not derived");
  note(!s.batch.lengths.empty(), "packed documents fill sequences of batch.seq_len tokens");
  note(routing == RoutingKind::kDirichlet || routing == RoutingKind::kHistogram,
       "experts counted as evenly loaded; a fuller rank needs more");
  return notes;
}

}  // namespace stepcast
