// What each pipeline stage's rank holds at the peak of a step, by kind. Bytes of the worst moment of that
// rank.
//   allocated = parameters + gradients + optimizer + activations + buffers   (the allocator's live peak)
//   reserved  = allocated x the stack's fragmentation
//   device    = reserved + runtime (CUDA context, NCCL, workspaces)           (what nvidia-smi shows)
// The formulas are those of domain 4; each term lies in states.h (model states per parameter), activations.h
// (saved tensors of a layer, logits), in_flight.h (micro-batches alive by schedule) and buffers.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cost/stack.h"
#include "layout/scenario.h"
#include "layout/stage_split.h"

namespace stepcast {

struct StageMemory {
  std::int64_t rank = 0;  // PP rank
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;
  double buffers = 0;  // logits and loss, dispatch buffers, CUDA graphs, gathered parameters of ZeRO-3
  double runtime = 0;
  double allocated = 0;
  double reserved = 0;
  double device = 0;
  double host = 0;          // in host memory, of this rank: states and activations that were moved there
  std::string peak_moment;  // "micro-batch 3, backward of chunk 0"
};

struct MemoryReport {
  double capacity = 0;
  std::vector<StageMemory> stages;  // by PP rank
  std::size_t worst = 0;            // index of the rank with the most device bytes
  Stack stack;                      // the constants used

  const StageMemory& peak() const { return stages[worst]; }
  bool fits() const { return peak().device <= capacity; }
};

// More would take minutes to walk.
inline constexpr std::int64_t kMostStages = 4096;

// Throws NotSimulated for more than kMostStages pipeline stages, and for LoRA.
MemoryReport memory_report(const Scenario& scenario, const StageSplit& split, const Stack& stack);

}  // namespace stepcast
