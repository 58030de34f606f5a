#include "model/model.h"

#include <fmt/format.h>

#include "base/json.h"
#include "base/schema.h"
#include "model/parameters.h"

namespace stepcast {
namespace {

constexpr double kMostParameters = 1e15;  // far below 2^53: counts stay exact in a double

template <typename Enum>
Enum enum_of(const Json& name, std::initializer_list<std::pair<const char*, Enum>> names) {
  for (const auto& [text, value] : names)
    if (name == text) return value;
  return names.begin()->second;  // the schema has refused all other names
}

AttentionKind kind_of(const Json& given) {
  if (!given.contains("kind")) {
    if (given["kv_lora_rank"] > 0) return AttentionKind::kMla;
    return given.value("kv_heads", given["heads"]) == given["heads"] ? AttentionKind::kMha
                                                                     : AttentionKind::kGqa;
  }
  return enum_of<AttentionKind>(
      given["kind"],
      {{"mha", AttentionKind::kMha}, {"gqa", AttentionKind::kGqa}, {"mla", AttentionKind::kMla}});
}

Attention read_attention(const Json& given, std::int64_t hidden) {
  Attention a;
  a.kind = kind_of(given);
  a.heads = given["heads"];
  a.kv_heads = given.value("kv_heads", a.heads);
  if (!a.mla()) a.head_dim = given.value("head_dim", hidden / a.heads);
  a.qkv_bias = given["qkv_bias"];
  a.out_bias = given["out_bias"];
  a.qk_norm = enum_of<QkNorm>(
      given["qk_norm"],
      {{"none", QkNorm::kNone}, {"head", QkNorm::kHead}, {"projection", QkNorm::kProjection}});
  a.sinks = given["sinks"];
  a.window = given["window"];
  a.window_period = given["window_period"];
  a.window_offset = given["window_offset"];
  a.q_lora_rank = given["q_lora_rank"];
  a.kv_lora_rank = given["kv_lora_rank"];
  a.qk_nope_head_dim = given["qk_nope_head_dim"];
  a.qk_rope_head_dim = given["qk_rope_head_dim"];
  a.v_head_dim = given["v_head_dim"];
  return a;
}

Moe read_moe(const Json& given) {
  Moe moe;
  moe.experts = given["experts"];
  moe.top_k = given["top_k"];
  moe.ffn_hidden = given["ffn_hidden"];
  moe.shared_ffn_hidden = given["shared_ffn_hidden"];
  moe.shared_gate = given["shared_gate"];
  moe.expert_bias = given["expert_bias"];
  moe.router_bias = given["router_bias"];
  moe.correction_bias = given["correction_bias"];
  moe.latent = given["latent"];
  moe.dense_layers = given["dense_layers"];
  moe.period = given["period"];
  moe.first = given["first"];
  moe.groups = given["groups"];
  moe.group_top_k = given["group_top_k"];
  return moe;
}

Vision read_vision(const Json& given) {
  Vision v;
  v.layers = given["layers"];
  v.hidden = given["hidden"];
  v.ffn_hidden = given["ffn_hidden"];
  v.heads = given["heads"];
  v.gated_ffn = given["gated_ffn"];
  v.patch = given["patch"];
  v.merge = given["merge"];
  v.deepstack = given["deepstack"];
  v.patches_per_sequence = given["patches_per_sequence"];
  return v;
}

Model read_fields(const Json& given) {
  Model m;
  m.name = given["name"];
  m.layers = given["layers"];
  m.hidden = given["hidden"];
  m.vocab = given["vocab"];
  m.vocab_divisor = given["vocab_divisor"];
  m.ffn_hidden = given["ffn_hidden"];
  m.gated_ffn = given["gated_ffn"];
  m.activation = given.value("activation", m.gated_ffn ? "silu" : "gelu");
  m.norm = enum_of<Norm>(given["norm"], {{"rmsnorm", Norm::kRms}, {"layernorm", Norm::kLayer}});
  m.norms_per_layer = given["norms_per_layer"];
  m.position = enum_of<Position>(given["position"], {{"rope", Position::kRope},
                                                     {"learned", Position::kLearned},
                                                     {"alibi", Position::kAlibi},
                                                     {"none", Position::kNone}});
  m.max_positions = given["max_positions"];
  m.bias = given["bias"];
  m.tied_embeddings = given["tied_embeddings"];
  m.attention = read_attention(given["attention"], m.hidden);
  if (given.contains("moe")) m.moe = read_moe(given["moe"]);
  m.mtp_layers = given["mtp_layers"];
  if (given.contains("vision")) m.vision = read_vision(given["vision"]);
  return m;
}

// What the schema cannot say: fields that must agree with each other.
class FieldRules {
 public:
  FieldRules(const std::string& file, const std::string& prefix, std::vector<Problem>& problems)
      : file_(file), prefix_(prefix), problems_(problems) {}

  void check(const Model& m, const Json& given) {
    check_layers(m);
    check_heads(m, given["attention"]);
    m.attention.mla() ? check_mla(m.attention) : check_not_mla(m.attention);
    if (m.moe) check_moe(*m.moe);
    if (m.vision) check_vision(*m.vision);
  }

 private:
  void require(bool right, const char* pointer, const std::string& found, const std::string& allowed) {
    if (!right) problems_.push_back({file_, prefix_ + pointer, found, allowed});
  }

  void check_layers(const Model& m) {
    const std::int64_t moe_layers = m.moe_layers();
    require(!m.moe || moe_layers > 0, "/moe/dense_layers",
            fmt::format("no layer of {} has experts", m.layers),
            "dense_layers below layers, and a layer i with (i - first) mod period = 0; or no `moe`");
    require(m.ffn_hidden > 0 || moe_layers == m.layers, "/ffn_hidden",
            fmt::format("missing, and {} of {} layers are dense", m.layers - moe_layers, m.layers),
            "the width of the MLP of dense layers");
  }

  void check_heads(const Model& m, const Json& given) {
    const Attention& a = m.attention;
    require(a.mla() || given.contains("head_dim") || m.hidden % a.heads == 0, "/attention/head_dim",
            fmt::format("missing, and hidden {} is not divisible by heads {}", m.hidden, a.heads),
            "an integer, or heads that divide hidden");
    require(a.heads % a.kv_heads == 0, "/attention/kv_heads",
            fmt::format("{} does not divide heads {}", a.kv_heads, a.heads), "a divisor of heads");
    require(a.kind == AttentionKind::kGqa || a.kv_heads == a.heads, "/attention/kv_heads",
            fmt::format("{} with {} heads and kind {}", a.kv_heads, a.heads, a.mla() ? "mla" : "mha"),
            "the number of heads, or kind gqa");
    require(a.window_offset < a.window_period, "/attention/window_offset",
            fmt::format("{} with window_period {}", a.window_offset, a.window_period),
            "less than window_period");
  }

  void check_mla(const Attention& a) {
    const std::string needed = "at least 1 with kind mla";
    require(a.kv_lora_rank > 0, "/attention/kv_lora_rank", "missing or 0", needed);
    require(a.qk_nope_head_dim > 0, "/attention/qk_nope_head_dim", "missing or 0", needed);
    require(a.v_head_dim > 0, "/attention/v_head_dim", "missing or 0", needed);
    require(!a.qkv_bias, "/attention/qkv_bias", "true with kind mla",
            "false: MLA's input projections have no bias");
    require(a.qk_norm == QkNorm::kNone, "/attention/qk_norm", "set with kind mla",
            "none: the norms of MLA's latents always count");
    require(!a.sinks, "/attention/sinks", "true with kind mla", "false");
  }

  void check_not_mla(const Attention& a) {
    const auto unused = [&](std::int64_t value, const char* pointer) {
      require(value == 0, pointer, fmt::format("{} without kind mla", value), "leave it out, or kind mla");
    };
    unused(a.q_lora_rank, "/attention/q_lora_rank");
    unused(a.kv_lora_rank, "/attention/kv_lora_rank");
    unused(a.qk_nope_head_dim, "/attention/qk_nope_head_dim");
    unused(a.qk_rope_head_dim, "/attention/qk_rope_head_dim");
    unused(a.v_head_dim, "/attention/v_head_dim");
  }

  void check_moe(const Moe& moe) {
    require(moe.top_k <= moe.experts, "/moe/top_k", fmt::format("{} of {} experts", moe.top_k, moe.experts),
            "at most experts");
    require(!moe.shared_gate || moe.shared_ffn_hidden > 0, "/moe/shared_gate", "true without shared experts",
            "false, or a shared_ffn_hidden");
    require(moe.group_top_k == 0 || moe.groups > 0, "/moe/group_top_k",
            fmt::format("{} without groups", moe.group_top_k), "leave it out, or give groups");
    if (moe.groups == 0) return;
    const bool divides = moe.experts % moe.groups == 0;
    require(divides, "/moe/groups", fmt::format("{} does not divide experts {}", moe.groups, moe.experts),
            "a divisor of experts");
    require(moe.group_top_k <= moe.groups, "/moe/group_top_k",
            fmt::format("{} of {} groups", moe.group_top_k, moe.groups), "at most groups");
    const std::int64_t reachable = moe.group_top_k * (moe.experts / moe.groups);
    require(!divides || moe.group_top_k == 0 || moe.top_k <= reachable, "/moe/top_k",
            fmt::format("{}, but {} groups hold only {} experts", moe.top_k, moe.group_top_k, reachable),
            "at most group_top_k experts / groups");
  }

  void check_vision(const Vision& v) {
    require(v.hidden % v.heads == 0, "/vision/heads",
            fmt::format("{} do not divide hidden {}", v.heads, v.hidden), "a divisor of vision.hidden");
    require(v.deepstack <= v.layers, "/vision/deepstack",
            fmt::format("{} of {} layers", v.deepstack, v.layers), "at most vision.layers");
    require(v.patches_per_sequence % (v.merge * v.merge) == 0, "/vision/patches_per_sequence",
            fmt::format("{} is not divisible by merge^2 = {}", v.patches_per_sequence, v.merge * v.merge),
            "a multiple of merge^2");
  }

  const std::string& file_;
  const std::string& prefix_;
  std::vector<Problem>& problems_;
};

std::string name_of(AttentionKind kind) {
  if (kind == AttentionKind::kMla) return "mla";
  return kind == AttentionKind::kGqa ? "gqa" : "mha";
}

std::string name_of(QkNorm norm) {
  if (norm == QkNorm::kNone) return "none";
  return norm == QkNorm::kHead ? "head" : "projection";
}

std::string name_of(Position position) {
  switch (position) {
    case Position::kRope:
      return "rope";
    case Position::kLearned:
      return "learned";
    case Position::kAlibi:
      return "alibi";
    case Position::kNone:
      break;
  }
  return "none";
}

Json attention_json(const Attention& a) {
  Json j = {{"kind", name_of(a.kind)}, {"heads", a.heads}, {"kv_heads", a.kv_heads}};
  if (!a.mla()) j["head_dim"] = a.head_dim;
  j["qkv_bias"] = a.qkv_bias;
  j["out_bias"] = a.out_bias;
  j["qk_norm"] = name_of(a.qk_norm);
  j["sinks"] = a.sinks;
  j["window"] = a.window;
  j["window_period"] = a.window_period;
  j["window_offset"] = a.window_offset;
  if (!a.mla()) return j;
  j["q_lora_rank"] = a.q_lora_rank;
  j["kv_lora_rank"] = a.kv_lora_rank;
  j["qk_nope_head_dim"] = a.qk_nope_head_dim;
  j["qk_rope_head_dim"] = a.qk_rope_head_dim;
  j["v_head_dim"] = a.v_head_dim;
  return j;
}

Json moe_json(const Moe& m) {
  return {{"experts", m.experts},         {"top_k", m.top_k},
          {"ffn_hidden", m.ffn_hidden},   {"shared_ffn_hidden", m.shared_ffn_hidden},
          {"shared_gate", m.shared_gate}, {"expert_bias", m.expert_bias},
          {"router_bias", m.router_bias}, {"correction_bias", m.correction_bias},
          {"latent", m.latent},           {"dense_layers", m.dense_layers},
          {"period", m.period},           {"first", m.first},
          {"groups", m.groups},           {"group_top_k", m.group_top_k}};
}

Json vision_json(const Vision& v) {
  return {{"layers", v.layers}, {"hidden", v.hidden},       {"ffn_hidden", v.ffn_hidden},
          {"heads", v.heads},   {"gated_ffn", v.gated_ffn}, {"patch", v.patch},
          {"merge", v.merge},   {"deepstack", v.deepstack}, {"patches_per_sequence", v.patches_per_sequence}};
}

}  // namespace

std::int64_t Model::moe_layers() const {
  std::int64_t count = 0;
  for (std::int64_t layer = 0; moe && layer < layers; ++layer) count += is_moe(layer) ? 1 : 0;
  return count;
}

Model read_model(const Json& object, const std::string& file, const std::string& prefix,
                 std::vector<Problem>& problems) {
  const std::size_t before = problems.size();
  check_schema(object, "model", file, prefix, problems);
  if (problems.size() > before) return {};
  const Json given = with_defaults(object, "model");
  Model model = read_fields(given);
  FieldRules(file, prefix, problems).check(model, given);
  if (problems.size() > before) return model;
  const double parameters = estimate_parameters(model);
  if (parameters > kMostParameters)
    problems.push_back({file, prefix, fmt::format("about {:.3g} parameters", parameters),
                        fmt::format("a model of at most {:.0e}", kMostParameters)});
  return model;
}

Json model_json(const Model& m) {
  Json j = {{"name", m.name},
            {"layers", m.layers},
            {"hidden", m.hidden},
            {"vocab", m.vocab},
            {"vocab_divisor", m.vocab_divisor},
            {"ffn_hidden", m.ffn_hidden},
            {"gated_ffn", m.gated_ffn},
            {"activation", m.activation},
            {"norm", m.norm == Norm::kRms ? "rmsnorm" : "layernorm"},
            {"norms_per_layer", m.norms_per_layer},
            {"position", name_of(m.position)},
            {"max_positions", m.max_positions},
            {"bias", m.bias},
            {"tied_embeddings", m.tied_embeddings},
            {"attention", attention_json(m.attention)}};
  if (m.moe) j["moe"] = moe_json(*m.moe);
  j["mtp_layers"] = m.mtp_layers;
  if (m.vision) j["vision"] = vision_json(*m.vision);
  return j;
}

}  // namespace stepcast
