// Model FLOPs of a step in Megatron's convention: forward + input gradient + weight gradient (factor 3 of the
// forward), causal half of attention, recompute not counted; router, norms, softmax, embedding lookup not
// counted; MTP counted. Per token at sequence length s:
//   6 h gamma [f L_d + (k f_e + f_s) L_m] + 6 A_lin (L + M) + 6 A_core s_eff (L + M)
//   + 6 M (3 h + 2 h^2) + 6 h V (M + 1)
// where an MTP layer is of the last layer's kind; see domain formulas for A_lin and A_core of GQA and MLA,
// and for the vision encoder (full attention, no halving). Experts of a latent width work on that instead
// of h, and 12 h latent is added.
#pragma once

#include <cstdint>

#include "model/model.h"

namespace stepcast {

// `vocab`: rows of the output matrix (padded or not).
double model_flops_per_token(const Model& model, std::int64_t seq_len, std::int64_t vocab);

// Mean number of keys that a query of a causal sequence of s attends to: w - w (w - 1) / (2 s) under a window
// w, s / 2 without (Megatron's rounding of (s + 1) / 2).
double attended_keys(std::int64_t seq_len, std::int64_t window);

}  // namespace stepcast
