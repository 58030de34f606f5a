// The result document (stepcast/result/1) and its readable form.
#pragma once

#include <string>

#include "base/json_fwd.h"
#include "result/forecast.h"

namespace stepcast {

// Everything but `run`, which differs from run to run.
Json result_document(const Scenario& scenario, const Forecast& forecast);

// `run`: mode, network, ranks, events, wall clock, memory of this process.
Json run_section(const Forecast& forecast, double wall_s);

std::string result_text(const Scenario& scenario, const Forecast& forecast);

}  // namespace stepcast
