// What a software stack's code does with memory, beyond the constants of calib/stacks. One table, by the name
// that the scenario gives the stack (habits.cpp).
#pragma once

#include "cost/stack.h"
#include "layout/scenario.h"

namespace stepcast {

struct Habits {
  bool vocab_parallel_loss = true;  // a TP rank holds only its share of the logits
  bool fused_activation = true;     // SwiGLU in one kernel: the activated gate alone is not saved
  bool resharding = true;           // FSDP frees a gathered layer after its forward
  bool fp32_master = true;          // false: weights, gradients and moments are all of 2 bytes
  bool selective_by_op =
      false;  // selective recompute keeps every second matrix product, whatever the modules
};

Habits habits_of(const Scenario& scenario, const Stack& stack);

}  // namespace stepcast
