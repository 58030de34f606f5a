// Duration of one kernel on one GPU: a roofline with its launch floor.
//   GEMM      launch + max(2 m n k waste (1 + k_half / k) / rate, bytes / HBM rate)
//             waste = (flops of whole tiles in whole waves of the SMs / 2 m n k) ^ wave_exponent
//   attention launch + flops / rate (1 + seq_half / seq); backward at its own share of the forward rate
//   memory    launch + bytes / rate of its kind
// Compute rates are times the sustained clock; memory and launches are not. Seconds.
#pragma once

#include "cost/profile.h"

namespace stepcast {

double kernel_time(const Kernel& kernel, const Profile& profile);

// The rate that an attention kernel runs at: by its variant and head dimensions.
const AttentionRate& attention_rate(const Kernel& x, const Profile& profile);

}  // namespace stepcast
