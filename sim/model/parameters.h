// Exact parameter counts. h hidden, n heads, g KV heads, d head dimension, E experts, k top-k, f widths, gamma matrices of
// an FFN (3 gated, 2 not), q_l and kv_l the ranks and d_n, d_r, d_v the head dimensions of MLA:
//
//   MHA, GQA   h n d + 2 h g d + n d h; QKV bias (n + 2 g) d, output bias h, QK-norm 2 d or n d + g d, sinks n
//   MLA        h q_l + q_l + q_l n (d_n + d_r) + h (kv_l + d_r) + kv_l + kv_l n (d_n + d_v) + n d_v h
//              (without a q rank the first three terms become h n (d_n + d_r))
//   dense FFN  gamma h f (and biases)
//   MoE        E gamma h f_e + h E + gamma h f_s; biases, gate, latent projections
//   MTP        2 h^2 + 3 h + one layer of the last layer's kind; embedding and head are shared with the main model
//
// Active parameters count k experts instead of E, and both embeddings.
#pragma once

#include <cstdint>

#include "model/model.h"

namespace stepcast {

// Of one layer or module, by how a rank of a TP / EP grid holds them.
struct Parameters {
  std::int64_t tp_sharded = 0;  // a rank holds 1/tp
  std::int64_t replicated = 0;  // norms, router, MLA down-projections, gates
  std::int64_t experts = 0;     // routed experts, all E of them; a rank holds 1/(ep etp)

  std::int64_t total() const { return tp_sharded + replicated + experts; }
  Parameters& operator+=(const Parameters& other);
};

Parameters attention_parameters(const Model& model);
Parameters decoder_layer_parameters(const Model& model, std::int64_t layer);  // attention, FFN or MoE, norms
Parameters mtp_layer_parameters(const Model& model);                          // one MTP depth
Parameters embedding_parameters(const Model& model, std::int64_t vocab);  // word table and learned positions
Parameters head_parameters(const Model& model, std::int64_t vocab);  // output matrix (0 when tied); no norm
Parameters final_norm_parameters(const Model& model);
Parameters vision_parameters(const Model& model);

struct ParameterReport {
  std::int64_t total = 0;   // main model, unpadded vocabulary
  std::int64_t active = 0;  // used by one token
  std::int64_t mtp = 0;     // apart from total
};

ParameterReport count_parameters(const Model& model);
double estimate_parameters(const Model& model);  // in floating point, cannot overflow

// ceil(vocab / (divisor tp)) divisor tp: the rows that Megatron really allocates.
std::int64_t padded_vocab(std::int64_t vocab, std::int64_t divisor, std::int64_t tp);

}  // namespace stepcast
