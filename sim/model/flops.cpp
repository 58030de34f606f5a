#include "model/flops.h"

namespace stepcast {
namespace {

constexpr double kPasses = 3;  // forward, input gradient, weight gradient
constexpr double kMac = 2;     // a multiply and an add

double d(std::int64_t value) { return static_cast<double>(value); }

// Multiply-adds of a token in the projections of attention. MLA's norms count (the + 1), as in Megatron.
double projection_macs(const Model& m) {
  const Attention& a = m.attention;
  const double h = d(m.hidden), n = d(a.heads);
  if (!a.mla()) return h * d(a.head_dim) * (2 * n + 2 * d(a.kv_heads));
  const double q = d(a.q_lora_rank), kv = d(a.kv_lora_rank), qk = n * d(a.qk_dim());
  const double query = q > 0 ? q * (h + qk + 1) : h * qk;
  const double key_value =
      kv * (h + n * d(a.qk_nope_head_dim + a.v_head_dim) + 1) + h * d(a.qk_rope_head_dim);
  return query + key_value + n * d(a.v_head_dim) * h;
}

double core_attention_macs(const Model& m, std::int64_t layer, std::int64_t seq_len) {
  const Attention& a = m.attention;
  const double keys = attended_keys(seq_len, a.windowed(layer) ? a.window : 0);
  return d(a.heads) * d(a.qk_dim() + a.v_dim()) * keys;
}

double mlp_macs(const Model& m, std::int64_t layer) {
  const double gamma = d(m.ffn_matrices()), h = d(m.hidden);
  if (!m.is_moe(layer)) return gamma * h * d(m.ffn_hidden);
  const Moe& moe = *m.moe;
  const double routed = gamma * d(m.expert_width()) * d(moe.top_k) * d(moe.ffn_hidden);
  return routed + gamma * h * d(moe.shared_ffn_hidden) + 2 * h * d(moe.latent);
}

double layer_macs(const Model& m, std::int64_t layer, std::int64_t seq_len) {
  return projection_macs(m) + core_attention_macs(m, layer, seq_len) + mlp_macs(m, layer);
}

// Forward multiply-adds of the vision encoder for one sequence, whose patches are one image: all see all of
// it.
double vision_macs(const Model& m) {
  if (!m.vision) return 0;
  const Vision& v = *m.vision;
  const double h = d(v.hidden), patches = d(v.patches_per_sequence), matrices = v.gated_ffn ? 3 : 2;
  const double merge = d(v.merge) * d(v.merge), merged = merge * h;
  const double layer = (4 * h * h + matrices * h * d(v.ffn_hidden)) * patches + 2 * h * patches * patches;
  const double merger = (merged * merged + merged * d(m.hidden)) * patches / merge;
  return d(v.layers) * layer + d(1 + v.deepstack) * merger;
}

}  // namespace

double attended_keys(std::int64_t seq_len, std::int64_t window) {
  const double s = d(seq_len), w = d(window);
  if (window <= 0 || window >= seq_len) return s / 2;
  return w - w * (w - 1) / (2 * s);
}

double model_flops_per_token(const Model& model, std::int64_t seq_len, std::int64_t vocab) {
  const double h = d(model.hidden), mtp = d(model.mtp_layers);
  double macs = h * d(vocab) * (mtp + 1);
  for (std::int64_t layer = 0; layer < model.layers; ++layer) macs += layer_macs(model, layer, seq_len);
  if (mtp > 0) macs += mtp * (layer_macs(model, model.layers - 1, seq_len) + 3 * h + 2 * h * h);
  macs += vision_macs(model) / d(seq_len);
  return kPasses * kMac * macs;
}

}  // namespace stepcast
