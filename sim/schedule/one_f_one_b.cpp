// Megatron's forward_backward_pipelining_without_interleaving: rank r warms up with min(p - r - 1, m)
// forwards, then alternates. Bubble (p - 1)(t_F + t_B).
#include <algorithm>

#include "schedule/schedule.h"

namespace stepcast {

std::vector<PipelineOp> order_1f1b(const PipelineShape& shape, std::int64_t rank) {
  const std::int64_t m = shape.microbatches;
  const std::int64_t warmup = std::min(shape.pp - rank - 1 + shape.extra_warmup, m);
  std::vector<PipelineOp> order;
  order.reserve(static_cast<std::size_t>(2 * m));
  for (std::int64_t i = 0; i < warmup; ++i) order.push_back({'F', 0, i});
  for (std::int64_t i = 0; i < m - warmup; ++i) {
    order.push_back({'F', 0, warmup + i});
    order.push_back({'B', 0, i, true});
  }
  for (std::int64_t i = m - warmup; i < m; ++i) order.push_back({'B', 0, i});
  return order;
}

}  // namespace stepcast
