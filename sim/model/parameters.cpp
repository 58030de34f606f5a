#include "model/parameters.h"

#include "base/units.h"

namespace stepcast {
namespace {

// Counts in floating point: exact below 2^53, and no overflow for models that read_model has yet to refuse.
struct Count {
  double tp_sharded = 0;
  double replicated = 0;
  double experts = 0;

  double total() const { return tp_sharded + replicated + experts; }
};

Count operator+(const Count& a, const Count& b) {
  return {a.tp_sharded + b.tp_sharded, a.replicated + b.replicated, a.experts + b.experts};
}

Count operator*(double times, const Count& a) {
  return {times * a.tp_sharded, times * a.replicated, times * a.experts};
}

Parameters whole(const Count& count) {
  return {static_cast<std::int64_t>(count.tp_sharded), static_cast<std::int64_t>(count.replicated),
          static_cast<std::int64_t>(count.experts)};
}

double d(std::int64_t value) { return static_cast<double>(value); }

double norm_weights(const Model& m) { return (m.norm == Norm::kLayer ? 2 : 1) * d(m.hidden); }

Count count_mla(const Model& m) {
  const Attention& a = m.attention;
  const double h = d(m.hidden), n = d(a.heads), q = d(a.q_lora_rank), kv = d(a.kv_lora_rank);
  Count count;
  count.tp_sharded = (q > 0 ? q : h) * n * d(a.qk_dim());             // query (up-)projection
  count.tp_sharded += kv * n * d(a.qk_nope_head_dim + a.v_head_dim);  // key-value up-projection
  count.tp_sharded += n * d(a.v_head_dim) * h;                        // output projection
  count.replicated =
      h * q + q + h * (kv + d(a.qk_rope_head_dim)) + kv;  // down-projections and the latents' norms
  if (a.out_bias || m.bias) count.replicated += h;
  return count;
}

Count count_attention(const Model& m) {
  const Attention& a = m.attention;
  if (a.mla()) return count_mla(m);
  const double h = d(m.hidden), n = d(a.heads), g = d(a.kv_heads), dim = d(a.head_dim);
  Count count;
  count.tp_sharded = 2 * h * n * dim + 2 * h * g * dim;
  if (a.qkv_bias || m.bias) count.tp_sharded += (n + 2 * g) * dim;
  if (a.out_bias || m.bias) count.replicated += h;
  if (a.qk_norm == QkNorm::kHead) count.replicated += 2 * dim;
  if (a.qk_norm == QkNorm::kProjection) count.replicated += (n + g) * dim;
  if (a.sinks) count.tp_sharded += n;
  return count;
}

// An MLP of width f that works on width h: gamma matrices, and biases after each.
Count count_mlp(const Model& m, double h, double f, bool bias) {
  Count count;
  count.tp_sharded = d(m.ffn_matrices()) * h * f;
  if (bias) count.tp_sharded += d(m.ffn_matrices() - 1) * f;
  if (bias) count.replicated += h;
  return count;
}

double count_expert(const Model& m) {
  return count_mlp(m, d(m.expert_width()), d(m.moe->ffn_hidden), m.moe->expert_bias || m.bias).total();
}

Count count_moe(const Model& m) {
  const Moe& moe = *m.moe;
  const double h = d(m.hidden), experts = d(moe.experts);
  Count count;
  if (moe.shared_ffn_hidden > 0) count = count_mlp(m, h, d(moe.shared_ffn_hidden), m.bias);
  count.replicated += h * experts;  // router
  if (moe.router_bias || m.bias) count.replicated += experts;
  if (moe.correction_bias) count.replicated += experts;
  if (moe.shared_gate) count.replicated += h;
  count.replicated += 2 * h * d(moe.latent);
  count.experts = experts * count_expert(m);
  return count;
}

Count count_layer(const Model& m, bool is_moe) {
  Count count =
      count_attention(m) + (is_moe ? count_moe(m) : count_mlp(m, d(m.hidden), d(m.ffn_hidden), m.bias));
  count.replicated += d(m.norms_per_layer) * norm_weights(m);
  return count;
}

Count count_mtp_layer(const Model& m) {
  Count count = count_layer(m, m.mtp_is_moe());
  count.tp_sharded += 2 * d(m.hidden) * d(m.hidden);  // joins the hidden state and the next token's embedding
  count.replicated += 3 * norm_weights(m);
  return count;
}

Count count_embedding(const Model& m, double vocab) {
  Count count;
  count.tp_sharded = vocab * d(m.hidden);
  if (m.position == Position::kLearned) count.replicated = d(m.max_positions) * d(m.hidden);
  return count;
}

// A vision transformer with LayerNorms and biases; a merger is norm, linear, linear from merge^2 patches to
// one token. Its learned positions are left out: the model object does not say how many there are.
Count count_vision(const Model& m) {
  if (!m.vision) return {};
  const Vision& v = *m.vision;
  const double h = d(v.hidden), f = d(v.ffn_hidden), matrices = v.gated_ffn ? 3 : 2;
  const double merged = d(v.merge) * d(v.merge) * h;
  Count layer;
  layer.tp_sharded = 4 * h * h + 3 * h + matrices * h * f + (matrices - 1) * f;
  layer.replicated = 2 * h + 2 * 2 * h;  // biases of the output projections; two norms
  Count merger;
  merger.tp_sharded = merged * merged + merged + merged * d(m.hidden);
  merger.replicated = 2 * h + d(m.hidden);
  Count patches;
  patches.replicated = 3 * 2 * d(v.patch) * d(v.patch) * h + h;  // 3 colours, 2 frames
  return patches + d(v.layers) * layer + d(1 + v.deepstack) * merger;
}

Count count_main_model(const Model& m) {
  const double moe_layers = d(m.moe_layers());
  Count count = (d(m.layers) - moe_layers) * count_layer(m, false);
  if (m.moe) count = count + moe_layers * count_layer(m, true);
  count = count + count_embedding(m, d(m.vocab)) + count_vision(m);
  count.replicated += norm_weights(m);
  if (!m.tied_embeddings) count.tp_sharded += d(m.vocab) * d(m.hidden);
  return count;
}

}  // namespace

Parameters& Parameters::operator+=(const Parameters& other) {
  tp_sharded += other.tp_sharded;
  replicated += other.replicated;
  experts += other.experts;
  return *this;
}

Parameters attention_parameters(const Model& model) { return whole(count_attention(model)); }

Parameters decoder_layer_parameters(const Model& model, std::int64_t layer) {
  return whole(count_layer(model, model.is_moe(layer)));
}

Parameters mtp_layer_parameters(const Model& model) { return whole(count_mtp_layer(model)); }

Parameters embedding_parameters(const Model& model, std::int64_t vocab) {
  return whole(count_embedding(model, d(vocab)));
}

Parameters head_parameters(const Model& model, std::int64_t vocab) {
  return {model.tied_embeddings ? 0 : vocab * model.hidden, 0, 0};
}

Parameters final_norm_parameters(const Model& model) {
  return {0, static_cast<std::int64_t>(norm_weights(model)), 0};
}

Parameters vision_parameters(const Model& model) { return whole(count_vision(model)); }

ParameterReport count_parameters(const Model& model) {
  const Parameters main = whole(count_main_model(model));
  ParameterReport report;
  report.total = main.total();
  report.active = main.total() - main.experts;
  if (model.moe) report.active += main.experts / model.moe->experts * model.moe->top_k;
  report.mtp = model.mtp_layers * mtp_layer_parameters(model).total();
  return report;
}

double estimate_parameters(const Model& model) {
  return count_main_model(model).total() + d(model.mtp_layers) * count_mtp_layer(model).total();
}

std::int64_t padded_vocab(std::int64_t vocab, std::int64_t divisor, std::int64_t tp) {
  return round_up(vocab, divisor * tp);
}

}  // namespace stepcast
