// What to say about a memory report: why it does not fit and which single changes would help, each with the
// peak that the ledger gives for it; a warning near the limit; and what the ledger assumes.
#pragma once

#include <string>
#include <vector>

#include "layout/scenario.h"
#include "memory/ledger.h"

namespace stepcast {

// Share of the device's memory above which the allocator starts to free and retry: slow before it fails (user
// reports of 185 TFLOP/s falling to 33).
inline constexpr double kNearCapacity = 0.95;

// Empty when the scenario fits. Else: by how much it does not, what takes the room on the worst rank, the
// peak after each change that is legal, and how many GPUs the model states need.
std::vector<std::string> what_would_fit(const Scenario& scenario, const MemoryReport& report);

// One line when the worst rank fits with little to spare.
std::vector<std::string> memory_warnings(const MemoryReport& report);

// What the ledger takes for granted about this scenario and the scenario does not say.
std::vector<std::string> memory_assumptions(const Scenario& scenario);

// The fewest GPUs that can hold all model states, each kept once.
double gpus_for_states(const Scenario& scenario, const MemoryReport& report);

}  // namespace stepcast
