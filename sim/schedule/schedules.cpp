#include <algorithm>
#include <array>

#include "schedule/schedule.h"

namespace stepcast {
namespace {

constexpr std::array kSchedules = {
    Schedule{"gpipe", "all forwards, then all backwards", order_gpipe},
    Schedule{"1f1b", "one forward, one backward (Megatron without interleaving)", order_1f1b},
    Schedule{"interleaved", "1F1B over several model chunks a rank, depth first (Megatron)",
             order_interleaved},
};

}  // namespace

std::span<const Schedule> schedules() { return kSchedules; }

const Schedule* find_schedule(std::string_view name) {
  const auto* found =
      std::find_if(kSchedules.begin(), kSchedules.end(), [&](const Schedule& s) { return s.name == name; });
  return found == kSchedules.end() ? nullptr : found;
}

std::int64_t peak_in_flight(const std::vector<PipelineOp>& order) {
  std::int64_t now = 0;
  std::int64_t peak = 0;
  for (const PipelineOp& op : order) {
    now += op.pass == 'F' ? 1 : -1;
    peak = std::max(peak, now);
  }
  return peak;
}

}  // namespace stepcast
