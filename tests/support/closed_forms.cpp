#include "support/closed_forms.h"

#include <algorithm>

#include "model/parameters.h"

namespace stepcast {
namespace {

double d(std::int64_t value) { return static_cast<double>(value); }

}  // namespace

double zero_bytes(int stage, double psi, double ranks) {
  switch (stage) {
    case 0:
      return 16 * psi;
    case 1:
      return 4 * psi + 12 * psi / ranks;
    case 2:
      return 2 * psi + 14 * psi / ranks;
    default:
      return 16 * psi / ranks;
  }
}

double deepspeed_zero2_bytes(double psi, double gpus, bool offload) {
  return offload ? 2 * psi : 2 * psi + 18 * psi / gpus;
}

double deepspeed_zero3_bytes(double psi, double largest_layer, double gpus, DeepSpeedOffload offload) {
  const double live = 4 * largest_layer;
  switch (offload) {
    case DeepSpeedOffload::kNone:
      return 18 * psi / gpus + live;
    case DeepSpeedOffload::kOptimizer:
      return 2 * psi / gpus + live;
    default:
      return live;
  }
}

double KorthikantiLayer::without_tp() const { return s * b * h * 34 + 5 * a * s * s * b; }

double KorthikantiLayer::tensor_parallel() const { return s * b * h * (10 + 24 / t) + 5 * a * s * s * b / t; }

double KorthikantiLayer::sequence_parallel() const { return without_tp() / t; }

double KorthikantiLayer::selective_recompute() const { return 34 * s * b * h / t; }

double KorthikantiLayer::full_recompute() const { return 2 * s * b * h; }

MegatronEstimate megatron_weights(const Model& model, const MegatronSizes& sizes) {
  Parameters block = final_norm_parameters(model);
  for (std::int64_t layer = 0; layer < model.layers; ++layer) block += decoder_layer_parameters(model, layer);
  Parameters mtp;
  for (std::int64_t depth = 0; depth < model.mtp_layers; ++depth) mtp += mtp_layer_parameters(model);
  const double t = d(sizes.tp), p = d(sizes.pp);
  const std::int64_t vocab = padded_vocab(model.vocab, model.vocab_divisor, sizes.tp);
  double dense = (d(block.tp_sharded) / p + d(mtp.tp_sharded) + d(vocab * model.hidden)) / t +
                 d(block.replicated) / p + d(mtp.replicated);
  if (sizes.pp == 1) dense += d(head_parameters(model, vocab).total()) / t;
  const double experts = (d(block.experts) / p + d(mtp.experts)) / d(sizes.ep * sizes.etp);
  const auto each = [&](std::int64_t ranks) { return sizes.distributed_optimizer ? 6 + 12 / d(ranks) : 18; };
  return {dense + experts, dense * each(sizes.dp) + experts * each(sizes.edp)};
}

double megatron_activations(const Model& model, double seq_len, double micro, std::int64_t tp,
                            std::int64_t pp, std::int64_t vpp, std::int64_t microbatches) {
  const double p = d(pp), h = d(model.hidden), sb = seq_len * micro;
  double bytes = sb * h * (18 + 4 * d(model.ffn_hidden) / h) * d(model.layers);
  bytes += 8 * sb * p + sb * h * p;  // ids in int64 and the dropout mask of the embedding
  if (vpp > 1) bytes *= 1 + (p - 1) / (p * d(vpp));
  if (vpp <= 1 && pp > 1) bytes *= std::min(1.0, d(microbatches) / p);
  if (pp == 1) bytes += sb * h * 4 * (1 + d(padded_vocab(model.vocab, model.vocab_divisor, tp)) / h);
  return bytes / d(tp);
}

double mxfp8_bytes(double elements) { return elements + elements / 32; }

double nvfp4_bytes(double elements) { return elements / 2 + elements / 16 + 4; }

double fp8_block_bytes(double elements) { return elements + elements / 128 * 4; }

}  // namespace stepcast
