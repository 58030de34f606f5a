// What one rank computes on for one micro-batch: the scenario's sizes after TP, CP, EP and ETP. Symbols as in
// Megatron's documentation; tokens and widths are held in double because they only enter FLOPs and bytes.
#pragma once

#include "cost/op.h"
#include "cost/stack.h"
#include "layout/scenario.h"

namespace stepcast {

struct Shapes {
  double tp, cp, ep, etp;
  double batch;         // b: sequences of a micro-batch
  double seq;           // s / c: positions of a sequence on this rank
  double full_seq;      // s
  double tokens;        // T = s b / c: tokens that a TP group works on
  double local_tokens;  // T / t under sequence parallelism, else T: tokens of norms, residuals, router
  double hidden;
  double vocab_rows;        // of the padded vocabulary, V' / t
  double activation_bytes;  // per element
  Dtype linear;             // inputs of the decoder's linear layers
  Dtype plain;              // of router, head, attention
  bool sequence_parallel;
};

Shapes shapes_of(const Scenario& scenario);

// Bytes moved by quantising one element of an activation or gradient for the recipe (read BF16, write both
// layouts); 0 for recipes without quantisation.
double quantise_bytes_per_element(Recipe recipe);

}  // namespace stepcast
