// A transformer as the scenario's `model` object describes it (field names as in Megatron and the contract).
// Plain data; what follows from it (parameters, FLOPs, ops) is in parameters.h, flops.h and layer_ops.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/problem.h"

namespace stepcast {

enum class AttentionKind { kMha, kGqa, kMla };
enum class Norm { kRms, kLayer };
enum class QkNorm { kNone, kHead, kProjection };
enum class Position { kRope, kLearned, kAlibi, kNone };

struct Attention {
  AttentionKind kind = AttentionKind::kMha;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // = heads for MHA and MLA
  std::int64_t head_dim = 0;  // query and key dimension of MHA and GQA
  bool qkv_bias = false;
  bool out_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  bool sinks = false;
  std::int64_t window = 0;  // 0 = full causal attention
  std::int64_t window_period = 1;
  std::int64_t window_offset = 0;
  std::int64_t q_lora_rank = 0;  // MLA; 0 = queries are projected directly
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_nope_head_dim = 0;
  std::int64_t qk_rope_head_dim = 0;
  std::int64_t v_head_dim = 0;

  bool mla() const { return kind == AttentionKind::kMla; }
  std::int64_t qk_dim() const { return mla() ? qk_nope_head_dim + qk_rope_head_dim : head_dim; }
  std::int64_t v_dim() const { return mla() ? v_head_dim : head_dim; }
  bool windowed(std::int64_t layer) const { return window > 0 && layer % window_period == window_offset; }
  bool operator==(const Attention&) const = default;
};

struct Moe {
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  std::int64_t ffn_hidden = 0;         // width of one expert
  std::int64_t shared_ffn_hidden = 0;  // all shared experts together
  bool shared_gate = false;
  bool expert_bias = false;
  bool router_bias = false;
  bool correction_bias = false;
  std::int64_t latent = 0;        // experts work on this width instead of hidden; 0 = none
  std::int64_t dense_layers = 0;  // leading layers without experts
  std::int64_t period = 1;        // layer i is MoE when i >= dense_layers and (i - first) mod period = 0
  std::int64_t first = 0;
  std::int64_t groups = 0;       // group-limited routing: experts are in this many groups,
  std::int64_t group_top_k = 0;  // of which a token uses at most so many; 0 = no limit

  bool operator==(const Moe&) const = default;
};

struct Vision {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t ffn_hidden = 0;
  std::int64_t heads = 0;
  bool gated_ffn = false;
  std::int64_t patch = 16;
  std::int64_t merge = 2;
  std::int64_t deepstack = 0;
  std::int64_t patches_per_sequence = 0;

  bool operator==(const Vision&) const = default;
};

struct Model {
  std::string name;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t vocab = 0;
  std::int64_t vocab_divisor = 128;
  std::int64_t ffn_hidden = 0;  // of dense layers; 0 when there is none
  bool gated_ffn = true;
  std::string activation;  // of the FFN; a name only: it changes neither parameters nor FLOPs
  Norm norm = Norm::kRms;
  std::int64_t norms_per_layer = 2;
  Position position = Position::kRope;
  std::int64_t max_positions = 0;  // 0 = not given; then learned positions have no table
  bool bias = false;  // every linear layer has one, but the output matrix and MLA's input projections
  bool tied_embeddings = false;
  Attention attention;
  std::optional<Moe> moe;
  std::int64_t mtp_layers = 0;
  std::optional<Vision> vision;

  bool is_moe(std::int64_t layer) const {
    return moe && layer >= moe->dense_layers && (layer - moe->first) % moe->period == 0;
  }
  std::int64_t moe_layers() const;
  std::int64_t dense_layers() const { return layers - moe_layers(); }
  bool mtp_is_moe() const { return layers > 0 && is_moe(layers - 1); }  // of the kind of the last layer
  std::int64_t ffn_matrices() const { return gated_ffn ? 3 : 2; }       // gamma
  std::int64_t expert_width() const { return moe && moe->latent > 0 ? moe->latent : hidden; }
  bool operator==(const Model&) const = default;
};

// Reads the contract's model object (scenarios/schemas/model.schema.json); fills in what a default depends
// on: the kind of attention, kv_heads (= heads), head_dim (= hidden / heads), activation. Refuses fields that
// contradict each other and models above 1e15 parameters (so counts are exact in a double). Appends every
// problem found, with pointers below `prefix`; the model is meaningful only when none was.
Model read_model(const Json& object, const std::string& file, const std::string& prefix,
                 std::vector<Problem>& problems);

// The same model as a contract object, complete.
Json model_json(const Model& model);

}  // namespace stepcast
