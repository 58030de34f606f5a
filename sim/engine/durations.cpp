#include "engine/durations.h"

#include "cost/kernel_time.h"

namespace stepcast {

OpTimes op_times(const StepGraph& graph, const Profile& profile, const ClosedForms& network) {
  OpTimes times;
  times.ticks.reserve(graph.ops.size());
  times.transfers.resize(graph.ops.size());
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    double seconds = op.fixed_s;
    if (op.communicates) {
      times.transfers[i] = network.cost(op.transfer);
      seconds = times.transfers[i].seconds;
    } else if (op.fixed_s <= 0 && op.cls != OpClass::kOther) {
      seconds = kernel_time(op.kernel, profile);
    }
    times.ticks.push_back(ticks(seconds * op.scale));
  }
  return times;
}

}  // namespace stepcast
