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
//   embedding  T_l e h (+ T_l h of dropout)               final norm  2 T_l e h      MTP depth  6 T_l e h
// lambda: tokens of the fullest rank over the mean. A vision encoder: vision.h.
// Recompute drops: core_attn softmax or log-sum-exp; layernorm both norm outputs; mla_up_proj q, k, v; moe_act
// the q f_e; mlp the FFN and its norm's output; shared_experts theirs; moe all of the MoE part but the norm's
// input and output (where its checkpoint begins); full all but the layer's input e h.
// Offload (Megatron's fine-grained activation offloading) moves the inputs of the named modules to the host
// when they have at least offload_min_elements; two groups (a module of a layer) are on their way:
//   attn_norm, mlp_norm  norm inputs    qkv_linear  norm output      core_attn  q, k, v
//   attn_proj  attention output         expert_fc1  q h lambda k     moe_act    e (gamma - 1) f_e lambda k
//   fused_group_mlp  all that the expert FFN saves
// Sources: domain 4.2; Megatron-LM docs/user-guide/features/fine_grained_activation_offloading.md; Korthikanti et al. 2205.05198 (unfused attention with dropout).
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "cost/stack.h"
#include "layout/scenario.h"
#include "layout/stage_split.h"
#include "memory/vision.h"

namespace stepcast {

struct SavedTensor {
  std::string_view name;
  double bytes = 0;
  double elements = 0;
  std::array<std::string_view, 2> dropped_by{};  // recompute modules that make saving it unnecessary
  std::array<std::string_view, 2> input_of{};    // offload modules that move it to the host
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
  // What stays of it on the GPU under the scenario's recompute and offload; `in_full`: of a layer that is
  // recomputed in full.
  double kept(bool moe, bool in_full) const { return in_full ? layer(moe).input : sums_[moe].kept; }

  // Of one micro-batch in a stage, without logits: on the GPU, and moved to the host.
  double stage(const Stage& stage) const;
  double offloaded(const Stage& stage) const;
  // The largest that comes on top while the stage's backward runs: a recomputed layer, gradients, and groups
  // on their way from the host.
  double backward(const Stage& stage) const;

  // Logits of the main head and of MTP depths that wait for their backward, and all of them at the loss.
  double saved_logits(const Stage& stage) const;
  double loss_peak(const Stage& stage) const;

  double boundary() const { return boundary_; }  // the tensor that crosses a pipeline boundary

 private:
  struct Sums {
    double everything = 0;
    double kept = 0;   // on the GPU
    double host = 0;   // moved
    double group = 0;  // the largest that one offload module moves
  };

  static Sums sums_of(const LayerMemory& layer, const Scenario& scenario, const Stack& stack);
  template <typename F>
  void for_layers(const Stage& stage, F&& f) const;

  std::int64_t recomputed(const Stage& stage) const;
  double on_top(bool moe, bool in_full) const;

  const Scenario& s_;
  LayerMemory dense_;
  LayerMemory moe_;
  std::array<Sums, 2> sums_;  // dense, MoE
  VisionMemory vision_;
  double embedding_ = 0;
  double groups_in_flight_ = 0;
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
