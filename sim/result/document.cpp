#include "result/document.h"

#include <sys/resource.h>

#include "base/json.h"
#include "result/memory_view.h"

#ifndef STEPCAST_VERSION
#define STEPCAST_VERSION "unknown"
#endif

namespace stepcast {
Json result_document(const Scenario& scenario, const Forecast& f) {
  Json breakdown = Json::object();
  for (const auto& [name, value] : f.breakdown.seconds) breakdown[name] = value;
  const double gpus = static_cast<double>(scenario.cluster.gpus);
  return {{"schema", "stepcast/result/1"},
          {"name", scenario.name},
          {"scenario", *scenario.resolved},
          {"step_time_s", f.step_time_s},
          {"step_time_interval_s", {f.interval_s[0], f.interval_s[1]}},
          {"tokens_per_s", f.tokens_per_s},
          {"tokens_per_s_per_gpu", f.tokens_per_s / gpus},
          {"model_tflops_per_gpu", f.model_tflops_per_gpu},
          {"mfu", f.mfu},
          {"hfu", f.hfu},
          {"peak_flops", scenario.cluster.gpu.bf16_flops},
          {"fits", f.memory.fits()},
          {"memory", memory_json(f.memory)},
          {"breakdown_s", breakdown},
          {"traffic_bytes",
           {{"tp", f.traffic.tp},
            {"cp", f.traffic.cp},
            {"ep", f.traffic.ep},
            {"pp", f.traffic.pp},
            {"dp", f.traffic.dp},
            {"nvlink", f.traffic.nvlink},
            {"network", f.traffic.network}}},
          {"warnings", f.warnings},
          {"provenance",
           {{"version", STEPCAST_VERSION},
            {"calibration",
             {{"name", f.calibration}, {"sha256", f.calibration_sha256}, {"kind", f.calibration_kind}}},
            {"stack", stack_json(scenario.stack)},
            {"assumptions", f.assumptions}}}};
}

Json run_section(const Forecast& forecast, double wall_s) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {{"mode", "folded"},         {"network", "closed"}, {"ranks_simulated", forecast.ranks_simulated},
          {"events", forecast.tasks}, {"wall_s", wall_s},    {"peak_rss_bytes", usage.ru_maxrss * 1024}};
}

}  // namespace stepcast
