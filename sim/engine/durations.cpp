#include "engine/durations.h"

#include <fmt/format.h>

#include <array>

#include "base/problem.h"
#include "cost/kernel_time.h"

namespace stepcast {
namespace {

void require_rate(const Kernel& kernel, const Profile& profile) {
  constexpr std::array kNames = {"TF32 or FP32",     "FP16",  "BF16", "per-tensor FP8",
                                 "block-scaled FP8", "MXFP8", "NVFP4"};
  const auto dtype = static_cast<std::size_t>(kernel.dtype);
  const bool dense = kernel.kind == KernelKind::kGemm;
  const bool grouped = kernel.kind == KernelKind::kGroupedGemm;
  if (!dense && !grouped) return;
  if ((dense ? profile.gemm : profile.grouped_gemm)[dtype].present) return;
  throw InputError({"profile " + profile.name, "/gemm",
                    fmt::format("has no {} GEMM rate, which the step uses", kNames[dtype]),
                    "a profile of a GPU with such tensor cores, or another precision.recipe"});
}

}  // namespace

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
      require_rate(op.kernel, profile);
      seconds = kernel_time(op.kernel, profile);
    }
    times.ticks.push_back(ticks(seconds * op.scale));
  }
  return times;
}

}  // namespace stepcast
