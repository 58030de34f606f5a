// One kernel (or a run of like kernels) on one GPU: what it computes and on which shape. Plain data; its
// duration is cost/kernel_time.h's business.
#pragma once

#include <cstdint>

namespace stepcast {

enum class Dtype : std::uint8_t { kFp32, kFp16, kBf16, kFp8Tensor, kFp8Block, kMxfp8, kNvfp4 };
enum class Role : std::uint8_t { kForward, kInputGrad, kWeightGrad };
enum class KernelKind : std::uint8_t { kGemm, kGroupedGemm, kAttention, kMemory };
enum class MemoryKind : std::uint8_t { kElementwise, kNorm, kPermute, kQuantise, kOptimizer, kHostCopy };
enum class AttentionVariant : std::uint8_t {
  kFlash1,
  kFlash2,
  kFlash3,
  kCudnn,
  kAuto
};  // kAuto = the GPU kind's own

struct Kernel {
  KernelKind kind = KernelKind::kMemory;
  Role role = Role::kForward;
  Dtype dtype = Dtype::kBf16;  // of the GEMM's inputs

  // GEMM: m x k times k x n. Grouped: `groups` of them with m rows each (the mean of an expert's rows).
  double m = 0;
  double n = 0;
  double k = 0;
  double groups = 1;
  double result_bytes = 0;  // read and written per element of the result; 0 = as measured

  // Attention core: `heads` query heads of one rank, `seq` queries against `keys` attended keys on average,
  // batch b.
  double heads = 0;
  double batch = 0;
  double seq = 0;
  double keys = 0;
  double qk_dim = 0;
  double v_dim = 0;
  AttentionVariant variant = AttentionVariant::kFlash2;

  // Memory-bound: bytes read and written.
  MemoryKind memory = MemoryKind::kElementwise;
  double bytes = 0;

  double flops() const {
    if (kind == KernelKind::kGemm || kind == KernelKind::kGroupedGemm) return 2 * m * n * k * groups;
    // forward 2 matmuls, backward 5 (domain 1.3)
    if (kind == KernelKind::kAttention)
      return 2 * heads * batch * seq * keys * (qk_dim + v_dim) * (role == Role::kForward ? 1.0 : 2.5);
    return 0;
  }
};

}  // namespace stepcast
