// Model states: what a rank keeps for each parameter. Bytes (domain 4.1; d = ranks that shard):
//   bf16, fp32 gradients            2 + 4 + 12        ZeRO-0
//                                   2 + 4 + 12/d      ZeRO-1, the distributed optimizer
//                                   2 + (4 + 12)/d    ZeRO-2
//                                   (2 + 4 + 12)/d    ZeRO-3
//   bf16 gradients                  2 + 2 + 12/d
//   fp16; DeepSpeed                 2 + 2 + 16/d      2-byte gradients and an fp32 copy of them
//   fp32                            4 + 4 + 8/d
//   bf16 moments                    2 + 4 + 6/d       the master is 2 bytes more than the weight
//   PyTorch FSDP, ZeRO-3            (4 + 4 + 8)/d     the sharded fp32 weight is the master
//   FP8 compute, bf16 weights       quantised copies of the linear weights on top
//   fp8_params                      these copies instead of the bf16 weights
// d: DP x CP for dense parameters, expert DP for routed experts; with `scope: node` only the ranks of one
// node; divided by the instances of the distributed optimizer.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/scenario.h"
#include "layout/stage_split.h"

namespace stepcast {

// Parameters on one GPU of a PP rank, after TP, EP and ETP.
struct HeldParameters {
  double plain = 0;    // norms, biases, router, embedding, head: never quantised
  double linear = 0;   // weights of the decoder's linear layers
  double experts = 0;  // routed experts: linear too, but sharded over expert DP

  double dense() const { return plain + linear; }
  double total() const { return plain + linear + experts; }
  HeldParameters& operator+=(const HeldParameters& other);
};

struct StateBytes {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double host = 0;  // moved to the host

  double on_gpu() const { return parameters + gradients + optimizer; }
};

// Bytes per parameter of each state, before sharding. Without an fp32 master all are of 2 bytes.
struct StateWidths {
  double weight = 2;
  double gradient = 4;
  double master = 0;  // fp32 weights of the optimizer, where they are not the weights themselves
  double moment = 4;  // of each
  double gradient_copy = 0;
};

StateWidths state_widths(const Scenario& scenario, bool fp32_master = true);

// Stages of the split that a PP rank holds, by chunk. DualPipe: the rank's own stage and its mirror image.
std::vector<Stage> stages_of_rank(const Scenario& scenario, const StageSplit& split, std::int64_t rank);

HeldParameters held_by_layer(const Scenario& scenario, std::int64_t layer);
// By these stages together, copies of shared tables included. A stage without its layers leaves its ends.
HeldParameters held_by_stages(const Scenario& scenario, const std::vector<Stage>& stages);
HeldParameters held_by_rank(const Scenario& scenario, const StageSplit& split, std::int64_t rank);

// Rows of the padded vocabulary on one TP rank.
double vocab_rows(const Scenario& scenario);

// How many ranks share the states of dense parameters or of routed experts.
double sharding_ranks(const Scenario& scenario, bool experts);

// Bytes of the cached low-precision copies of one linear weight; 0 for recipes without.
double quantised_weight_bytes(const Scenario& scenario);

// Of one linear weight: itself and its copies, or with fp8_params the copies alone.
double linear_weight_bytes(const Scenario& scenario, const StateWidths& widths);

StateBytes state_bytes(const Scenario& scenario, const HeldParameters& held, bool fp32_master = true);

}  // namespace stepcast
