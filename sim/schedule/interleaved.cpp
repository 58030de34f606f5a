// Megatron's interleaved 1F1B, depth first. Warm-up of rank r: min(m v, 2 (p - r - 1) + (v - 1) N), N the
// group size. The k-th backward runs chunk v - 1 - chunk(k-th forward). Bubble (p - 1)(t_F + t_B) / v when p
// divides m.
#include <algorithm>

#include "schedule/schedule.h"

namespace stepcast {

std::vector<PipelineOp> interleaved_table(const PipelineShape& shape) {
  std::vector<PipelineOp> table;
  table.reserve(static_cast<std::size_t>(shape.microbatches * shape.chunks));
  for (std::int64_t first = 0; first < shape.microbatches; first += shape.group) {
    const std::int64_t last = std::min(first + shape.group, shape.microbatches);
    for (std::int64_t chunk = 0; chunk < shape.chunks; ++chunk)
      for (std::int64_t i = first; i < last; ++i) table.push_back({'F', chunk, i});
  }
  return table;
}

std::vector<PipelineOp> order_interleaved(const PipelineShape& shape, std::int64_t rank) {
  const std::vector<PipelineOp> forwards = interleaved_table(shape);
  const auto total = static_cast<std::int64_t>(forwards.size());
  const std::int64_t warmup =
      std::min(total, 2 * (shape.pp - rank - 1) + (shape.chunks - 1) * shape.group + shape.extra_warmup);
  const auto backward = [&](std::int64_t k, bool pairs) {
    const PipelineOp& f = forwards[static_cast<std::size_t>(k)];
    return PipelineOp{'B', shape.chunks - 1 - f.chunk, f.microbatch, pairs};
  };
  std::vector<PipelineOp> order(forwards.begin(), forwards.begin() + warmup);
  order.reserve(static_cast<std::size_t>(2 * total));
  for (std::int64_t k = 0; k < total - warmup; ++k) {
    order.push_back(forwards[static_cast<std::size_t>(warmup + k)]);
    order.push_back(backward(k, true));
  }
  for (std::int64_t k = total - warmup; k < total; ++k) order.push_back(backward(k, false));
  return order;
}

}  // namespace stepcast
