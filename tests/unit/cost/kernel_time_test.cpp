// Times of single kernels, by hand, on a GPU with round numbers.
#include "cost/kernel_time.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/data_folder.h"

namespace stepcast {
namespace {

// 100 SMs, tiles of 128 x 128, 100 TFLOP/s and half of it at K = 256, 1 TB/s, 5 us a launch, no waste.
GemmRate gemm_rate() {
  GemmRate rate;
  rate.present = true;
  rate.flops_per_s = 100e12;
  rate.k_half = 256;
  rate.launch_s = 5e-6;
  rate.hbm_bytes_per_s = 1e12;
  rate.dgrad_factor = 1.1;
  rate.wgrad_factor = 1.5;
  return rate;
}

Profile profile() {
  Profile p;
  p.sms = 100;
  p.gemm.fill(gemm_rate());
  p.grouped_gemm.fill(gemm_rate());
  for (auto& variant : p.attention)
    for (AttentionRate& rate : variant) rate = {50e12, 512, 4e-6, 0.5, ""};
  p.memory_launch_s = 2e-6;
  p.memory_bytes_per_s = {1e12, 2e12, 3e12, 4e12, 5e12, 6e12};
  return p;
}

Kernel gemm(double m, double n, double k, Role role = Role::kForward) {
  Kernel kernel;
  kernel.kind = KernelKind::kGemm;
  kernel.role = role;
  kernel.m = m;
  kernel.n = n;
  kernel.k = k;
  return kernel;
}

// 2 x 1024 x 2048 x 4096 FLOPs at 100 TFLOP/s, times 1 + 256 / 4096
constexpr double kCompute = 2.0 * 1024 * 2048 * 4096 / 100e12 * 1.0625;

TEST(GemmTime, IsBoundByComputeWhereItIsDeep) {
  EXPECT_DOUBLE_EQ(kernel_time(gemm(1024, 2048, 4096), profile()), 5e-6 + kCompute);
}

TEST(GemmTime, IsBoundByMemoryWhereItIsFlat) {
  // 2 bytes each of inputs 16 x 4096, weights 4096 x 4096 and results 16 x 4096, at 1 TB/s; compute takes
  // less
  const double bytes = 2 * (16.0 * 4096 + 4096.0 * 4096) + 2 * 16 * 4096;
  ASSERT_GT(bytes / 1e12, 2.0 * 16 * 4096 * 4096 / 100e12 * 1.0625);
  EXPECT_DOUBLE_EQ(kernel_time(gemm(16, 4096, 4096), profile()), 5e-6 + bytes / 1e12);
}

TEST(GemmTime, ReadsAndWritesTheBufferOfAWeightGradient) {
  Profile p = profile();
  p.gemm[static_cast<std::size_t>(Dtype::kBf16)].k_half = 0;
  Kernel kernel = gemm(4096, 4096, 16, Role::kWeightGrad);
  const double inputs = 2 * (2 * 4096.0 * 16), result = 4096.0 * 4096;
  EXPECT_DOUBLE_EQ(kernel_time(kernel, p), 5e-6 + (inputs + 2 * result) / 1e12);
  kernel.result_bytes = 8;
  EXPECT_DOUBLE_EQ(kernel_time(kernel, p), 5e-6 + (inputs + 8 * result) / 1e12);
}

TEST(GemmTime, HasAFactorForEachGradient) {
  EXPECT_DOUBLE_EQ(kernel_time(gemm(1024, 2048, 4096, Role::kInputGrad), profile()), 5e-6 + 1.1 * kCompute);
  EXPECT_DOUBLE_EQ(kernel_time(gemm(1024, 2048, 4096, Role::kWeightGrad), profile()), 5e-6 + 1.5 * kCompute);
}

TEST(GemmTime, LosesPartialTilesAndWaves) {
  Profile p = profile();
  p.gemm[static_cast<std::size_t>(Dtype::kBf16)].wave_exponent = 1;
  // 8 x 16 = 128 tiles on 100 SMs: two waves, 200 tiles paid for 128
  EXPECT_DOUBLE_EQ(kernel_time(gemm(1024, 2048, 4096), p), 5e-6 + kCompute * 200 / 128);
  // half of the loss in the exponent: its square root
  p.gemm[static_cast<std::size_t>(Dtype::kBf16)].wave_exponent = 0.5;
  EXPECT_DOUBLE_EQ(kernel_time(gemm(1024, 2048, 4096), p), 5e-6 + kCompute * std::sqrt(200.0 / 128));
}

TEST(GemmTime, OfAGroupIsThatOfItsRows) {
  Kernel grouped = gemm(256, 2048, 4096);
  grouped.kind = KernelKind::kGroupedGemm;
  grouped.groups = 4;
  EXPECT_DOUBLE_EQ(kernel_time(grouped, profile()), 5e-6 + kCompute);  // 4 x 256 rows
  Profile p = profile();
  p.grouped_gemm[static_cast<std::size_t>(Dtype::kBf16)].wave_exponent = 1;
  // each group has tiles of its own: 4 groups of 1 x 16 tiles for 10 rows, one wave of 100 paid
  Kernel few = gemm(10, 2048, 4096);
  few.kind = KernelKind::kGroupedGemm;
  few.groups = 4;
  const double compute = 2.0 * 40 * 2048 * 4096 / 100e12 * 1.0625;
  const double waste = 100.0 * 128 * 128 / (40.0 * 2048);
  EXPECT_DOUBLE_EQ(kernel_time(few, p), 5e-6 + compute * waste);
}

TEST(GemmTime, TakesTheRateOfItsFormat) {
  Profile p = profile();
  p.gemm[static_cast<std::size_t>(Dtype::kFp8Block)].flops_per_s = 200e12;
  Kernel kernel = gemm(1024, 2048, 4096);
  kernel.dtype = Dtype::kFp8Block;
  EXPECT_DOUBLE_EQ(kernel_time(kernel, p), 5e-6 + kCompute / 2);
}

TEST(GemmTime, OfNothingIsNothing) {
  EXPECT_EQ(kernel_time(gemm(0, 2048, 4096), profile()), 0);
  EXPECT_EQ(kernel_time(gemm(1024, 2048, 0), profile()), 0);
}

Kernel attention(Role role = Role::kForward) {
  Kernel kernel;
  kernel.kind = KernelKind::kAttention;
  kernel.role = role;
  kernel.heads = 8;
  kernel.batch = 2;
  kernel.seq = 4096;
  kernel.keys = 2048;
  kernel.qk_dim = kernel.v_dim = 128;
  return kernel;
}

// 2 x 8 heads x 2 sequences x 4096 x 2048 x (128 + 128) FLOPs at 50 TFLOP/s, times 1 + 512 / 4096
constexpr double kAttention = 2.0 * 8 * 2 * 4096 * 2048 * 256 / 50e12 * 1.125;

TEST(AttentionTime, IsThatOfItsFlops) {
  EXPECT_DOUBLE_EQ(kernel_time(attention(), profile()), 4e-6 + kAttention);
}

TEST(AttentionTime, BackwardHasFiveMatmulsAtItsOwnRate) {
  EXPECT_DOUBLE_EQ(kernel_time(attention(Role::kInputGrad), profile()), 4e-6 + kAttention * 2.5 / 0.5);
}

TEST(AttentionTime, GoesByVariantAndHeadDimension) {
  Profile p = profile();
  const auto rate = [&](AttentionVariant v, std::size_t head) -> double& {
    return p.attention[static_cast<std::size_t>(v)][head].fwd_flops_per_s;
  };
  rate(AttentionVariant::kFlash2, 0) = 10e12;  // 64
  rate(AttentionVariant::kFlash2, 1) = 20e12;  // 128
  rate(AttentionVariant::kFlash2, 2) = 30e12;  // 256
  rate(AttentionVariant::kFlash2, 3) = 40e12;  // MLA
  rate(AttentionVariant::kCudnn, 1) = 80e12;
  const auto used = [&](double qk, double v, AttentionVariant variant = AttentionVariant::kFlash2) {
    Kernel kernel = attention();
    kernel.qk_dim = qk;
    kernel.v_dim = v;
    kernel.variant = variant;
    return kernel.flops() * 1.125 / (kernel_time(kernel, p) - 4e-6);
  };
  EXPECT_NEAR(used(64, 64), 10e12, 1e3);
  EXPECT_NEAR(used(128, 128), 20e12, 1e3);
  EXPECT_NEAR(used(256, 256), 30e12, 1e3);
  EXPECT_NEAR(used(192, 128), 40e12, 1e3);
  EXPECT_NEAR(used(128, 128, AttentionVariant::kCudnn), 80e12, 1e3);
}

TEST(MemoryTime, IsThatOfItsBytesByKind) {
  Kernel kernel;
  kernel.bytes = 12e6;
  const double rates[] = {1e12, 2e12, 3e12, 4e12, 5e12, 6e12};
  for (int kind = 0; kind < 6; ++kind) {
    kernel.memory = static_cast<MemoryKind>(kind);
    EXPECT_DOUBLE_EQ(kernel_time(kernel, profile()), 2e-6 + 12e6 / rates[kind]);
  }
}

// The sustained clock slows what computes; memory and launches stay as measured.
TEST(SustainedClock, SlowsComputeOnly) {
  Profile p = profile();
  p.sustained_clock = 0.8;
  EXPECT_DOUBLE_EQ(kernel_time(gemm(1024, 2048, 4096), p), 5e-6 + kCompute / 0.8);
  EXPECT_DOUBLE_EQ(kernel_time(attention(), p), 4e-6 + kAttention / 0.8);
  EXPECT_DOUBLE_EQ(kernel_time(gemm(16, 4096, 4096), p), kernel_time(gemm(16, 4096, 4096), profile()));
  Kernel memory;
  memory.bytes = 1e6;
  EXPECT_DOUBLE_EQ(kernel_time(memory, p), kernel_time(memory, profile()));
}

TEST(KernelFlops, CountTwoForAMultiplyAdd) {
  EXPECT_DOUBLE_EQ(gemm(3, 5, 7).flops(), 2 * 3 * 5 * 7);
  EXPECT_DOUBLE_EQ(attention().flops(), 2.0 * 8 * 2 * 4096 * 2048 * 256);
  EXPECT_DOUBLE_EQ(attention(Role::kInputGrad).flops(), 2.5 * attention().flops());
  EXPECT_EQ(Kernel{}.flops(), 0);
  // flops_attention_causal_layer: s 4096, b 1, 32 heads of 128, causal half
  Kernel causal = attention();
  causal.heads = 32;
  causal.batch = 1;
  EXPECT_DOUBLE_EQ(causal.flops(), 137438953472.0);
}

TEST(ShippedProfiles, TakeLongerForMore) {
  for (const std::string& name : data_names("calib/profiles")) {
    const Profile p = load_profile(data_folder() / "calib" / "profiles" / (name + ".json"));
    for (std::size_t dtype = 0; dtype < p.gemm.size(); ++dtype) {
      if (!p.gemm[dtype].present) continue;
      double last = 0;
      for (double size = 64; size <= 16384; size *= 2) {
        Kernel kernel = gemm(size, size, size);
        kernel.dtype = static_cast<Dtype>(dtype);
        EXPECT_GT(kernel_time(kernel, p), last) << name << ' ' << dtype << ' ' << size;
        last = kernel_time(kernel, p);
        EXPECT_LE(kernel.flops() / last, p.gemm[dtype].flops_per_s) << name << ' ' << dtype;
      }
    }
  }
}

}  // namespace
}  // namespace stepcast
