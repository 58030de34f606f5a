#include "memory/ledger.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/units.h"
#include "memory/buffers.h"
#include "memory/states.h"
#include "unit/memory/fixtures.h"

namespace stepcast::memory_test {
namespace {

void expect_sane(const MemoryReport& report, const std::string& what) {
  for (const StageMemory& m : report.stages) {
    for (const double bytes :
         {m.parameters, m.gradients, m.optimizer, m.activations, m.buffers, m.runtime, m.host}) {
      EXPECT_TRUE(std::isfinite(bytes)) << what;
      EXPECT_GE(bytes, 0) << what;
    }
    const double sum = m.parameters + m.gradients + m.optimizer + m.activations + m.buffers;
    EXPECT_DOUBLE_EQ(m.allocated, sum) << what;
    EXPECT_GE(m.reserved, m.allocated) << what;
    EXPECT_GE(m.device, m.reserved) << what;
    EXPECT_LE(m.device, report.peak().device) << what;
    EXPECT_FALSE(m.peak_moment.empty()) << what;
  }
}

TEST(Ledger, AddsUp) {
  const Scenario s = scenario(llama70b(), 64, layout(4, 1, 4));
  const MemoryReport report = report_of(s);
  ASSERT_EQ(report.stages.size(), 4U);
  expect_sane(report, "llama");
  const StageMemory& first = report.stages[0];
  EXPECT_DOUBLE_EQ(first.reserved, 1.05 * first.allocated);
  // Communicators: TP, DP, PP; the embeddings are not tied.
  EXPECT_DOUBLE_EQ(first.runtime, 0.9e9 + 3 * 0.3e9);
  EXPECT_DOUBLE_EQ(report.capacity, 85'045'280'768);
}

// Four micro-batches alive on the first rank, one on the last; the last has the loss.
TEST(Ledger, PeakMoments) {
  const MemoryReport report = report_of(scenario(llama70b(), 64, layout(4, 1, 4)));
  EXPECT_EQ(report.worst, 0U);
  EXPECT_EQ(report.stages[0].peak_moment, "micro-batch 0, backward of chunk 0");
  EXPECT_EQ(report.stages[3].peak_moment, "micro-batch 0, loss of chunk 0");
  EXPECT_GT(report.stages[3].buffers, report.stages[0].buffers);
  EXPECT_GT(report.stages[0].activations, 3 * report.stages[3].activations);
}

// GPipe: the logits of all 16 micro-batches wait for their backward.
TEST(Ledger, GpipeKeepsLogits) {
  Scenario s = scenario(llama70b(8), 8, layout(4, 1, 2));
  const double one = report_of(s).stages[1].buffers;
  s.layout.schedule = "gpipe";
  const double logits = 4096.0 * 128512 / 4 * 4;
  EXPECT_DOUBLE_EQ(report_of(s).stages[1].buffers, one + 15 * logits);
}

struct Published {
  std::int64_t tp, pp, gpus;
  double gib;  // allocated peak
};

// SimuMax v1.2, B200: Llama-3-70B cut to 12 layers, sequence 4096, bf16, fp32 gradients, fused cross-entropy,
// no recompute (runs of Megatron-LM of 2026).
TEST(Ledger, PublishedMegatronPeaks) {
  for (const Published& run :
       {Published{1, 2, 8, 66.55}, {2, 1, 8, 60.68}, {4, 1, 8, 39.07}, {8, 1, 8, 28.29}}) {
    Scenario s = scenario(llama70b(12), run.gpus, layout(run.tp, 1, run.pp));
    s.cluster.gpu.compute_capability = 10;
    s.software.date = "2026-05";
    EXPECT_NEAR(report_of(s).peak().allocated / kGiB, run.gib, 0.01 * run.gib) << "tp " << run.tp;
  }
}

struct PublishedZeroBubble {
  std::string schedule;
  std::int64_t microbatches;
  double gb;
};

// Zero Bubble (arXiv 2401.10241), tables 4 and 12: 14.6B on 16 stages, two-byte gradients, unfused attention
// with dropout. Figures are rounded to 1 GB.
TEST(Ledger, PublishedZeroBubblePeaks) {
  for (const PublishedZeroBubble& run : {PublishedZeroBubble{"1f1b", 48, 32},
                                         {"zb-h1", 48, 33},
                                         {"zb-2p", 48, 51},
                                         {"1f1b", 4, 19},
                                         {"1f1b", 8, 24},
                                         {"zb-2p", 16, 33}}) {
    Model m = gpt175b(46);
    m.hidden = 5120;
    m.ffn_hidden = 20480;
    m.vocab = 51200;
    m.attention.heads = m.attention.kv_heads = 40;
    Layout l = layout(1, 1, 16);
    l.schedule = run.schedule;
    l.stages = "Ett|(ttt|)*14ttL";
    Scenario s = scenario(m, 16, l, 1024);
    s.batch.global = run.microbatches;
    s.kernels.attention = AttentionKernel::kUnfused;
    s.optimizer.grad_bytes = 2;
    s.software.date = "2023-11";
    EXPECT_NEAR(report_of(s).peak().allocated / 1e9, run.gb, 0.06 * run.gb)
        << run.schedule << " " << run.microbatches;
  }
}

// Domain 4.2: h 7168 in bf16 and 20 SMs: EP8 320 MiB; EP16 360 + 80, EP32 360 + 160, EP64 360 + 320 MiB.
TEST(Buffers, DeepEp) {
  const double mib = 1024 * 1024;
  EXPECT_NEAR(deepep_buffers(8, 14336, 20).nvlink / mib, 320, 1);
  EXPECT_EQ(deepep_buffers(8, 14336, 20).rdma, 0);
  EXPECT_NEAR(deepep_buffers(16, 14336, 20).nvlink / mib, 360, 1);
  EXPECT_NEAR(deepep_buffers(16, 14336, 20).rdma / mib, 80, 1);
  EXPECT_NEAR(deepep_buffers(64, 14336, 20).rdma / mib, 320, 1);
}

// Two layers of 855.65M and the root unit (table and head 2 x 1.05B, final norm) in bf16, one layer's
// gradients in bf16.
TEST(Buffers, GatheredUnitsOfZero3) {
  Scenario s = scenario(llama70b(), 64);
  s.sharding = {3, false, Engine::kFsdp, 1};
  const StageSplit split = split_of(s);
  const double layer = held_by_layer(s, 0).total(), root = 2 * 128256.0 * 8192 + 8192;
  EXPECT_DOUBLE_EQ(gathered_bytes(s, split, 0, megatron_stack()), 2 * (2 * layer + root) + 2 * layer);
  s.sharding.zero_stage = 2;
  EXPECT_EQ(gathered_bytes(s, split, 0, megatron_stack()), 0);
}

TEST(Buffers, TensorParallelOverlap) {
  Scenario s = scenario(llama70b(), 8, layout(8, 1, 1));
  EXPECT_EQ(tp_overlap_bytes(s), 0);
  s.overlap.tp = true;
  EXPECT_DOUBLE_EQ(tp_overlap_bytes(s), 4 * 4096.0 * 8192 * 2);
}

// One bf16 placeholder for each weight shape of a layer (855.64M linear parameters / tp), since mid-2025.
TEST(Buffers, CachedWeightGradients) {
  Scenario s = scenario(llama70b(), 8, layout(8, 1, 1));
  const double linear = (2.0 * 8192 * 8192 + 2.0 * 8192 * 1024 + 3.0 * 8192 * 28672) / 8;
  for (const char* date : {"", "2025", "2025-06", "2026-08"}) {
    s.software.date = date;
    EXPECT_DOUBLE_EQ(cached_gradient_bytes(s, split_of(s), 0), 2 * linear) << date;
  }
  for (const char* date : {"2024", "2025-05"}) {
    s.software.date = date;
    EXPECT_EQ(cached_gradient_bytes(s, split_of(s), 0), 0) << date;
  }
}

TEST(Buffers, CommunicatorsInUse) {
  EXPECT_EQ(communicators(scenario(llama70b(), 1)), 0);
  EXPECT_EQ(communicators(scenario(gpt175b(), 16, layout(2, 2, 4))), 5);  // TP, CP, DP-CP, PP, embedding
  EXPECT_EQ(communicators(scenario(deepseek_v3(), 64, with_experts(layout(1, 1, 2), 8))),
            4);  // DP, PP, EP, EDP
}

double peak(const Scenario& s) { return report_of(s).peak().device; }

TEST(Properties, ZeroStagesShrink) {
  for (const Engine engine : {Engine::kMegatron, Engine::kDeepSpeed, Engine::kFsdp}) {
    double last = 0;
    for (const int stage : {0, 1, 2, 3}) {
      Scenario s = scenario(deepseek_v3(), 256, with_experts(layout(1, 1, 4), 16));
      s.sharding = {stage, false, engine, 1};
      const StageSplit split = split_of(s);
      const double now = state_bytes(s, held_by_rank(s, split, 1)).on_gpu();
      if (stage > 0) {
        EXPECT_LT(now, last) << stage;
      }
      last = now;
    }
  }
}

TEST(Properties, RecomputeNeverAdds) {
  const std::vector<std::string> modules = {"core_attn", "moe_act", "layernorm",     "mla_up_proj",
                                            "mlp",       "moe",     "shared_experts"};
  Scenario s = scenario(deepseek_v3(), 256, with_experts(layout(2, 1, 4), 16));
  s.kernels.attention = AttentionKernel::kUnfused;
  double last = peak(s);
  for (std::size_t n = 1; n <= modules.size(); ++n) {
    s.recompute = {
        Granularity::kSelective, {modules.begin(), modules.begin() + static_cast<std::ptrdiff_t>(n)}, {}};
    EXPECT_LE(peak(s), last) << modules[n - 1];
    last = peak(s);
  }
  for (std::int64_t layers = 0; layers <= 16; ++layers) {
    s.recompute = {Granularity::kFull, {}, layers};
    if (layers > 0) {
      EXPECT_LE(peak(s), last) << layers;
    }
    last = peak(s);
  }
}

TEST(Properties, MoreModelParallelismNeverAdds) {
  double last = 0;
  for (const std::int64_t tp : {1, 2, 4, 8}) {
    const double now = peak(scenario(llama70b(), 64, layout(tp, 1, 1)));
    if (tp > 1) {
      EXPECT_LT(now, last) << "tp " << tp;
    }
    last = now;
  }
  for (const std::int64_t pp : {1, 2, 4, 8}) {
    const double now = peak(scenario(llama70b(), 64, layout(8, 1, pp)));
    if (pp > 1) {
      EXPECT_LT(now, last) << "pp " << pp;
    }
    last = now;
  }
  for (const std::int64_t ep : {1, 2, 8, 64}) {
    const double now = peak(scenario(deepseek_v3(), 512, with_experts(layout(1, 1, 4), ep)));
    if (ep > 1) {
      EXPECT_LT(now, last) << "ep " << ep;
    }
    last = now;
  }
}

TEST(Properties, LargerMicroBatchesAdd) {
  double last = 0;
  for (const std::int64_t micro : {1, 2, 4}) {
    Scenario s = scenario(llama70b(), 64, layout(8, 1, 4));
    s.batch.micro = micro;
    EXPECT_GT(peak(s), last);
    last = peak(s);
  }
}

TEST(Properties, SaneOverManyScenarios) {
  for (const char* schedule :
       {"1f1b", "gpipe", "zb-h1", "zb-2p", "zb-v", "v-half", "v-min", "dualpipe", "dualpipe-v"}) {
    for (const Recipe recipe : {Recipe::kFp32, Recipe::kFp16, Recipe::kBf16, Recipe::kFp8Tensor,
                                Recipe::kFp8Block, Recipe::kMxfp8, Recipe::kNvfp4, Recipe::kNvfp4Weights}) {
      for (const int stage : {0, 1, 2, 3}) {
        for (const Model& model : {llama70b(), gpt175b(), deepseek_v3()}) {
          Layout l = with_experts(layout(2, 2, 4, is_v_shaped(schedule) ? 2 : 1), model.moe ? 8 : 1);
          l.schedule = schedule;
          Scenario s = scenario(model, 128, l);
          s.precision.recipe = recipe;
          s.sharding.zero_stage = stage;
          s.moe.dispatcher = Dispatcher::kDeepEp;
          expect_sane(report_of(s), schedule);
        }
      }
    }
  }
}

TEST(Properties, AConstantlessStackIsZero) {
  const MemoryReport report =
      memory_report(scenario(llama70b(), 8), split_of(scenario(llama70b(), 8)), Stack{});
  expect_sane(report, "no constants");
  EXPECT_EQ(report.peak().device, report.peak().allocated);
}

}  // namespace
}  // namespace stepcast::memory_test
