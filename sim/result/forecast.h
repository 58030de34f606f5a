// A forecast of one step: everything from a resolved scenario to the numbers of the result document.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cost/profile.h"
#include "layout/scenario.h"
#include "memory/ledger.h"
#include "result/breakdown.h"

namespace stepcast {

struct Traffic {                                  // bytes that the reported rank sends in a step
  double tp = 0, cp = 0, ep = 0, pp = 0, dp = 0;  // by purpose
  double nvlink = 0, network = 0;                 // by link
};

struct Forecast {
  double step_time_s = 0;
  std::array<double, 2> interval_s{};  // 90 %
  double tokens_per_s = 0;
  double model_tflops_per_gpu = 0;
  double mfu = 0;
  double hfu = 0;
  MemoryReport memory;
  Breakdown breakdown;
  std::int32_t last_rank = 0;  // pipeline rank that ends last: breakdown and traffic are its
  Traffic traffic;
  std::string calibration;
  std::string calibration_kind;
  std::string calibration_sha256;
  std::vector<std::string> assumptions;
  std::vector<std::string> warnings;
  std::int64_t ranks_simulated = 0;
  std::uint64_t tasks = 0;
};

// Throws NotSimulated when the step asks for what is not simulated, or has more tasks than a replay is allowed.
Forecast forecast(const Scenario& scenario);

}  // namespace stepcast
