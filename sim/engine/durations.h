// One duration an op of a graph: kernels by the GPU's profile, transfers by the network's closed forms.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/units.h"
#include "cost/profile.h"
#include "graph/step_graph.h"
#include "network/closed_form.h"

namespace stepcast {

struct OpTimes {
  std::vector<Ticks> ticks;             // by op
  std::vector<TransferCost> transfers;  // by op; zero for kernels
  std::set<std::string>
      extrapolated;  // kernel families that the step uses and no measurement of this GPU covers
};

// Throws InputError when the profile has no rate for a format that the step uses.
OpTimes op_times(const StepGraph& graph, const Profile& profile, const ClosedForms& network);

}  // namespace stepcast
