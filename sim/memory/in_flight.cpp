#include "memory/in_flight.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "schedule/schedule.h"

namespace stepcast {
namespace {

double d(std::int64_t value) { return static_cast<double>(value); }

double sum_alive(const std::vector<double>& alive, const std::vector<ChunkBytes>& chunks) {
  double bytes = 0;
  for (std::size_t c = 0; c < chunks.size(); ++c) bytes += alive[c] * chunks[c].alive;
  return bytes;
}

// A moment at which the backward of any chunk may run.
PeakMoment any_backward(std::vector<double> alive, const std::vector<ChunkBytes>& chunks) {
  PeakMoment peak;
  for (std::size_t c = 0; c < chunks.size(); ++c)
    if (chunks[c].backward >= chunks[peak.chunk].backward) peak.chunk = c;
  peak.bytes = sum_alive(alive, chunks) + chunks[peak.chunk].backward;
  peak.alive = std::move(alive);
  return peak;
}

// Warm-up and one period of the steady phase hold every mixture of chunks that a longer run has.
std::int64_t enough_microbatches(const PipelineShape& shape) {
  return std::min(shape.microbatches, 3 * shape.group + 2 * shape.pp);
}

PeakMoment walk_interleaved(const Scenario& s, std::int64_t rank, const std::vector<ChunkBytes>& chunks) {
  PipelineShape shape{s.layout.pp, static_cast<std::int64_t>(chunks.size()), s.microbatches(),
                      std::max<std::int64_t>(1, s.layout.microbatch_group), s.overlap.moe_a2a ? 1 : 0};
  shape.microbatches = enough_microbatches(shape);
  std::vector<double> alive(chunks.size(), 0);
  PeakMoment peak;
  peak.alive = alive;
  for (const PipelineOp& op : order_interleaved(shape, rank)) {
    const auto c = static_cast<std::size_t>(op.chunk);
    if (op.pass == 'F') {
      alive[c] += 1;
      continue;
    }
    const double bytes = sum_alive(alive, chunks) + chunks[c].backward;
    if (bytes > peak.bytes) peak = {alive, c, op.microbatch, bytes};
    alive[c] -= 1;
  }
  return peak;
}

// `total` chunks shared out by the times for which a micro-batch stays in the first and in the second chunk.
std::vector<double> shared_out(double total, double first, double second) {
  const double in_second =
      std::clamp(std::round(total * second / (first + second)), 1.0, std::max(1.0, total - 1));
  return {total - in_second, in_second};
}

// The V-Half and V-Min patterns of ZBP's zbv_greedy.py: lifetimes in ticks.
std::vector<double> v_half(double p, double r, bool even) {
  const double slack = even ? 3 : 0;
  return shared_out(2 * std::floor(p / 2) + 2, 6 * p + slack - 3 * r - 2, slack + 3 * r + 1);
}

std::vector<double> v_min(double p, double r, bool by_three) {
  const double slack = by_three ? 2 : 0;
  return shared_out(2 * (std::floor((p + 1) / 3) + 1), 4 * p + slack - 2 * r - 1, slack + 2 * r + 1);
}

// Micro-batches alive, by chunk, without the limit of m.
std::vector<double> closed_form(const std::string& schedule, std::int64_t ranks, std::int64_t rank) {
  const double p = d(ranks), r = d(rank);
  if (schedule == "zb-h1") return {p};
  if (schedule == "zb-2p") return {2 * p - 1};
  if (schedule == "zb-v") return {2 * p - 1 - r, r + 1};
  if (schedule == "v-half") return v_half(p, r, ranks % 2 == 0);
  if (schedule == "v-min") return v_min(p, r, ranks % 3 == 0);
  if (schedule == "dualpipe") return {p - r, r + 1};
  if (schedule == "dualpipe-v") return {2 * p - r, r + 1};
  return {p - r};  // 1F1B
}

}  // namespace

PeakMoment fullest_moment(const Scenario& s, std::int64_t rank, const std::vector<ChunkBytes>& chunks) {
  const std::string& schedule = s.layout.schedule;
  if (schedule == "interleaved" && chunks.size() > 1) return walk_interleaved(s, rank, chunks);
  // DualPipe feeds one half of the micro-batches from each end.
  const double m =
      d(schedule == "dualpipe" ? std::max<std::int64_t>(1, s.microbatches() / 2) : s.microbatches());
  if (schedule == "gpipe" || schedule == "bfs") {
    PeakMoment peak = any_backward(std::vector<double>(chunks.size(), m), chunks);
    peak.microbatch = static_cast<std::int64_t>(m) - 1;
    return peak;
  }
  std::vector<double> alive = closed_form(schedule, s.layout.pp, rank);
  alive.resize(chunks.size(), alive.back());
  for (double& count : alive) count = std::min(m, count);
  return any_backward(std::move(alive), chunks);
}

}  // namespace stepcast
