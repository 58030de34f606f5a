#include "memory/vision.h"

#include <algorithm>

namespace stepcast {
namespace {

double d(std::int64_t value) { return static_cast<double>(value); }

}  // namespace

VisionMemory vision_memory(const Scenario& s) {
  if (!s.model.vision) return {};
  const Vision& v = *s.model.vision;
  const double e = s.precision.recipe == Recipe::kFp32 ? 4 : 2;
  const double t = d(s.layout.tp), h = d(v.hidden), n = d(v.heads), matrices = v.gated_ffn ? 3 : 2;
  const double patches = d(v.patches_per_sequence) * d(s.batch.micro);
  const double input = patches * e * h;
  const double layer = patches * (4 * e * h + (4 * e * h + 4 * n + e * matrices * d(v.ffn_hidden)) / t);
  const double pixels = patches * e * 3 * 2 * d(v.patch) * d(v.patch);
  const double merger = patches * (2 * e * h + 2 * e * h / t);
  const bool full = s.recompute.granularity == Granularity::kFull;
  // gradients: of the residual stream and of the wider half of a layer
  const double working = input + patches * e * std::max(4 * h, matrices * d(v.ffn_hidden)) / t;
  VisionMemory memory;
  memory.kept = d(v.layers) * (full ? input : layer) + pixels + d(1 + v.deepstack) * merger;
  memory.on_top = (full ? layer - input : 0) + working;
  return memory;
}

}  // namespace stepcast
