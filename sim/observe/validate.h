// Forecasts against runs: stepcast/runs/1 in, stepcast/validation/1 out.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace stepcast {

struct Measured {
  std::optional<double> step_time_s;
  std::optional<double> peak_memory_bytes;
  std::string peak_memory_kind;  // allocated, reserved, device
  bool oom = false;
};

struct RunOutcome {
  std::string id;
  std::string series;
  std::string source;
  std::string completeness;
  std::string topology;
  std::string recipe;
  std::string kind;      // dense, moe
  std::string size;      // 1-8, 9-64, ...
  std::string workload;  // model, GPUs, global batch, sequence, recipe, stack: runs that can be ranked
  std::string status;    // ok, skipped, error
  std::string why;
  Json predicted;
  Json measured_json;
  Measured measured;
  double predicted_s = 0;
  double flops_only_s = 0;                // what a ranking by FLOPs alone would say
  std::optional<double> step_time_error;  // predicted / measured - 1
  std::optional<double> memory_error;
  bool oom_predicted = false;
  double device_bytes = 0;    // predicted, worst rank
  double capacity_bytes = 0;  // of the GPU
  bool in_interval = false;
  double interval_width = 0;  // of the step time, relative
};

// Reads every record, forecasts it on `threads` threads (0 = all), in the order of the files. `progress` is
// called with the number done, from any thread. Throws InputError when a file is not a runs document.
std::vector<RunOutcome> validate_runs(const std::vector<std::filesystem::path>& files, int threads,
                                      const std::function<void(std::size_t, std::size_t)>& progress);

Json validation_document(const std::vector<RunOutcome>& outcomes);
std::string validation_text(const std::vector<RunOutcome>& outcomes, const Json& document);

}  // namespace stepcast
