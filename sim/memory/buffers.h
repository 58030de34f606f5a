// Memory that is neither a model state nor an activation: gathered parameters of ZeRO-3, buffers of the token
// dispatcher and of TP overlap, and what lies outside the allocator (CUDA context, communicators).
#pragma once

#include <cstdint>

#include "cost/stack.h"
#include "layout/scenario.h"
#include "layout/stage_split.h"

namespace stepcast {

// DeepEP's buffers for R ranks (DEP csrc/legacy/config.hpp, deep_ep/buffers/legacy.py), ch = SMs / 2
// channels:
//   NVLink  ch min(R, 8) chunk (hidden_bytes + 8 + 128 16), chunk 256 up to 8 ranks, else 288
//   RDMA    2 ch (R / 8) 128 (hidden_bytes + 8 + 128 16 + 16)
struct DeepEpBuffers {
  double nvlink = 0;
  double rdma = 0;
};

DeepEpBuffers deepep_buffers(std::int64_t ranks, double hidden_bytes, std::int64_t sms);

// Parameters and gradients that ZeRO-3 holds whole at one moment.
double gathered_bytes(const Scenario& scenario, const StageSplit& split, std::int64_t rank,
                      const Stack& stack);

double dispatcher_bytes(const Scenario& scenario);
double tp_overlap_bytes(const Scenario& scenario);

// Experts that come from the host layer by layer: weights of the running layer (and of the next, when they are
// fetched ahead), and the running layer's gradients on their way back.
double streamed_expert_bytes(const Scenario& scenario, const Stack& stack);

// Static buffers that CUDA graphs hold: a figure of the stack, with pipeline stages another one.
double cuda_graph_bytes(const Scenario& scenario, const Stack& stack);

// Transformer Engine hands autograd a placeholder of the weight gradient; it caches one for each weight shape
// (pytorch/module/base.py, get_dummy_wgrad).
double cached_gradient_bytes(const Scenario& scenario, const StageSplit& split, std::int64_t rank);

std::int64_t communicators(const Scenario& scenario);
double runtime_bytes(const Scenario& scenario, const Stack& stack);

}  // namespace stepcast
