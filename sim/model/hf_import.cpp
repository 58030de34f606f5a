#include "model/hf_import.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>

namespace stepcast {
namespace {

// `keys`: Hugging Face's spellings, separated by '|'; a dot descends into an object. `pointer`: our field.
struct KeyRule {
  std::string_view keys;
  const char* pointer;
  bool required = false;
};

constexpr std::string_view kTopK = "num_experts_per_tok|experts_per_token|num_selected_experts";
constexpr std::string_view kMtp = "num_nextn_predict_layers|mtp_num_hidden_layers";

constexpr std::array kPlainShape = {
    KeyRule{"num_hidden_layers", "/layers", true},
    KeyRule{"hidden_size", "/hidden", true},
    KeyRule{"vocab_size", "/vocab", true},
    KeyRule{"num_attention_heads", "/attention/heads", true},
    KeyRule{"max_position_embeddings", "/max_positions"},
    KeyRule{"tie_word_embeddings", "/tied_embeddings"},
};
constexpr std::array kDbrxShape = {
    KeyRule{"n_layers", "/layers", true},
    KeyRule{"d_model", "/hidden", true},
    KeyRule{"vocab_size", "/vocab", true},
    KeyRule{"n_heads", "/attention/heads", true},
    KeyRule{"attn_config.kv_n_heads", "/attention/kv_heads", true},
    KeyRule{"max_seq_len", "/max_positions"},
    KeyRule{"tie_word_embeddings", "/tied_embeddings"},
};
constexpr std::array kGqa = {
    KeyRule{"num_key_value_heads", "/attention/kv_heads", true},
    KeyRule{"head_dim", "/attention/head_dim"},
};
constexpr std::array kLlamaGqa = {
    // the first Llama configs have no num_key_value_heads: all heads
    KeyRule{"num_key_value_heads", "/attention/kv_heads"},
    KeyRule{"head_dim", "/attention/head_dim"},
};
constexpr std::array kMla = {
    KeyRule{"q_lora_rank", "/attention/q_lora_rank"},
    KeyRule{"kv_lora_rank", "/attention/kv_lora_rank", true},
    KeyRule{"qk_nope_head_dim", "/attention/qk_nope_head_dim", true},
    KeyRule{"qk_rope_head_dim", "/attention/qk_rope_head_dim", true},
    KeyRule{"v_head_dim", "/attention/v_head_dim", true},
};
constexpr std::array kDense = {KeyRule{"intermediate_size", "/ffn_hidden", true}};
constexpr std::array kMixtralExperts = {
    // intermediate_size is the width of an expert
    KeyRule{"num_local_experts|num_experts", "/moe/experts", true},
    KeyRule{kTopK, "/moe/top_k", true},
    KeyRule{"intermediate_size", "/moe/ffn_hidden", true},
};
constexpr std::array kOlmoeExperts = {
    KeyRule{"num_experts|num_local_experts", "/moe/experts", true},
    KeyRule{kTopK, "/moe/top_k", true},
    KeyRule{"intermediate_size", "/moe/ffn_hidden", true},
};
constexpr std::array kQwenExperts = {
    // intermediate_size is the width of dense layers
    KeyRule{"num_experts|num_local_experts", "/moe/experts", true},
    KeyRule{kTopK, "/moe/top_k", true},
    KeyRule{"moe_intermediate_size", "/moe/ffn_hidden", true},
    KeyRule{"intermediate_size", "/ffn_hidden"},
};
constexpr std::array kDeepSeekExperts = {
    KeyRule{"n_routed_experts|num_experts|num_local_experts", "/moe/experts", true},
    KeyRule{kTopK, "/moe/top_k", true},
    KeyRule{"moe_intermediate_size", "/moe/ffn_hidden", true},
    KeyRule{"intermediate_size", "/ffn_hidden"},
};
constexpr std::array kDbrxExperts = {
    KeyRule{"ffn_config.moe_num_experts", "/moe/experts", true},
    KeyRule{"ffn_config.moe_top_k", "/moe/top_k", true},
    KeyRule{"ffn_config.ffn_hidden_size", "/moe/ffn_hidden", true},
};

// Known keys that change neither parameters nor FLOPs.
constexpr std::array kNoEffect = {"_name_or_path",
                                  "architectures",
                                  "attention_dropout",
                                  "attn_implementation",
                                  "attn_output_multiplier",
                                  "auto_map",
                                  "aux_loss_alpha",
                                  "beta_fast",
                                  "bos_token_id",
                                  "clip_qkv",
                                  "dtype",
                                  "embedding_multiplier_scale",
                                  "emb_pdrop",
                                  "eos_token_id",
                                  "ep_size",
                                  "head_dim",
                                  "hidden_act",
                                  "hidden_dropout",
                                  "initial_context_length",
                                  "initializer_range",
                                  "max_attn_value",
                                  "max_window_layers",
                                  "model_type",
                                  "moe_jitter_eps",
                                  "moe_loss_weight",
                                  "moe_normalize_expert_weights",
                                  "norm_topk_prob",
                                  "num_key_value_heads",
                                  "output_multiplier_scale",
                                  "output_router_logits",
                                  "pad_token_id",
                                  "partial_rotary_factor",
                                  "pretraining_tp",
                                  "quantization_config",
                                  "resid_pdrop",
                                  "rms_norm_eps",
                                  "rope_interleave",
                                  "rope_parameters",
                                  "rope_scaling",
                                  "rope_theta",
                                  "routed_scaling_factor",
                                  "router_aux_loss_coef",
                                  "router_jitter_noise",
                                  "scoring_func",
                                  "seq_aux",
                                  "sliding_window",
                                  "swiglu_limit",
                                  "topk_method",
                                  "torch_dtype",
                                  "transformers_version",
                                  "uniform_expert_assignment",
                                  "use_cache",
                                  "initializer",
                                  "ffn_act_fn",
                                  "attn_pdrop",
                                  "layer_norm_epsilon",
                                  "pad_token",
                                  "unk_token_id"};

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(separator, start), text.size());
    parts.emplace_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

std::string short_text(const Json& value) {
  std::string text = text_of(value);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

// Layers that have something: layer i >= from has it when (i - first) mod period = 0.
struct Pattern {
  std::int64_t from = 0;
  std::int64_t period = 1;
  std::int64_t first = 0;

  bool has(std::int64_t layer) const { return layer >= from && (layer - first) % period == 0; }
};

// The simplest pattern that gives `layers`, of which at least one is set.
std::optional<Pattern> pattern_of(const std::vector<bool>& layers, bool may_start_late) {
  const auto size = static_cast<std::int64_t>(layers.size());
  const auto start = std::find(layers.begin(), layers.end(), true) - layers.begin();
  for (const std::int64_t from : {std::int64_t{0}, std::int64_t{start}}) {
    if (from > 0 && !may_start_late) continue;
    for (std::int64_t period = 1; period <= size; ++period) {
      const Pattern pattern{from, period, start % period};
      std::int64_t layer = 0;
      while (layer < size && pattern.has(layer) == layers[static_cast<std::size_t>(layer)]) ++layer;
      if (layer == size) return pattern;
    }
  }
  return std::nullopt;
}

class Importer {
 public:
  Importer(const Json& document, const std::string& file, const std::string& prefix)
      : document_(document), file_(file), prefix_(prefix) {
    if (document.contains("text_config") && document["text_config"].is_object()) {
      config_ = &document["text_config"];
      nesting_ = "text_config.";
    }
  }

  HfImport import();

  const std::string& model_type() const { return model_type_; }

  // The value of a key, and that it was looked at; nullptr when it is missing or null.
  const Json* find(const std::string& key) {
    const Json* at = config_;
    for (const std::string& step : split(key, '.')) {
      if (!at->is_object() || !at->contains(step)) return nullptr;
      at = &(*at)[step];
    }
    used_.insert(nesting_ + key);
    return at->is_null() ? nullptr : at;
  }

  // One problem a key.
  void problem(const std::string& key, const std::string& found, const std::string& allowed) {
    if (reported_.insert(pointer_of(key)).second)
      problems_.push_back({file_, pointer_of(key), found, allowed});
  }

  bool flag(const std::string& key, bool otherwise) {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) problem(key, short_text(*value), "true or false");
    return value->is_boolean() ? value->get<bool>() : otherwise;
  }

  std::int64_t number(const std::string& key, std::int64_t otherwise, std::int64_t low, std::int64_t high) {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    const bool fits = value->is_number_integer() && value->get<double>() >= static_cast<double>(low) &&
                      value->get<double>() <= static_cast<double>(high);
    if (!fits) problem(key, short_text(*value), fmt::format("an integer of at least {} up to {}", low, high));
    return fits ? value->get<std::int64_t>() : otherwise;
  }

  std::int64_t layers() { return number("num_hidden_layers", 1, 1, 10000); }

  // Sets our field; `key` is where the value came from.
  void set(const std::string& pointer, const Json& value, const std::string& key) {
    model_[Json::json_pointer(pointer)] = value;
    sources_[pointer] = key;
    std::string ours = pointer.substr(1);
    std::replace(ours.begin(), ours.end(), '/', '.');
    const Json* given = find(key);
    understood_.push_back(fmt::format("{}{}{} -> {} {}", nesting_, key,
                                      given ? " " + short_text(*given) : " (not given)", ours,
                                      short_text(value)));
  }

  void apply(const KeyRule& rule);

 private:
  std::string pointer_of(const std::string& key) const {
    std::string pointer = prefix_;
    for (const std::string& step : split(nesting_ + key, '.')) pointer = child_pointer(pointer, step);
    return pointer;
  }
  bool find_model_type();
  std::string name_of_file() const;
  void check_model();
  void list_without_effect();
  void list_ignored(const Json& object, const std::string& path, HfImport& import) const;

  const Json& document_;
  const std::string& file_;
  const std::string& prefix_;
  const Json* config_ = &document_;
  std::string nesting_;  // of config_ in document_
  std::string model_type_;
  Json model_ = Json::object();
  std::map<std::string, std::string> sources_;  // our pointer -> Hugging Face key
  std::set<std::string> used_;
  std::vector<std::string> understood_;
  std::vector<Problem> problems_;
  std::set<std::string> reported_;  // their pointers
};

// ---- what a table cannot say

// Sliding windows: `layer_types` says which layers have one, else `otherwise` for each layer.
void read_windows(Importer& in, const std::vector<bool>& otherwise) {
  std::vector<bool> windowed = otherwise;
  if (const Json* types = in.find("layer_types"); types != nullptr) {
    if (!types->is_array() || types->size() != otherwise.size())
      return in.problem("layer_types", short_text(*types),
                        fmt::format("a list of {} names", otherwise.size()));
    for (std::size_t layer = 0; layer < types->size(); ++layer) {
      const Json& type = (*types)[layer];
      if (type != "sliding_attention" && type != "full_attention")
        return in.problem("layer_types", fmt::format("{} at {}", short_text(type), layer),
                          "sliding_attention or full_attention");
      windowed[layer] = type == "sliding_attention";
    }
  }
  if (std::find(windowed.begin(), windowed.end(), true) == windowed.end()) return;
  const Json* window = in.find("sliding_window");
  if (window == nullptr && in.find("layer_types") != nullptr)
    return in.problem("sliding_window", "missing, and layer_types has sliding_attention", "an integer");
  if (window == nullptr) return;
  const auto pattern = pattern_of(windowed, false);
  const std::string key = in.find("layer_types") != nullptr ? "layer_types" : "sliding_window";
  if (!pattern) return in.problem(key, "sliding windows at irregular layers", "a window on every n-th layer");
  in.set("/attention/window", *window, "sliding_window");
  in.set("/attention/window_period", pattern->period, key);
  in.set("/attention/window_offset", pattern->first, key);
}

void read_windows_on_all(Importer& in) {
  read_windows(in, std::vector<bool>(static_cast<std::size_t>(in.layers()), true));
}

// Qwen: windows only when use_sliding_window is set, from layer max_window_layers on.
void read_qwen_windows(Importer& in) {
  const std::int64_t layers = in.layers();
  std::vector<bool> windowed(static_cast<std::size_t>(layers), false);
  if (in.flag("use_sliding_window", false)) {
    const std::int64_t from = in.number("max_window_layers", 28, 0, 1 << 20);
    for (std::int64_t layer = from; layer < layers; ++layer) windowed[static_cast<std::size_t>(layer)] = true;
  }
  read_windows(in, windowed);
}

// One key that stands for a bias on queries, keys, values and the output projection.
void read_attention_bias(Importer& in, bool otherwise, bool output_too) {
  if (!in.flag("attention_bias", otherwise)) return;
  in.set("/attention/qkv_bias", true, "attention_bias");
  if (output_too) in.set("/attention/out_bias", true, "attention_bias");
}

// Qwen: layer i has experts when (i + 1) mod decoder_sparse_step = 0 and i is not one of mlp_only_layers.
void read_qwen_moe_layers(Importer& in) {
  const std::int64_t step = in.number("decoder_sparse_step", 1, 1, 10000);
  std::vector<bool> moe(static_cast<std::size_t>(in.layers()));
  for (std::size_t layer = 0; layer < moe.size(); ++layer)
    moe[layer] = (static_cast<std::int64_t>(layer) + 1) % step == 0;
  std::string key = "decoder_sparse_step";
  if (const Json* dense = in.find("mlp_only_layers");
      dense != nullptr && !(dense->is_array() && dense->empty())) {
    key = "mlp_only_layers";
    const auto is_layer = [&](const Json& value) {
      return value.is_number_integer() && value >= 0 && value < moe.size();
    };
    if (!dense->is_array() || !std::all_of(dense->begin(), dense->end(), is_layer))
      return in.problem(key, short_text(*dense), fmt::format("a list of layers, 0 to {}", moe.size() - 1));
    for (const Json& layer : *dense) moe[layer.get<std::size_t>()] = false;
  }
  if (std::find(moe.begin(), moe.end(), true) == moe.end())
    return in.problem(key, "no layer has experts", "a layer with experts");
  const auto pattern = pattern_of(moe, true);
  if (!pattern)
    return in.problem(key, "experts at irregular layers",
                      "leading dense layers, then every n-th with experts");
  if (pattern->from > 0) in.set("/moe/dense_layers", pattern->from, key);
  if (pattern->period == 1) return;
  in.set("/moe/period", pattern->period, key);
  in.set("/moe/first", pattern->first, key);
}

// DeepSeek's spelling of shared experts, leading dense layers, group-limited routing and MTP; GLM-4.5 has it
// too.
void read_deepseek_moe(Importer& in) {
  in.apply({"first_k_dense_replace", "/moe/dense_layers"});
  in.apply({"moe_layer_freq", "/moe/period"});
  const std::int64_t shared = in.number("n_shared_experts", 0, 0, 65536);
  const std::int64_t width = in.number("moe_intermediate_size", 0, 0, 16777216);
  if (shared > 0) in.set("/moe/shared_ffn_hidden", shared * width, "n_shared_experts");
  const Json* method = in.find("topk_method");
  const bool limited = method == nullptr || *method != "greedy";  // DeepSeek-V2-Lite
  if (limited && in.number("n_group", 1, 1, 65536) > 1) {
    in.apply({"n_group", "/moe/groups"});
    in.apply({"topk_group", "/moe/group_top_k"});
  }
  in.find("n_group");  // 1 group, or a greedy choice: no limit
  in.find("topk_group");
  in.apply({kMtp, "/mtp_layers"});
}

void read_deepseek(Importer& in) {
  in.set("/attention/kind", "mla", "model_type");
  read_deepseek_moe(in);
  if (in.flag("attention_bias", false))
    in.problem("attention_bias", "true", "false: MLA with biases is not supported");
}

void read_deepseek_v3(Importer& in) {
  read_deepseek(in);
  const Json* method = in.find("topk_method");
  if (method == nullptr || *method == "noaux_tc") in.set("/moe/correction_bias", true, "topk_method");
}

void read_llama(Importer& in) {
  const bool mlp = in.flag("mlp_bias", false);
  if (!mlp) return read_attention_bias(in, false, true);
  if (in.flag("attention_bias", false)) return in.set("/bias", true, "mlp_bias");
  in.problem("mlp_bias", "true without attention_bias", "both, attention_bias only, or none");
}

void read_qwen2(Importer& in) {
  in.set("/attention/qkv_bias", true, "model_type");
  read_qwen_windows(in);
}

void read_qwen3(Importer& in) {
  in.set("/attention/qk_norm", "head", "model_type");
  read_attention_bias(in, false, true);
  read_qwen_windows(in);
}

void read_qwen2_moe(Importer& in) {
  if (in.flag("qkv_bias", true)) in.set("/attention/qkv_bias", true, "qkv_bias");
  in.apply({"shared_expert_intermediate_size", "/moe/shared_ffn_hidden"});
  if (in.number("shared_expert_intermediate_size", 0, 0, 16777216) > 0)
    in.set("/moe/shared_gate", true, "shared_expert_intermediate_size");
  read_qwen_moe_layers(in);
  read_qwen_windows(in);
}

void read_qwen3_moe(Importer& in) {
  read_qwen3(in);
  read_qwen_moe_layers(in);
}

void read_gpt_oss(Importer& in) {
  read_attention_bias(in, true, true);
  for (const char* field : {"/attention/sinks", "/moe/expert_bias", "/moe/router_bias"})
    in.set(field, true, "model_type");
  std::vector<bool> windowed(static_cast<std::size_t>(in.layers()));
  for (std::size_t layer = 0; layer < windowed.size(); ++layer) windowed[layer] = layer % 2 == 0;
  read_windows(in, windowed);
}

void read_glm4_moe(Importer& in) {
  read_attention_bias(in, false, false);
  if (in.flag("use_qk_norm", false)) in.set("/attention/qk_norm", "head", "use_qk_norm");
  read_deepseek_moe(in);
  in.set("/moe/correction_bias", true, "model_type");
}

void read_olmoe(Importer& in) {
  in.set("/attention/qk_norm", "projection", "model_type");
  read_attention_bias(in, false, true);
}

void read_grok(Importer& in) {
  in.set("/norms_per_layer", 4, "model_type");
  if (in.find("tie_word_embeddings") == nullptr) in.set("/tied_embeddings", true, "tie_word_embeddings");
}

void read_nothing_more(Importer&) {}

struct Family {
  std::string_view model_type;
  std::span<const KeyRule> shape;
  std::span<const KeyRule> attention;
  std::span<const KeyRule> mlp;
  void (*rest)(Importer&);
};

constexpr std::array kFamilies = {
    Family{"llama", kPlainShape, kLlamaGqa, kDense, read_llama},
    Family{"mistral", kPlainShape, kGqa, kDense, read_windows_on_all},
    Family{"qwen2", kPlainShape, kGqa, kDense, read_qwen2},
    Family{"qwen3", kPlainShape, kGqa, kDense, read_qwen3},
    Family{"mixtral", kPlainShape, kGqa, kMixtralExperts, read_windows_on_all},
    Family{"qwen2_moe", kPlainShape, kGqa, kQwenExperts, read_qwen2_moe},
    Family{"qwen3_moe", kPlainShape, kGqa, kQwenExperts, read_qwen3_moe},
    Family{"deepseek_v2", kPlainShape, kMla, kDeepSeekExperts, read_deepseek},
    Family{"deepseek_v3", kPlainShape, kMla, kDeepSeekExperts, read_deepseek_v3},
    Family{"kimi_k2", kPlainShape, kMla, kDeepSeekExperts, read_deepseek_v3},
    Family{"gpt_oss", kPlainShape, kGqa, kMixtralExperts, read_gpt_oss},
    Family{"glm4_moe", kPlainShape, kGqa, kDeepSeekExperts, read_glm4_moe},
    Family{"olmoe", kPlainShape, kGqa, kOlmoeExperts, read_olmoe},
    Family{"dbrx", kDbrxShape, {}, kDbrxExperts, read_nothing_more},
    Family{"grok-1", kPlainShape, kGqa, kOlmoeExperts, read_grok},
};

// ---- the import

// The first spelling that is given counts; others must agree with it.
void Importer::apply(const KeyRule& rule) {
  const std::vector<std::string> keys = split(rule.keys, '|');
  sources_[rule.pointer] = keys.front();  // for messages about a missing value
  std::string taken;
  for (const std::string& key : keys) {
    const Json* value = find(key);
    if (value == nullptr) continue;
    if (taken.empty()) {
      taken = key;
      set(rule.pointer, *value, key);
    } else if (*value != *find(taken)) {
      problem(key, fmt::format("{}, but {} is {}", short_text(*value), taken, short_text(*find(taken))),
              "the same value in both");
    }
  }
  if (!taken.empty() || !rule.required) return;
  const std::string spellings = keys.size() > 1 ? fmt::format(", as {}", fmt::join(keys, " or ")) : "";
  problem(keys.front(), "missing", "an integer" + spellings);
}

bool Importer::find_model_type() {
  const std::string allowed = fmt::format("one of {}", fmt::join(supported_model_types(), ", "));
  const Json* type = find("model_type");
  if (type == nullptr && document_.contains("model_type")) type = &document_["model_type"];
  if (type == nullptr)
    problem("model_type", "missing", allowed);
  else if (!type->is_string())
    problem("model_type", short_text(*type), allowed);
  else
    model_type_ = type->get<std::string>();
  return problems_.empty();
}

std::string Importer::name_of_file() const {
  const std::filesystem::path path(file_);
  const std::string stem = path.stem().string();
  const std::string folder = path.parent_path().filename().string();
  return stem == "config" && !folder.empty() ? folder : stem;
}

// Problems of our object, told about the key that the value came from.
void Importer::check_model() {
  std::vector<Problem> found;
  const Model model = read_model(model_, file_, "", found);
  for (Problem& problem : found) {
    const auto source = sources_.find(problem.pointer);
    const auto below = sources_.lower_bound(problem.pointer + "/");  // a whole object: any of its keys
    if (source != sources_.end())
      problem.pointer = pointer_of(source->second);
    else if (below != sources_.end() && below->first.starts_with(problem.pointer + "/"))
      problem.pointer = pointer_of(below->second);
    else
      problem.pointer = prefix_;
    if (reported_.insert(problem.pointer).second) problems_.push_back(problem);
  }
  if (problems_.empty()) model_ = model_json(model);
}

// Keys that were looked at and whose value asks for nothing: "attention_bias false".
void Importer::list_without_effect() {
  for (const std::string& key : used_) {
    const auto shows = [&](const std::string& line) { return line.starts_with(key + " "); };
    if (std::any_of(understood_.begin(), understood_.end(), shows)) continue;
    const Json* value = find(key.substr(nesting_.size()));
    understood_.push_back(fmt::format("{} {} -> nothing to set", key, value ? short_text(*value) : "null"));
  }
}

void Importer::list_ignored(const Json& object, const std::string& path, HfImport& import) const {
  for (const auto& [key, value] : object.items()) {
    const std::string whole = path + key;
    if (used_.contains(whole)) continue;
    const auto below = used_.lower_bound(whole + ".");
    if (value.is_object() && below != used_.end() && below->starts_with(whole + ".")) {
      list_ignored(value, whole + ".", import);
      continue;
    }
    import.ignored.push_back(whole);
    if (std::find(kNoEffect.begin(), kNoEffect.end(), key) == kNoEffect.end())
      import.unrecognised.push_back(whole);
  }
}

HfImport Importer::import() {
  if (!find_model_type()) throw InputError(problems_);
  const auto family = std::find_if(kFamilies.begin(), kFamilies.end(),
                                   [&](const Family& one) { return one.model_type == model_type_; });
  if (family == kFamilies.end()) {
    problem("model_type", fmt::format("\"{}\" is not supported", model_type_),
            fmt::format("one of {}", fmt::join(supported_model_types(), ", ")));
    throw InputError(problems_);
  }
  model_["name"] = name_of_file();
  for (const auto rules : {family->shape, family->attention, family->mlp})
    for (const KeyRule& rule : rules) apply(rule);
  family->rest(*this);
  check_model();
  throw_if_any(problems_);

  list_without_effect();
  HfImport import;
  import.model = std::move(model_);
  import.understood = std::move(understood_);
  list_ignored(document_, "", import);
  return import;
}

}  // namespace

bool is_hf_config(const Json& document) {
  return document.is_object() && (document.contains("model_type") || document.contains("architectures"));
}

HfImport import_hf(const Json& config, const std::string& file, const std::string& prefix) {
  if (!config.is_object()) throw InputError({file, prefix, "not an object", "a Hugging Face config.json"});
  return Importer(config, file, prefix).import();
}

std::vector<std::string> supported_model_types() {
  std::vector<std::string> types;
  for (const Family& family : kFamilies) types.emplace_back(family.model_type);
  return types;
}

}  // namespace stepcast
