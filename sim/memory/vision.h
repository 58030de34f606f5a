// Activations of a vision encoder, of one micro-batch on the rank that holds the embedding (PP stage 0, as in
// Megatron-Core's LLaVA and Qwen-VL models). P: patches of a micro-batch; h, f, n: the encoder's sizes; gamma:
// matrices of its FFN; t: TP; e: 2 bytes (4 in fp32) whatever the recipe.
//   layer   P (4 e h + (4 e h + 4 n + e gamma f) / t)   norm inputs and outputs; q, k, v, attention output and
//                                                       log-sum-exp; FFN
//   patches P e 6 patch^2                               pixels of 3 colours and 2 frames
//   merger  P (2 e h + 2 e h / t), 1 + deepstack times  norm; both linear layers work on P / merge^2 tokens of
//                                                       merge^2 h
// Choices: weights and heads are split over TP as in the language model; sequence parallelism is not used, so
// norms are whole on each TP rank; context parallelism does not divide the patches. Attention is full (not
// causal) by a flash kernel, which saves as much as a causal one. Full recompute keeps e h a patch and layer.
// Source: domain 1.2 (Qwen-VL style), 4.2.
#pragma once

#include "layout/scenario.h"

namespace stepcast {

struct VisionMemory {
  double kept = 0;    // until the backward
  double on_top = 0;  // while one of its layers runs its backward: recomputed tensors and gradients
};

VisionMemory vision_memory(const Scenario& scenario);

}  // namespace stepcast
