#include "memory/activations.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "memory/states.h"
#include "memory/vision.h"

namespace stepcast {
namespace {

double d(std::int64_t value) { return static_cast<double>(value); }

// Softmax and target of the loss that stay between forward and backward, in fp32.
constexpr double kSavedLogitBytes = 4;

// An unfused RMSNorm in fp32 saves its fp32 input and the normalised tensor.
constexpr double kUnfusedNormBytes = 6;

// What makes saving a tensor on the GPU unnecessary.
struct Ways {
  std::array<std::string_view, 2> dropped_by{};
  std::array<std::string_view, 2> input_of{};
};

// Collects the saved tensors of a layer.
class LayerBuilder {
 public:
  LayerBuilder(const Scenario& s, const Stack& stack)
      : s_(s),
        m_(s.model),
        stack_(stack),
        t_(d(s.layout.tp)),
        tokens_(d(s.tokens_per_microbatch())),
        local_(s.layout.sequence_parallel ? tokens_ / t_ : tokens_),
        e_(s.precision.recipe == Recipe::kFp32 ? 4 : 2),
        q_(std::min(e_, saved_input_bytes(s.precision.recipe, s.cluster.gpu.compute_capability))),
        h_(d(m_.hidden)) {
    const AttentionKernel kernel = s.kernels.attention;
    unfused_ = kernel == AttentionKernel::kUnfused;
    dropout_ = unfused_ && m_.position == Position::kLearned;  // GPT-3 style runs, as in Korthikanti et al.
  }

  LayerMemory build(bool moe) {
    layer_ = {};
    layer_.input = e_ * h_ * local_;
    add_norm(q_, {{"layernorm"}, {"qkv_linear"}}, "attn_norm");
    if (m_.attention.mla()) {
      add_mla();
    } else {
      add_gqa();
    }
    add_core_attention();
    add_norm(moe && s_.recompute.has("moe") ? e_ : q_, mlp_norm_output(moe), "mlp_norm");
    if (moe) {
      add_moe();
    } else {
      add_mlp(d(m_.ffn_hidden), "mlp", "mlp");
    }
    layer_.working = std::max(attention_working(), moe ? moe_working() : mlp_working());
    return std::move(layer_);
  }

  // The embedding's output, and the mask of its dropout.
  double embedding() const { return (e_ + (dropout_ ? 1 : 0)) * h_ * local_; }

  // torchtitan's policy: of the products of a layer (q, k, v, output, gate, up, down) it saves every second.
  double kept_by_op(bool moe) const {
    const Attention& a = m_.attention;
    const double f =
        moe ? d(m_.moe->ffn_hidden) * d(m_.moe->top_k) + d(m_.moe->shared_ffn_hidden) : d(m_.ffn_hidden);
    const double heads = d(a.heads) * d(a.qk_dim() + a.v_dim()) + kv_heads() * d(a.v_dim());
    return 2 * e_ * h_ * local_ + (e_ * (heads + f) + 4 * d(a.heads)) * tokens_ / t_;
  }

 private:
  void add(std::string_view name, double elements, double width, const Ways& ways = {}) {
    if (elements > 0)
      layer_.tensors.push_back({name, elements * width, elements, ways.dropped_by, ways.input_of});
  }

  // Full recompute of a dense FFN begins at its norm, which is part of its first linear layer (Transformer
  // Engine's LayerNormLinear); that of a MoE part at the norm's output, which it keeps unquantised.
  static Ways mlp_norm_output(bool moe) { return {{"layernorm", moe ? "" : "mlp"}, {}}; }

  void add_norm(double output_width, const Ways& output, std::string_view module) {
    add("norm input", h_ * local_, e_, {{}, {module}});
    add("norm output", h_ * local_, output_width, output);
    if (!s_.kernels.fused_norm) add("norm in fp32", h_ * local_, kUnfusedNormBytes, {{"layernorm"}, {}});
    if (m_.norms_per_layer >= 4) add("second norm input", h_ * local_, e_);
    if (dropout_) add("dropout mask", h_ * local_, 1);
  }

  // Heads of keys and values on one TP rank times t: a rank holds at least one.
  double kv_heads() const { return std::max(d(m_.attention.kv_heads), t_); }

  void add_gqa() {
    const Attention& a = m_.attention;
    const double n = d(a.heads), dim = d(a.head_dim);
    const Ways ways{{}, {"core_attn"}};
    add("q", n * dim * tokens_ / t_, e_, ways);
    add("k", kv_heads() * dim * tokens_ / t_, e_, ways);
    add("v", kv_heads() * dim * tokens_ / t_, e_, ways);
    if (a.qk_norm != QkNorm::kNone) add("q, k before their norm", (n + kv_heads()) * dim * tokens_ / t_, e_);
  }

  void add_mla() {
    const Attention& a = m_.attention;
    const double n = d(a.heads), ql = d(a.q_lora_rank), kvl = d(a.kv_lora_rank);
    add("q latent", ql * local_, e_ + q_);
    add("kv latent before its norm", (kvl + d(a.qk_rope_head_dim)) * local_, e_);
    add("kv latent", kvl * local_, q_);
    const Ways ways{{"mla_up_proj"}, {"core_attn"}};
    add("q", n * d(a.qk_dim()) * tokens_ / t_, e_, ways);
    add("k", n * d(a.qk_dim()) * tokens_ / t_, e_, ways);
    add("v", n * d(a.v_dim()) * tokens_ / t_, e_, ways);
  }

  void add_core_attention() {
    const double n = d(m_.attention.heads), width = n * d(m_.attention.v_dim());
    const Ways output{{}, {"attn_proj"}};
    add("attention output", width * tokens_ / t_, e_, output);
    if (q_ < e_) add("quantised attention output", width * tokens_ / t_, q_, output);
    const double scores = n * d(s_.batch.seq_len) * tokens_ / t_;
    const Ways inner{{"core_attn"}, {}};
    if (unfused_) {
      add("softmax", scores, e_, inner);
      if (dropout_) add("dropout of softmax", scores, 1 + e_, inner);
    } else {
      add("log-sum-exp", n * tokens_ / t_, 4, inner);
    }
  }

  void add_mlp(double f, std::string_view module, std::string_view other) {
    const Ways ways{{module, other}, {}};
    add("FC1 output", (gamma() - 1) * f * tokens_ / t_, e_, ways);
    add("activation output", f * tokens_ / t_, q_, ways);
    if (m_.gated_ffn && !stack_.fused_activation) add("activated gate", f * tokens_ / t_, e_, ways);
  }

  // A fused group MLP is FC1, activation and FC2 in one module: all that it saves goes with it.
  void add_moe() {
    const Moe& moe = *m_.moe;
    const double copies = routed_tokens(), f = d(moe.ffn_hidden);
    const Ways whole{{"moe"}, {}};
    add("router", d(moe.experts) * local_, 9, whole);  // fp32 logits and probabilities, one byte of map
    add("expert input", d(m_.expert_width()) * copies * d(s_.layout.etp), q_,
        {{"moe"}, {"expert_fc1", "fused_group_mlp"}});
    add("expert FC1 output", (gamma() - 1) * f * copies, e_, {{"moe"}, {"moe_act", "fused_group_mlp"}});
    add("expert activation output", f * copies, q_, {{"moe_act", "moe"}, {"fused_group_mlp"}});
    add("probabilities", copies, 4, whole);
    if (moe.shared_ffn_hidden > 0) add_mlp(d(moe.shared_ffn_hidden), "shared_experts", "moe");
  }

  double gamma() const { return d(m_.ffn_matrices()); }
  double routed_tokens() const { return d(m_.moe->top_k) * local_ * expert_imbalance(s_); }

  // The gradient that runs down the residual stream, and the input of a linear layer gathered over TP.
  double residual_working() const {
    const double gathered = s_.layout.sequence_parallel ? e_ * h_ * tokens_ : 0;
    return e_ * h_ * local_ + gathered;
  }

  double attention_working() const {
    const Attention& a = m_.attention;
    const double n = d(a.heads);
    const double kv = a.mla() ? n : kv_heads();
    double bytes = residual_working() +
                   e_ * (n * d(a.qk_dim()) + kv * d(a.qk_dim() + a.v_dim())) * tokens_ / t_ +
                   e_ * n * d(a.v_dim()) * tokens_ / t_;
    if (unfused_) bytes += 2 * e_ * n * d(s_.batch.seq_len) * tokens_ / t_;
    return bytes;
  }

  double mlp_working() const { return residual_working() + e_ * gamma() * d(m_.ffn_hidden) * tokens_ / t_; }

  // Gradients of an expert's tensors, and of the permuted tokens on both sides of the all-to-all.
  double moe_working() const {
    const double copies = routed_tokens(), width = d(m_.expert_width());
    double bytes =
        residual_working() + e_ * (gamma() * d(m_.moe->ffn_hidden) + 2 * width * d(s_.layout.etp)) * copies;
    if (s_.moe.dispatcher == Dispatcher::kAllGather)
      bytes += e_ * h_ * local_ * d(s_.layout.ep * s_.layout.etp);
    return bytes;
  }

  const Scenario& s_;
  const Model& m_;
  const Stack& stack_;
  double t_;
  double tokens_;
  double local_;
  double e_;
  double q_;
  double h_;
  bool unfused_ = false;
  bool dropout_ = false;
  LayerMemory layer_;
};

double zipf_imbalance(const Moe& moe, double exponent, std::int64_t ranks) {
  const std::int64_t per_rank = std::max<std::int64_t>(1, moe.experts / std::max<std::int64_t>(1, ranks));
  double all = 0;
  double fullest = 0;
  for (std::int64_t i = 0; i < moe.experts; ++i) {
    const double weight = std::pow(d(i + 1), -exponent);
    all += weight;
    if (i < per_rank) fullest += weight;
  }
  // A token goes to an expert once: at most 1 / k of all copies reach one expert.
  const double share = std::min(fullest / all, d(per_rank) / d(moe.top_k));
  return share * d(moe.experts) / d(per_rank);
}

bool holds(const std::vector<std::string>& modules, std::string_view module) {
  return std::find(modules.begin(), modules.end(), module) != modules.end();
}

bool moves_to_host(const SavedTensor& tensor, const Scenario& s, const Stack& stack) {
  const auto moved = [&](std::string_view module) { return holds(s.offload.activations, module); };
  return tensor.elements >= stack.offload_min_elements &&
         std::any_of(tensor.input_of.begin(), tensor.input_of.end(), moved);
}

bool dropped(const SavedTensor& tensor, const Recompute& recompute) {
  return std::any_of(tensor.dropped_by.begin(), tensor.dropped_by.end(), [&](std::string_view module) {
    return !module.empty() && recompute.has(std::string(module));
  });
}

}  // namespace

double expert_imbalance(const Scenario& s) {
  if (!s.model.moe) return 1;
  const double capacity = s.moe.capacity_factor.value_or(0);
  if (capacity > 0 && s.moe.pad_to_capacity) return capacity;
  double imbalance = 1;
  if (s.moe.routing.kind == RoutingKind::kZipf)
    imbalance = zipf_imbalance(*s.model.moe, s.moe.routing.exponent, s.layout.ep);
  return capacity > 0 ? std::min(imbalance, capacity) : imbalance;
}

double saved_input_bytes(Recipe recipe, double compute_capability) {
  switch (recipe) {
    case Recipe::kFp32:
      return 4;
    case Recipe::kFp8Tensor:
      return 1;
    case Recipe::kFp8Block:  // fp32 scale of 128 elements; Blackwell emulates it with MXFP8
      return compute_capability >= 10 ? 1 + 1.0 / 32 : 1 + 4.0 / 128;
    case Recipe::kMxfp8:
      return 1 + 1.0 / 32;
    case Recipe::kNvfp4:
      return 0.5 + 1.0 / 16;
    default:
      return 2;
  }
}

Activations::Sums Activations::sums_of(const LayerMemory& layer, const Scenario& s, const Stack& stack) {
  Sums sums;
  std::map<std::string_view, double> groups;
  for (const SavedTensor& tensor : layer.tensors) {
    sums.everything += tensor.bytes;
    if (dropped(tensor, s.recompute)) continue;
    if (!moves_to_host(tensor, s, stack)) {
      sums.kept += tensor.bytes;
      continue;
    }
    sums.host += tensor.bytes;
    for (const std::string_view module : tensor.input_of)
      if (holds(s.offload.activations, module)) groups[module] += tensor.bytes;
  }
  for (const auto& [module, bytes] : groups) sums.group = std::max(sums.group, bytes);
  return sums;
}

Activations::Activations(const Scenario& scenario, const Stack& stack) : s_(scenario) {
  LayerBuilder builder(scenario, stack);
  if (scenario.model.dense_layers() > 0) dense_ = builder.build(false);
  if (scenario.model.moe) moe_ = builder.build(true);
  const bool by_op = stack.selective_by_op && scenario.recompute.granularity == Granularity::kSelective;
  for (const bool moe : {false, true}) {
    sums_[moe] = sums_of(layer(moe), scenario, stack);
    if (by_op && !layer(moe).tensors.empty())
      sums_[moe].kept = std::min(sums_[moe].kept, builder.kept_by_op(moe));
  }
  groups_in_flight_ = stack.offload_groups_in_flight;
  embedding_ = builder.embedding();
  vision_ = vision_memory(scenario);
  const double element = scenario.precision.recipe == Recipe::kFp32 ? 4 : 2;
  const double tokens = d(scenario.tokens_per_microbatch());
  const double tp = d(scenario.layout.tp);
  boundary_ = element * d(scenario.model.hidden) * tokens / (scenario.layout.sequence_parallel ? tp : 1);
  logits_ = tokens * vocab_rows(scenario) * (stack.vocab_parallel_loss ? 1 : tp);
  logits_bytes_ = stack.logits_bytes;
}

// Full recompute covers all layers of a stage, or the first `layers` of it (Megatron's block method).
std::int64_t Activations::recomputed(const Stage& stage) const {
  const std::int64_t layers = stage.layers + stage.mtp;
  if (s_.recompute.granularity != Granularity::kFull) return 0;
  return std::min(layers, s_.recompute.layers.value_or(layers));
}

// Calls f(moe, in_full) for each layer of a stage.
template <typename F>
void Activations::for_layers(const Stage& stage, F&& f) const {
  const std::int64_t in_full = recomputed(stage);
  for (std::int64_t i = 0; i < stage.layers; ++i) f(s_.model.is_moe(stage.first_layer + i), i < in_full);
  for (std::int64_t i = 0; i < stage.mtp; ++i) f(s_.model.mtp_is_moe(), stage.layers + i < in_full);
}

// Head: input and output of the final norm. An MTP depth normalises hidden state and embedding, joins them to
// one of twice the width, and has a final norm of its own.
double Activations::stage(const Stage& stage) const {
  double bytes = 6 * d(stage.mtp) * boundary_;
  for_layers(stage, [&](bool moe, bool in_full) { bytes += kept(moe, in_full); });
  if (stage.embedding) bytes += embedding_ + vision_.kept;
  if (stage.head) bytes += 2 * boundary_;
  return bytes;
}

double Activations::offloaded(const Stage& stage) const {
  double bytes = 0;
  for_layers(stage, [&](bool moe, bool in_full) { bytes += in_full ? 0 : sums_[moe].host; });
  return bytes;
}

// What is offloaded comes back group by group.
double Activations::on_top(bool moe, bool in_full) const {
  const double elsewhere = in_full ? 0 : sums_[moe].host;
  return everything(moe) - kept(moe, in_full) - elsewhere + layer(moe).working;
}

double Activations::backward(const Stage& stage) const {
  double bytes = stage.embedding ? vision_.on_top : 0;
  double group = 0;
  for_layers(stage, [&](bool moe, bool in_full) {
    bytes = std::max(bytes, on_top(moe, in_full));
    if (!in_full) group = std::max(group, sums_[moe].group);
  });
  bytes += std::min(groups_in_flight_ * group, offloaded(stage));
  return bytes + (stage.head ? 0 : boundary_);  // the gradient that came from the next stage
}

double Activations::saved_logits(const Stage& stage) const {
  return d(stage.head + stage.mtp) * logits_ * std::min(kSavedLogitBytes, logits_bytes_);
}

double Activations::loss_peak(const Stage& stage) const {
  const double heads = d(stage.head + stage.mtp);
  if (heads == 0) return 0;
  return logits_ * (logits_bytes_ + (heads - 1) * std::min(kSavedLogitBytes, logits_bytes_));
}

}  // namespace stepcast
