// What one micro-batch leaves in the memory of one rank until its backward, in bytes. e: bytes of an element,
// 2 (4 in fp32); q: bytes of a saved input of a quantised linear, scales included (e without quantisation);
// T = s b / c tokens; T_l = T / t with sequence parallelism, else T.
//   attention  T_l (e h + q h)                              input and output of the norm
//     GQA      T/t e (n + 2 g) d                            q, k, v
//     MLA      T_l ((e + q) q_l + e (kv_l + d_r) + q kv_l)  latents before and after their norms
//              T/t e n (2 d_qk + d_v)                       q, k, v
//     flash    T/t (e n d_v + 4 n)                          output and log-sum-exp
//     unfused  T/t (e n d_v + e n s)                        output and softmax; + 3 n s with dropout
//   FFN        T_l (e h + q h) + T/t (e (gamma - 1) f + q f)
//   MoE        T_l (e h + q h + 9 E + lambda k (q h + e (gamma - 1) f_e + q f_e + 4))
//              and the shared experts as an FFN
// lambda: tokens of the fullest rank over the mean.
// Sources: domain 4.2; Korthikanti et al. 2205.05198 (unfused attention with dropout).
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "cost/stack.h"
#include "layout/scenario.h"
#include "layout/stage_split.h"

namespace stepcast {

struct SavedTensor {
  std::string_view name;
  double bytes = 0;
  std::array<std::string_view, 2> dropped_by{};  // recompute modules that make saving it unnecessary
};

// Of one layer, for one micro-batch.
struct LayerMemory {
  std::vector<SavedTensor> tensors;  // all that the backward reads
  double input = 0;                  // the first of them: what full recompute keeps
  double working = 0;                // gradients and gathered inputs alive during the backward
};

class Activations {
 public:
  Activations(const Scenario& scenario, const Stack& stack);

  // Everything that the backward of a dense or MoE layer reads, whatever is recomputed.
  const LayerMemory& layer(bool moe) const { return moe ? moe_ : dense_; }
  double everything(bool moe) const { return sums_[moe].everything; }
  // What stays of it under the scenario's recompute; `in_full`: of a layer that is recomputed in full.
  double kept(bool moe, bool in_full) const { return in_full ? layer(moe).input : sums_[moe].kept; }

  // Of one micro-batch in a stage, without logits.
  double stage(const Stage& stage) const;
  // The largest that comes on top while the stage's backward runs: a recomputed layer and gradients.
  double backward(const Stage& stage) const;

  // Logits of the main head and of MTP depths that wait for their backward, and all of them at the loss.
  double saved_logits(const Stage& stage) const;
  double loss_peak(const Stage& stage) const;

  double boundary() const { return boundary_; }  // the tensor that crosses a pipeline boundary

 private:
  struct Sums {
    double everything = 0;
    double kept = 0;
  };

  std::int64_t recomputed(const Stage& stage) const;
  double on_top(bool moe, bool in_full) const;

  const Scenario& s_;
  LayerMemory dense_;
  LayerMemory moe_;
  std::array<Sums, 2> sums_;  // dense, MoE
  double boundary_ = 0;
  double logits_ = 0;  // of one head: how many
  double logits_bytes_ = 0;
};

// Tokens that the fullest expert rank receives over the mean. Zipf: experts sorted by load, the worst
// placement.
double expert_imbalance(const Scenario& scenario);

// Bytes of one element that a linear layer saves of its input, scales included.
double saved_input_bytes(Recipe recipe, double compute_capability);

}  // namespace stepcast
