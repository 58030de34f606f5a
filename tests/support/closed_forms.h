// Memory formulas of papers and of the frameworks' own estimators, as they are published. The ledger does not
// use them: they are for comparison and as oracles. Bytes throughout; psi = parameters, N = ranks.
#pragma once

#include <cstdint>

#include "model/model.h"

namespace stepcast {

// ZeRO (arXiv 1910.02054): 16 psi; 4 psi + 12 psi / N; 2 psi + 14 psi / N; 16 psi / N.
double zero_bytes(int stage, double psi, double ranks);

// DeepSpeed's estimators (stage_1_and_2.py, stage3.py), on a GPU.
enum class DeepSpeedOffload { kNone, kOptimizer, kAll };
double deepspeed_zero2_bytes(double psi, double gpus, bool offload);
double deepspeed_zero3_bytes(double psi, double largest_layer, double gpus, DeepSpeedOffload offload);

// Activations of a GPT layer with dropout and unfused attention (Korthikanti et al. 2205.05198, table 2).
struct KorthikantiLayer {
  double s, b, h, a, t;

  double without_tp() const;           // s b h (34 + 5 a s / h)
  double tensor_parallel() const;      // s b h (10 + 24 / t + 5 a s / (h t))
  double sequence_parallel() const;    // s b h / t (34 + 5 a s / h)
  double selective_recompute() const;  // 34 s b h / t
  double full_recompute() const;       // 2 s b h
};

// Megatron's report_theoretical_memory (training/theoretical_memory_usage.py): parameters of the most loaded
// shard and its weight and optimizer bytes. It divides by dp, not dp c.
struct MegatronEstimate {
  double parameters = 0;
  double bytes = 0;
};

struct MegatronSizes {
  std::int64_t tp = 1, pp = 1, dp = 1, ep = 1, etp = 1, edp = 1;
  bool distributed_optimizer = true;
};

MegatronEstimate megatron_weights(const Model& model, const MegatronSizes& sizes);

// The same estimator's activations, with sequence parallelism and selective recompute: every layer as a dense
// one without GQA or CP, s b h (18 + 4 f / h), plus the embedding; p stages in flight; / t.
double megatron_activations(const Model& model, double seq_len, double micro, std::int64_t tp,
                            std::int64_t pp, std::int64_t vpp, std::int64_t microbatches);

// A tensor in a low-precision format with its scales: MXFP8 a byte for 32 elements, NVFP4 a byte for 16 and
// one fp32 a tensor, FP8 block scaling (1 x 128) an fp32 for 128.
double mxfp8_bytes(double elements);
double nvfp4_bytes(double elements);
double fp8_block_bytes(double elements);

}  // namespace stepcast
