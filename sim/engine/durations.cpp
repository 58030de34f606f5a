#include "engine/durations.h"

#include <fmt/format.h>

#include <array>

#include "base/problem.h"
#include "cost/kernel_time.h"

namespace stepcast {
namespace {

constexpr std::array kDtypeNames = {"TF32 or FP32",     "FP16",  "BF16", "per-tensor FP8",
                                    "block-scaled FP8", "MXFP8", "NVFP4"};

bool measured(const std::string& status) {
  return status == "fitted-public" || status == "published" || status == "measured";
}

// "BF16 expert GEMMs (scaled)" when the rate behind the kernel was not measured on this GPU.
void note_extrapolated(const Kernel& kernel, const Profile& profile, std::set<std::string>& notes) {
  const auto dtype = static_cast<std::size_t>(kernel.dtype);
  if (kernel.kind == KernelKind::kMemory) return;
  if (kernel.kind == KernelKind::kAttention) {
    const std::string& status = attention_rate(kernel, profile).status;
    if (!measured(status)) notes.insert(fmt::format("attention ({})", status));
    return;
  }
  const bool dense = kernel.kind == KernelKind::kGemm;
  const std::string& status = (dense ? profile.gemm : profile.grouped_gemm)[dtype].status;
  if (!measured(status))
    notes.insert(fmt::format("{} {}GEMMs ({})", kDtypeNames[dtype], dense ? "" : "expert ", status));
}

void require_rate(const Kernel& kernel, const Profile& profile) {
  const auto dtype = static_cast<std::size_t>(kernel.dtype);
  const bool dense = kernel.kind == KernelKind::kGemm;
  const bool grouped = kernel.kind == KernelKind::kGroupedGemm;
  if (!dense && !grouped) return;
  if ((dense ? profile.gemm : profile.grouped_gemm)[dtype].present) return;
  throw InputError({"profile " + profile.name, "/gemm",
                    fmt::format("has no {} GEMM rate, which the step uses", kDtypeNames[dtype]),
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
      note_extrapolated(op.kernel, profile, times.extrapolated);
      seconds = kernel_time(op.kernel, profile);
    }
    times.ticks.push_back(ticks(seconds * op.scale));
  }
  return times;
}

}  // namespace stepcast
