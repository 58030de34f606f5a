#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/data_folder.h"
#include "base/json.h"
#include "layout/megatron_flags.h"
#include "layout/megatron_scenario.h"
#include "layout/number_list.h"
#include "layout/scenario_pointer.h"
#include "layout/stage_split.h"

namespace stepcast {
namespace {

Json attention_json(const MegatronArguments& a, bool biased) {
  const std::int64_t heads = a.num_attention_heads;
  if (a.multi_latent_attention) {
    Json attention = {{"kind", "mla"}, {"heads", heads}};
    if (a.q_lora_rank) attention["q_lora_rank"] = *a.q_lora_rank;
    attention["kv_lora_rank"] = a.kv_lora_rank;
    attention["qk_nope_head_dim"] = a.qk_head_dim;
    attention["qk_rope_head_dim"] = a.qk_pos_emb_head_dim;
    attention["v_head_dim"] = a.v_head_dim;
    return attention;
  }
  const std::int64_t head_dim = a.kv_channels.value_or(heads > 0 ? a.hidden_size / heads : 0);
  Json attention = {{"kind", a.query_groups() == heads ? "mha" : "gqa"},
                    {"heads", heads},
                    {"kv_heads", a.query_groups()},
                    {"head_dim", head_dim}};
  if (a.add_qkv_bias || biased) attention["qkv_bias"] = true;
  if (biased) attention["out_bias"] = true;
  if (a.qk_layernorm) attention["qk_norm"] = "head";
  if (a.softmax_type == "learnable") attention["sinks"] = true;
  return attention;
}

// Period and offset of the layers with a window. Megatron: a number N leaves every N-th layer without one, a
// list has 1 where there is one.
bool add_window(const MegatronArguments& a, Json& attention) {
  if (a.window_size.empty() || a.window_size[0] <= 0) return true;
  attention["window"] = a.window_size[0];
  if (a.window_attn_skip_freq.empty()) return true;
  const auto values = evaluate_list(a.window_attn_skip_freq);
  if (!values || values->empty()) return false;
  std::vector<bool> windowed;
  const bool list = a.window_attn_skip_freq.find('[') != std::string::npos;
  for (std::int64_t i = 0; i < a.num_layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (list && at >= values->size()) return false;
    if (!list && (*values)[0] < 1) return false;
    windowed.push_back(list ? (*values)[at] != 0 : (i + 1) % (*values)[0] != 0);
  }
  const auto first = std::find(windowed.begin(), windowed.end(), true) - windowed.begin();
  for (std::int64_t period = 1; period <= a.num_layers; ++period) {
    bool same = true;
    for (std::int64_t i = 0; i < a.num_layers && same; ++i)
      same = windowed[static_cast<std::size_t>(i)] == (i % period == first);
    if (!same) continue;
    attention["window_period"] = period;
    attention["window_offset"] = first;
    return true;
  }
  return false;
}

// dense_layers, period, first of a pattern; false when these cannot say it.
bool add_pattern(const std::vector<bool>& pattern, Json& moe) {
  const auto size = static_cast<std::int64_t>(pattern.size());
  const auto first =
      static_cast<std::int64_t>(std::find(pattern.begin(), pattern.end(), true) - pattern.begin());
  for (std::int64_t period = 1; period <= size; ++period) {
    bool same = true;
    for (std::int64_t i = 0; i < size && same; ++i)
      same = pattern[static_cast<std::size_t>(i)] == (i >= first && (i - first) % period == 0);
    if (!same) continue;
    if (period == 1) {
      if (first > 0) moe["dense_layers"] = first;
    } else {
      moe["period"] = period;
      moe["first"] = first;
      if (first >= period) moe["dense_layers"] = first;
    }
    return true;
  }
  return false;
}

std::int64_t default_ffn(const MegatronArguments& a) {
  if (!a.swiglu) return 4 * a.hidden_size;
  return static_cast<std::int64_t>(static_cast<double>(a.hidden_size) * 4 * 2 / 3) / 64 * 64;
}

class ScenarioWriter {
 public:
  ScenarioWriter(const MegatronArguments& arguments, std::string file, std::string topology)
      : a_(arguments), file_(std::move(file)), topology_(std::move(topology)) {}

  ImportedScenario write() {
    Json& d = result_.document;
    d = {{"schema", "stepcast/scenario/1"},
         {"name", std::filesystem::path(file_).stem().string()},
         {"model", model()},
         {"cluster", Json::object()}};
    if (!topology_.empty()) d["cluster"]["topology"] = topology_;
    if (a_.world_size > 0) d["cluster"]["gpus"] = a_.world_size;
    if (topology_.empty()) note("the cluster is not in the arguments: --topology T names it");
    if (a_.world_size <= 0) note("the number of GPUs is not in the arguments: --gpus N says it");
    d["batch"] = batch();
    d["layout"] = layout();
    d["precision"] = precision();
    d["sharding"] = sharding();
    if (!a_.recompute_granularity.empty()) d["recompute"] = recompute();
    d["overlap"] = overlap();
    if (a_.num_experts > 0) d["moe"] = moe();
    d["kernels"] = kernels();
    d["optimizer"] = optimizer();
    if (a_.optimizer_cpu_offload || !a_.offload_modules.empty()) d["offload"] = offload();
    d["software"] = {{"stack", "megatron-lm"}};
    keep_unfilled();
    throw_if_any(problems_);
    return std::move(result_);
  }

 private:
  void note(std::string text) { result_.notes.push_back(std::move(text)); }
  void refuse(const char* flag, std::string found, std::string allowed) {
    problems_.push_back({file_, fmt::format("--{}", flag), std::move(found), std::move(allowed)});
  }

  Json model() {
    Json m = {{"name", model_name()}, {"layers", a_.num_layers}, {"hidden", a_.hidden_size}};
    add_vocab(m);
    const bool moe_everywhere = a_.num_experts > 0 && a_.moe_layer_freq.empty();
    if (!moe_everywhere || a_.ffn_hidden_size) m["ffn_hidden"] = a_.ffn_hidden_size.value_or(default_ffn(a_));
    m["gated_ffn"] = a_.swiglu;
    if (a_.squared_relu) m["activation"] = "squared_relu";
    m["norm"] = a_.normalization == "LayerNorm" ? "layernorm" : "rmsnorm";
    m["position"] = position();
    if (a_.max_position_embeddings) m["max_positions"] = *a_.max_position_embeddings;
    const bool biased_experts = a_.add_bias_linear && a_.num_experts > 0;
    m["bias"] = a_.add_bias_linear && !moe_everywhere;
    m["tied_embeddings"] = !a_.untie_embeddings_and_output_weights;
    m["attention"] = attention_json(a_, biased_experts && moe_everywhere);
    if (!add_window(a_, m["attention"]))
      refuse("window-attn-skip-freq", a_.window_attn_skip_freq, "windows in every N-th layer");
    if (a_.num_experts > 0) m["moe"] = experts(biased_experts);
    if (a_.mtp_num_layers > 0) m["mtp_layers"] = a_.mtp_num_layers;
    if (a_.multi_latent_attention && !a_.qk_layernorm)
      note("MLA's latent norms are counted though --qk-layernorm is not given");
    return m;
  }

  std::string model_name() const {
    const std::string name = std::filesystem::path(a_.tokenizer_model).filename().string();
    return name.empty() || name.find('$') != std::string::npos ? "imported" : name;
  }

  void add_vocab(Json& m) {
    const std::int64_t by_name = tokenizer_vocab(a_.tokenizer_model);
    if (a_.vocab_size) {
      m["vocab"] = *a_.vocab_size;
    } else if (a_.padded_vocab_size) {
      m["vocab"] = *a_.padded_vocab_size;
      note("the vocabulary is the padded one: the log does not say the other");
    } else if (by_name > 0) {
      m["vocab"] = by_name;
      note(fmt::format("vocabulary of {} rows by the tokenizer's name {}", by_name, a_.tokenizer_model));
    } else {
      note("the size of the vocabulary is not in the arguments: /model/vocab is left to be filled in");
    }
    if (a_.make_vocab_size_divisible_by != 128) m["vocab_divisor"] = a_.make_vocab_size_divisible_by;
  }

  std::string position() const {
    if (a_.position_embedding_type == "learned_absolute") return "learned";
    return a_.position_embedding_type == "none" ? "none" : "rope";
  }

  Json experts(bool biased) {
    Json moe = {
        {"experts", a_.num_experts},
        {"top_k", a_.moe_router_topk},
        {"ffn_hidden", a_.moe_ffn_hidden_size.value_or(a_.ffn_hidden_size.value_or(default_ffn(a_)))}};
    if (a_.moe_shared_expert_intermediate_size)
      moe["shared_ffn_hidden"] = *a_.moe_shared_expert_intermediate_size;
    if (a_.moe_shared_expert_gate) moe["shared_gate"] = true;
    if (biased) moe["expert_bias"] = moe["router_bias"] = true;
    if (a_.moe_router_enable_expert_bias) moe["correction_bias"] = true;
    if (a_.moe_latent_size) moe["latent"] = *a_.moe_latent_size;
    if (a_.moe_router_num_groups && a_.moe_router_group_topk) {
      moe["groups"] = *a_.moe_router_num_groups;
      moe["group_top_k"] = *a_.moe_router_group_topk;
    }
    const std::vector<bool> pattern = moe_pattern(a_);
    if (a_.unfilled.count("num-layers") == 0 && (pattern.empty() || !add_pattern(pattern, moe)))
      refuse("moe-layer-freq", a_.moe_layer_freq,
             fmt::format("N, or a list of {} elements: dense layers first, then experts in every N-th layer",
                         a_.num_layers));
    return moe;
  }

  Json batch() {
    Json b = {{"seq_len", a_.seq_length}};
    const std::int64_t ranks = a_.tp() * a_.context_parallel_size * a_.pipeline_model_parallel_size;
    if (a_.global_batch_size) {
      b["global"] = *a_.global_batch_size;
    } else if (a_.unfilled.empty() && a_.world_size > 0 && ranks > 0 && a_.world_size % ranks == 0) {
      b["global"] = a_.micro_batch_size * (a_.world_size / ranks);
      note("no --global-batch-size: one micro-batch a data-parallel rank");
    }
    b["micro"] = a_.micro_batch_size;
    return b;
  }

  Json layout() {
    Json l = {{"tp", a_.tp()},
              {"cp", a_.context_parallel_size},
              {"pp", a_.pipeline_model_parallel_size},
              {"vpp", virtual_stages(a_)},
              {"ep", a_.expert_model_parallel_size}};
    if (a_.num_experts > 0) l["etp"] = a_.etp();
    const bool alone = a_.tp() == 1 && a_.unfilled.count("tensor-model-parallel-size") == 0;
    l["sequence_parallel"] = a_.sequence_parallel && !alone;
    if (a_.sequence_parallel && alone) note("--sequence-parallel is off at TP 1 (rule 7)");
    l["schedule"] = schedule();
    const std::string stages = split_string(a_);
    const bool given = !a_.pipeline_model_parallel_layout.empty();
    if (given || (!stages.empty() && stages != default_split())) l["stages"] = stages;
    if (a_.microbatch_group_size_per_vp_stage) l["microbatch_group"] = *a_.microbatch_group_size_per_vp_stage;
    if (a_.cp_comm_type.size() == 1)
      l["cp_comm"] = a_.cp_comm_type[0] == "all_gather" ? "allgather" : a_.cp_comm_type[0];
    if (a_.use_tp_pp_dp_mapping) note("--use-tp-pp-dp-mapping: ranks are placed tp-cp-ep-dp-pp all the same");
    return l;
  }

  std::string schedule() const {
    if (!a_.enable_zero_bubble && !a_.zero_bubble_v_schedule) return "auto";
    if (a_.zero_bubble_v_schedule)
      return a_.zero_bubble_v_schedule_mem_setup == "min"    ? "v-min"
             : a_.zero_bubble_v_schedule_mem_setup == "half" ? "v-half"
                                                             : "zb-v";
    const std::int64_t pp = a_.pipeline_model_parallel_size;
    return a_.zero_bubble_max_pending_backward.value_or(pp) > pp ? "zb-2p" : "zb-h1";
  }

  // What a scenario without a layout string splits into.
  std::string default_split() const {
    Model m;
    m.layers = a_.num_layers;
    m.mtp_layers = a_.mtp_num_layers;
    std::vector<Problem> ignored;
    return layout_string(
        split_stages(m, a_.pipeline_model_parallel_size, virtual_stages(a_), false, "", "", "", ignored));
  }

  Json precision() {
    std::string recipe = a_.fp16 ? "fp16" : a_.bf16 ? "bf16" : "fp32";
    if (!a_.fp4.empty()) recipe = "nvfp4";
    if (!a_.fp8.empty())
      recipe = a_.fp8_recipe == "mxfp8" ? "mxfp8" : a_.fp8_recipe == "blockwise" ? "fp8-block" : "fp8-tensor";
    if (a_.first_last_layers_bf16)
      note("--first-last-layers-bf16 cannot be said in a scenario: all layers run in " + recipe);
    Json p = {{"recipe", recipe}};
    if (a_.num_experts > 0) {
      const bool wide = a_.moe_router_dtype == "fp32" || a_.moe_router_dtype == "fp64";
      p["router"] = wide ? "fp32" : a_.fp16 ? "fp16" : "bf16";
    }
    p["fp8_params"] = a_.fp8_param || a_.fp4_param;
    return p;
  }

  Json sharding() const {
    if (a_.use_torch_fsdp2) return {{"zero_stage", 3}, {"engine", "fsdp"}};
    int stage = a_.use_distributed_optimizer ? 1 : 0;
    if (a_.use_megatron_fsdp) {
      const std::string& strategy = a_.data_parallel_sharding_strategy;
      stage = strategy == "optim_grads_params" ? 3
              : strategy == "optim_grads"      ? 2
              : strategy == "optim"            ? 1
                                               : 0;
    }
    Json s = {{"zero_stage", stage}, {"engine", "megatron"}};
    if (a_.num_distributed_optimizer_instances != 1) s["instances"] = a_.num_distributed_optimizer_instances;
    return s;
  }

  Json recompute() {
    if (a_.full_recompute()) {
      Json r = {{"granularity", "full"}};
      if (a_.recompute_method == "block" && a_.recompute_num_layers) r["layers"] = *a_.recompute_num_layers;
      if (a_.recompute_method == "uniform" && a_.recompute_num_layers.value_or(1) > 1)
        note("--recompute-num-layers of method uniform: one layer at a time is assumed");
      return r;
    }
    const std::vector<std::string> modules =
        a_.recompute_modules.empty() ? std::vector<std::string>{"core_attn"} : a_.recompute_modules;
    return {{"granularity", "selective"}, {"modules", modules}};
  }

  Json overlap() const {
    return {{"tp", a_.tp_comm_overlap},
            {"grad_reduce", a_.overlap_grad_reduce},
            {"param_gather", a_.overlap_param_gather},
            {"moe_a2a", a_.overlap_moe_expert_parallel_comm},
            {"delay_wgrad", a_.delay_wgrad_compute},
            {"p2p", a_.overlap_p2p_communication},
            {"shared_expert", a_.moe_shared_expert_overlap}};
  }

  Json moe() {
    const std::string& type = a_.moe_token_dispatcher_type;
    Json m = {{"dispatcher", type == "flex" ? a_.moe_flex_dispatcher_backend : type}};
    if (!a_.moe_router_force_load_balancing)
      note("experts are assumed to be evenly loaded: /moe/routing says otherwise");
    m["routing"] = {{"kind", "balanced"}};
    if (a_.moe_expert_capacity_factor) m["capacity_factor"] = *a_.moe_expert_capacity_factor;
    if (a_.moe_expert_rank_capacity_factor && !a_.moe_expert_capacity_factor)
      note(
          fmt::format("--moe-expert-rank-capacity-factor {} cannot be said in a scenario: its static buffers "
                      "are not counted",
                      *a_.moe_expert_rank_capacity_factor));
    m["pad_to_capacity"] = a_.moe_pad_expert_input_to_capacity;
    return m;
  }

  Json kernels() const {
    const bool full = a_.cuda_graph_impl == "full_iteration" ||
                      (a_.cuda_graph_impl != "none" && a_.cuda_graph_modules.size() == 1 &&
                       a_.cuda_graph_modules[0] == "full_iteration");
    const std::string& backend = a_.attention_backend;
    return {{"attention", backend == "unfused" || backend == "local" ? "unfused"
                          : backend == "fused"                       ? "cudnn"
                          : backend == "flash"                       ? "flash2"
                                                                     : "auto"},
            {"cuda_graphs", full                           ? "full"
                            : a_.cuda_graph_impl == "none" ? "none"
                                                           : "layer"}};
  }

  Json optimizer() const {
    std::string grads = "fp32";
    if (a_.fp16 && !a_.accumulate_allreduce_grads_in_fp32) grads = "fp16";
    if (a_.bf16 &&
        (a_.grad_reduce_in_bf16 || (a_.use_precision_aware_optimizer && a_.main_grads_dtype == "bf16")))
      grads = "bf16";
    return {{"kind", a_.optimizer == "sgd"                            ? "sgd"
                     : a_.optimizer.find("muon") != std::string::npos ? "muon"
                                                                      : "adam"},
            {"grad_dtype", grads},
            {"state_dtype", a_.use_precision_aware_optimizer ? a_.exp_avg_dtype : "fp32"}};
  }

  Json offload() const {
    Json o = Json::object();
    if (a_.optimizer_cpu_offload) o["optimizer_fraction"] = a_.optimizer_offload_fraction;
    if (!a_.offload_modules.empty()) o["activations"] = a_.offload_modules;
    return o;
  }

  // Values that wait for a variable stand in the document as they were written.
  void keep_unfilled() {
    for (const auto& [flag, text] : a_.unfilled) {
      const Flag* known = find_flag(flag);
      const std::string pointer = known == nullptr ? "" : scenario_pointer(std::string(known->field));
      if (pointer.empty()) continue;
      result_.document[Json::json_pointer(pointer)] = text;
    }
  }

  const MegatronArguments& a_;
  std::string file_;
  std::string topology_;
  ImportedScenario result_;
  std::vector<Problem> problems_;
};

// Decoder layers of every stage in model order, as Megatron counts them; empty when they do not divide.
std::vector<std::int64_t> layers_by_stage(const MegatronArguments& a, std::int64_t chunks) {
  const std::int64_t pp = a.pipeline_model_parallel_size;
  const std::int64_t embedding = a.account_for_embedding_in_pipeline_split ? 1 : 0;
  const std::int64_t loss = a.account_for_loss_in_pipeline_split ? 1 : 0;
  const auto& first = a.decoder_first_pipeline_num_layers;
  const auto& last = a.decoder_last_pipeline_num_layers;
  const std::int64_t ranks = pp - (first ? 1 : 0) - (last ? 1 : 0);
  const std::int64_t rest = a.num_layers + embedding + loss - first.value_or(0) - last.value_or(0);
  if (ranks < 0 || rest < 0 || (ranks == 0 && rest != 0)) return {};
  const std::int64_t each = ranks == 0 ? 0 : rest / ranks;
  if (ranks > 0 && rest % ranks != 0) return {};
  std::vector<std::int64_t> stages;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (std::int64_t rank = 0; rank < pp; ++rank) {
      const std::int64_t layers = rank == 0 && first ? *first : rank == pp - 1 && last ? *last : each;
      if (layers % chunks != 0) return {};
      stages.push_back(layers / chunks);
    }
  }
  stages.front() -= embedding;
  stages.back() -= loss;
  return stages.front() < 0 || stages.back() < 0 ? std::vector<std::int64_t>{} : stages;
}

}  // namespace

std::vector<bool> moe_pattern(const MegatronArguments& a) {
  std::vector<bool> pattern;
  if (a.moe_layer_freq.empty())
    return std::vector<bool>(static_cast<std::size_t>(std::clamp<std::int64_t>(a.num_layers, 0, kMaxSymbols)),
                             true);
  const auto values = evaluate_list(a.moe_layer_freq);
  if (!values) return {};
  if (a.moe_layer_freq.find('[') == std::string::npos) {
    if ((*values)[0] < 1) return {};
    for (std::int64_t i = 0; i < std::min(a.num_layers, kMaxSymbols); ++i)
      pattern.push_back(i % (*values)[0] == 0);
    return pattern;
  }
  if (static_cast<std::int64_t>(values->size()) != a.num_layers) return {};
  for (const std::int64_t value : *values) pattern.push_back(value != 0);
  return pattern;
}

std::string split_string(const MegatronArguments& a) {
  if (!a.pipeline_model_parallel_layout.empty()) return a.pipeline_model_parallel_layout;
  const std::int64_t pp = a.pipeline_model_parallel_size;
  const std::int64_t chunks = virtual_stages(a);
  if (pp <= 1 || chunks < 1 || pp > kMaxSymbols / chunks || a.num_layers < 1 || a.num_layers > kMaxSymbols)
    return "";
  const std::vector<std::int64_t> counts = layers_by_stage(a, chunks);
  if (counts.empty()) return "";
  StageSplit split;
  split.pp = pp;
  split.chunks = chunks;
  std::int64_t next = 0;
  for (const std::int64_t layers : counts) {
    Stage stage;
    stage.first_layer = next;
    stage.layers = layers;
    next += layers;
    split.stages.push_back(stage);
  }
  split.stages.front().embedding = true;
  split.stages.back().head = true;
  split.stages.back().mtp = a.mtp_num_layers;
  return layout_string(split);
}

ImportedScenario scenario_of(const MegatronArguments& arguments, const std::string& file,
                             const std::string& topology) {
  return ScenarioWriter(arguments, file, topology).write();
}

std::int64_t tokenizer_vocab(const std::string& tokenizer_model) {
  if (tokenizer_model.empty()) return 0;
  std::string name = tokenizer_model;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const Json table = load_json(data_folder() / "scenarios" / "tokenizers" / "tokenizers.json");
  for (const Json& tokenizer : table["tokenizers"])
    if (name.find(tokenizer["name"].get_ref<const std::string&>()) != std::string::npos)
      return tokenizer["vocab"];
  return 0;
}

}  // namespace stepcast
