#include "schedule/schedule.h"

namespace stepcast {

std::vector<PipelineOp> order_gpipe(const PipelineShape& shape, std::int64_t /*rank*/) {
  std::vector<PipelineOp> order;
  for (std::int64_t i = 0; i < shape.microbatches; ++i) order.push_back({'F', 0, i});
  for (std::int64_t i = shape.microbatches; i-- > 0;) order.push_back({'B', 0, i});
  return order;
}

}  // namespace stepcast
