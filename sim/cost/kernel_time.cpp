#include "cost/kernel_time.h"

#include <algorithm>
#include <cmath>

namespace stepcast {
namespace {

double gemm_time(const Kernel& x, const GemmRate& r, const Profile& profile) {
  if (x.m <= 0 || x.n <= 0 || x.k <= 0) return 0;
  const double flops = x.flops();
  const double tiles = x.groups * std::ceil(x.m / r.tile_m) * std::ceil(x.n / r.tile_n);
  const double whole = std::ceil(tiles / profile.sms) * profile.sms * r.tile_m * r.tile_n;
  const double waste = std::pow(std::max(1.0, whole / (x.groups * x.m * x.n)), r.wave_exponent);
  const double factor = x.role == Role::kForward     ? 1
                        : x.role == Role::kInputGrad ? r.dgrad_factor
                                                     : r.wgrad_factor;
  const double compute =
      flops * waste * (1 + r.k_half / x.k) * factor / (r.flops_per_s * profile.sustained_clock);
  const double result = x.result_bytes > 0 ? x.result_bytes : r.result_bytes;
  const double bytes = x.groups * (r.operand_bytes * (x.m * x.k + x.n * x.k) + result * x.m * x.n);
  return r.launch_s + std::max(compute, bytes / r.hbm_bytes_per_s);
}

std::size_t head_class(const Kernel& x) {
  if (x.qk_dim > x.v_dim) return 3;  // MLA
  if (x.qk_dim <= 96) return 0;
  return x.qk_dim <= 160 ? 1 : 2;
}

double attention_time(const Kernel& x, const Profile& profile) {
  const AttentionRate& r = attention_rate(x, profile);
  const double rate =
      r.fwd_flops_per_s * profile.sustained_clock * (x.role == Role::kForward ? 1 : r.bwd_rate_factor);
  return r.launch_s + x.flops() / rate * (1 + r.seq_half / std::max(1.0, x.seq));
}

}  // namespace

const AttentionRate& attention_rate(const Kernel& x, const Profile& profile) {
  const AttentionVariant variant = x.variant == AttentionVariant::kAuto ? profile.auto_attention : x.variant;
  return profile.attention[static_cast<std::size_t>(variant)][head_class(x)];
}

double kernel_time(const Kernel& kernel, const Profile& profile) {
  const auto dtype = static_cast<std::size_t>(kernel.dtype);
  switch (kernel.kind) {
    case KernelKind::kGemm:
      return gemm_time(kernel, profile.gemm[dtype], profile);
    case KernelKind::kGroupedGemm:
      return gemm_time(kernel, profile.grouped_gemm[dtype], profile);
    case KernelKind::kAttention:
      return attention_time(kernel, profile);
    case KernelKind::kMemory:
      break;
  }
  return profile.memory_launch_s +
         kernel.bytes / profile.memory_bytes_per_s[static_cast<std::size_t>(kernel.memory)];
}

}  // namespace stepcast
