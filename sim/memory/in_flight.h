// Micro-batches alive on PP rank r at its fullest moment, by chunk (domain 4.3; p ranks, v chunks a rank, m
// micro-batches, N the group of interleaving):
//   GPipe, breadth-first   m a chunk
//   1F1B                   min(m, p - r)
//   interleaved            min(m v, 2 (p - r - 1) + (v - 1) N + 1) chunks; walked, to see which
//   ZB-H1, ZB-2p           min(m, p), min(m, 2 p - 1)
//   ZB-V, V-Half, V-Min    2 p, 2 floor(p / 2) + 2, 2 (floor((p + 1) / 3) + 1) chunks
//   DualPipe, DualPipeV    p + 1, 2 p + 1 chunks over the rank's two stages
// Expert overlap (moe_a2a) keeps one more when interleaved; without a pipeline the forward fills layer by
// layer what the backward beside it empties. A micro-batch counts until its weight gradient.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layout/scenario.h"

namespace stepcast {

// What a micro-batch in a chunk holds, and what the chunk's backward holds on top while it runs.
struct ChunkBytes {
  double alive = 0;
  double backward = 0;
};

struct PeakMoment {
  std::vector<double> alive;    // micro-batches, by chunk
  std::size_t chunk = 0;        // whose backward begins
  std::int64_t microbatch = 0;  // of that backward
  double bytes = 0;
};

// The fullest moment of PP rank `rank`; `chunks` has one element for each chunk that the rank holds.
PeakMoment fullest_moment(const Scenario& scenario, std::int64_t rank, const std::vector<ChunkBytes>& chunks);

}  // namespace stepcast
