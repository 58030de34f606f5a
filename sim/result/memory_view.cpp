#include "result/memory_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "base/json.h"
#include "base/units.h"
#include "memory/advice.h"

namespace stepcast {
namespace {

struct Kind {
  const char* key;
  const char* title;
  double StageMemory::*bytes;
};

constexpr std::array kKinds = {Kind{"parameters_bytes", "weights", &StageMemory::parameters},
                               Kind{"gradients_bytes", "grads", &StageMemory::gradients},
                               Kind{"optimizer_bytes", "optimizer", &StageMemory::optimizer},
                               Kind{"activations_bytes", "activations", &StageMemory::activations},
                               Kind{"buffers_bytes", "buffers", &StageMemory::buffers},
                               Kind{"allocated_bytes", "allocated", &StageMemory::allocated},
                               Kind{"reserved_bytes", "reserved", &StageMemory::reserved},
                               Kind{"runtime_bytes", "runtime", &StageMemory::runtime},
                               Kind{"device_bytes", "device", &StageMemory::device},
                               Kind{"host_bytes", "host", &StageMemory::host}};

std::string gib(double bytes) { return fmt::format("{:.1f}", bytes / kGiB); }

// The host's column only where something was moved there.
bool shown(const Kind& kind, const MemoryReport& report) {
  if (kind.bytes != &StageMemory::host) return true;
  return std::any_of(report.stages.begin(), report.stages.end(),
                     [](const StageMemory& m) { return m.host > 0; });
}

}  // namespace

Json memory_json(const MemoryReport& report) {
  Json stages = Json::array();
  for (const StageMemory& m : report.stages) {
    Json stage = {{"stage", m.rank}};
    for (const Kind& kind : kKinds) stage[kind.key] = m.*kind.bytes;
    stages.push_back(std::move(stage));
  }
  return {{"capacity_bytes", report.capacity},
          {"peak_bytes", report.peak().device},
          {"peak_rank", report.peak().rank},
          {"peak_moment", report.peak().peak_moment},
          {"stages", stages}};
}

std::string memory_verdict(const MemoryReport& report) {
  const StageMemory& peak = report.peak();
  if (report.fits())
    return fmt::format("fits: {} of {} GiB on the worst rank (pipeline rank {}), {} GiB to spare\n",
                       gib(peak.device), gib(report.capacity), peak.rank, gib(report.capacity - peak.device));
  return fmt::format(
      "DOES NOT FIT: {} GiB on the worst rank (pipeline rank {}), {} GiB over the {} GiB that there are\n",
      gib(peak.device), peak.rank, gib(peak.device - report.capacity), gib(report.capacity));
}

std::string memory_table(const MemoryReport& report) {
  std::string text =
      fmt::format("memory by pipeline rank, GiB (peak: {})\n  {:>4}", report.peak().peak_moment, "rank");
  const auto out = std::back_inserter(text);
  const auto width = [](const Kind& kind) {
    return std::max<std::size_t>(8, std::string(kind.title).size());
  };
  for (const Kind& kind : kKinds)
    if (shown(kind, report)) fmt::format_to(out, " {:>{}}", kind.title, width(kind));
  text += '\n';
  const auto& stages = report.stages;
  const std::size_t step = std::max<std::size_t>(1, (stages.size() + 6) / 7);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (i != report.worst && i % step != 0 && i + 1 != stages.size()) continue;
    fmt::format_to(out, "  {:>4}", stages[i].rank);
    for (const Kind& kind : kKinds)
      if (shown(kind, report)) fmt::format_to(out, " {:>{}}", gib(stages[i].*kind.bytes), width(kind));
    text += i == report.worst ? "  worst\n" : "\n";
  }
  if (stages.size() > 8) fmt::format_to(out, "  ({} ranks; --json has them all)\n", stages.size());
  return text;
}

std::string ways_out(const Scenario& scenario, const MemoryReport& report) {
  if (report.fits()) return {};
  std::string text = "what would make it fit\n";
  for (const std::string& line : what_would_fit(scenario, report)) text += "  - " + line + '\n';
  return text;
}

}  // namespace stepcast
