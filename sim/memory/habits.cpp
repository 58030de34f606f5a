#include "memory/habits.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace stepcast {
namespace {

struct Row {
  std::string_view stack;
  Habits habits;
};

// aleph-alpha: out-of-memory labels of arXiv 2311.05610 (each TP rank holds the logits of all of the
// vocabulary, SwiGLU is not fused). KempnerForge: peaks of its benchmarks (weights and gradients stay
// gathered, all states in bf16). torchtitan: activation_checkpoint.py, selective_ac_option "op"; compiled.
constexpr std::array kRows = {
    Row{"aleph-alpha", {.vocab_parallel_loss = false, .fused_activation = false}},
    Row{"kempnerforge",
        {.vocab_parallel_loss = false, .fused_activation = false, .resharding = false, .fp32_master = false}},
    Row{"torchtitan", {.selective_by_op = true}},
};

// Element-wise work that moves this much more than fused kernels do comes from separate kernels, which save
// the tensors between them too.
constexpr double kUnfusedTraffic = 1.5;

}  // namespace

Habits habits_of(const Scenario& scenario, const Stack& stack) {
  const auto* row = std::find_if(kRows.begin(), kRows.end(),
                                 [&](const Row& r) { return r.stack == scenario.software.stack; });
  if (row != kRows.end()) return row->habits;
  Habits habits;
  habits.fused_activation = stack.elementwise_traffic < kUnfusedTraffic;
  return habits;
}

}  // namespace stepcast
