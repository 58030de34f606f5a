#include "layout/megatron_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

namespace stepcast {
namespace {

using A = MegatronArguments;

#define STEPCAST_SAME(flag, name) \
  { flag, #name, &A::name }

constexpr Flag kFlags[] = {
    // model
    STEPCAST_SAME("num-layers", num_layers),
    STEPCAST_SAME("hidden-size", hidden_size),
    STEPCAST_SAME("ffn-hidden-size", ffn_hidden_size),
    STEPCAST_SAME("num-attention-heads", num_attention_heads),
    STEPCAST_SAME("group-query-attention", group_query_attention),
    STEPCAST_SAME("num-query-groups", num_query_groups),
    STEPCAST_SAME("kv-channels", kv_channels),
    STEPCAST_SAME("max-position-embeddings", max_position_embeddings),
    STEPCAST_SAME("position-embedding-type", position_embedding_type),
    STEPCAST_SAME("normalization", normalization),
    STEPCAST_SAME("swiglu", swiglu),
    STEPCAST_SAME("squared-relu", squared_relu),
    STEPCAST_SAME("disable-bias-linear", add_bias_linear),
    STEPCAST_SAME("add-qkv-bias", add_qkv_bias),
    STEPCAST_SAME("qk-layernorm", qk_layernorm),
    STEPCAST_SAME("softmax-type", softmax_type),
    STEPCAST_SAME("window-size", window_size),
    STEPCAST_SAME("window-attn-skip-freq", window_attn_skip_freq),
    STEPCAST_SAME("attention-output-gate", attention_output_gate),
    STEPCAST_SAME("enable-hyper-connections", enable_hyper_connections),
    STEPCAST_SAME("untie-embeddings-and-output-weights", untie_embeddings_and_output_weights),
    STEPCAST_SAME("make-vocab-size-divisible-by", make_vocab_size_divisible_by),
    STEPCAST_SAME("vocab-size", vocab_size),
    STEPCAST_SAME("padded-vocab-size", padded_vocab_size),
    STEPCAST_SAME("tokenizer-model", tokenizer_model),
    STEPCAST_SAME("multi-latent-attention", multi_latent_attention),
    STEPCAST_SAME("q-lora-rank", q_lora_rank),
    STEPCAST_SAME("kv-lora-rank", kv_lora_rank),
    STEPCAST_SAME("qk-head-dim", qk_head_dim),
    STEPCAST_SAME("qk-pos-emb-head-dim", qk_pos_emb_head_dim),
    STEPCAST_SAME("v-head-dim", v_head_dim),
    STEPCAST_SAME("num-experts", num_experts),
    STEPCAST_SAME("moe-layer-freq", moe_layer_freq),
    STEPCAST_SAME("moe-ffn-hidden-size", moe_ffn_hidden_size),
    STEPCAST_SAME("moe-shared-expert-intermediate-size", moe_shared_expert_intermediate_size),
    STEPCAST_SAME("moe-shared-expert-gate", moe_shared_expert_gate),
    STEPCAST_SAME("moe-latent-size", moe_latent_size),
    STEPCAST_SAME("moe-router-topk", moe_router_topk),
    STEPCAST_SAME("moe-router-num-groups", moe_router_num_groups),
    STEPCAST_SAME("moe-router-group-topk", moe_router_group_topk),
    STEPCAST_SAME("moe-router-score-function", moe_router_score_function),
    STEPCAST_SAME("moe-router-pre-softmax", moe_router_pre_softmax),
    STEPCAST_SAME("moe-router-enable-expert-bias", moe_router_enable_expert_bias),
    STEPCAST_SAME("moe-router-load-balancing-type", moe_router_load_balancing_type),
    STEPCAST_SAME("moe-router-force-load-balancing", moe_router_force_load_balancing),
    STEPCAST_SAME("mtp-num-layers", mtp_num_layers),
    // batch
    STEPCAST_SAME("seq-length", seq_length),
    STEPCAST_SAME("micro-batch-size", micro_batch_size),
    STEPCAST_SAME("global-batch-size", global_batch_size),
    STEPCAST_SAME("decrease-batch-size-if-needed", decrease_batch_size_if_needed),
    STEPCAST_SAME("variable-seq-lengths", variable_seq_lengths),
    // parallel sizes
    STEPCAST_SAME("tensor-model-parallel-size", tensor_model_parallel_size),
    STEPCAST_SAME("sequence-parallel", sequence_parallel),
    STEPCAST_SAME("context-parallel-size", context_parallel_size),
    STEPCAST_SAME("cp-comm-type", cp_comm_type),
    STEPCAST_SAME("hierarchical-context-parallel-sizes", hierarchical_context_parallel_sizes),
    STEPCAST_SAME("hybrid-context-parallel", hybrid_context_parallel),
    STEPCAST_SAME("pipeline-model-parallel-size", pipeline_model_parallel_size),
    STEPCAST_SAME("num-layers-per-virtual-pipeline-stage", num_layers_per_virtual_pipeline_stage),
    STEPCAST_SAME("num-virtual-stages-per-pipeline-rank", num_virtual_stages_per_pipeline_rank),
    STEPCAST_SAME("pipeline-model-parallel-layout", pipeline_model_parallel_layout),
    STEPCAST_SAME("decoder-first-pipeline-num-layers", decoder_first_pipeline_num_layers),
    STEPCAST_SAME("decoder-last-pipeline-num-layers", decoder_last_pipeline_num_layers),
    STEPCAST_SAME("account-for-embedding-in-pipeline-split", account_for_embedding_in_pipeline_split),
    STEPCAST_SAME("account-for-loss-in-pipeline-split", account_for_loss_in_pipeline_split),
    STEPCAST_SAME("microbatch-group-size-per-virtual-pipeline-stage", microbatch_group_size_per_vp_stage),
    STEPCAST_SAME("pipeline-model-parallel-comm-backend", pipeline_model_parallel_comm_backend),
    STEPCAST_SAME("expert-model-parallel-size", expert_model_parallel_size),
    STEPCAST_SAME("expert-tensor-parallel-size", expert_tensor_parallel_size),
    STEPCAST_SAME("use-tp-pp-dp-mapping", use_tp_pp_dp_mapping),
    STEPCAST_SAME("tensor-parallel-num-weight-shards", tensor_parallel_num_weight_shards),
    STEPCAST_SAME("expert-tensor-parallel-num-weight-shards", expert_tensor_parallel_num_weight_shards),
    STEPCAST_SAME("enable-zero-bubble", enable_zero_bubble),
    STEPCAST_SAME("zero-bubble-v-schedule", zero_bubble_v_schedule),
    STEPCAST_SAME("zero-bubble-v-schedule-mem-setup", zero_bubble_v_schedule_mem_setup),
    STEPCAST_SAME("zero-bubble-max-pending-backward", zero_bubble_max_pending_backward),
    // data parallelism and optimizer
    STEPCAST_SAME("use-distributed-optimizer", use_distributed_optimizer),
    STEPCAST_SAME("num-distributed-optimizer-instances", num_distributed_optimizer_instances),
    STEPCAST_SAME("use-megatron-fsdp", use_megatron_fsdp),
    STEPCAST_SAME("data-parallel-sharding-strategy", data_parallel_sharding_strategy),
    STEPCAST_SAME("use-torch-fsdp2", use_torch_fsdp2),
    STEPCAST_SAME("ckpt-format", ckpt_format),
    STEPCAST_SAME("ddp-average-in-collective", ddp_average_in_collective),
    STEPCAST_SAME("calculate-per-token-loss", calculate_per_token_loss),
    STEPCAST_SAME("save-params-interval", save_params_interval),
    STEPCAST_SAME("no-gradient-accumulation-fusion", gradient_accumulation_fusion),
    STEPCAST_SAME("accumulate-allreduce-grads-in-fp32", accumulate_allreduce_grads_in_fp32),
    STEPCAST_SAME("grad-reduce-in-bf16", grad_reduce_in_bf16),
    STEPCAST_SAME("optimizer", optimizer),
    STEPCAST_SAME("use-precision-aware-optimizer", use_precision_aware_optimizer),
    STEPCAST_SAME("main-grads-dtype", main_grads_dtype),
    STEPCAST_SAME("main-params-dtype", main_params_dtype),
    STEPCAST_SAME("exp-avg-dtype", exp_avg_dtype),
    STEPCAST_SAME("exp-avg-sq-dtype", exp_avg_sq_dtype),
    STEPCAST_SAME("optimizer-cpu-offload", optimizer_cpu_offload),
    STEPCAST_SAME("optimizer-offload-fraction", optimizer_offload_fraction),
    STEPCAST_SAME("overlap-cpu-optimizer-d2h-h2d", overlap_cpu_optimizer_d2h_h2d),
    // overlap
    STEPCAST_SAME("overlap-grad-reduce", overlap_grad_reduce),
    STEPCAST_SAME("overlap-param-gather", overlap_param_gather),
    STEPCAST_SAME("overlap-param-gather-with-optimizer-step", overlap_param_gather_with_optimizer_step),
    STEPCAST_SAME("tp-comm-overlap", tp_comm_overlap),
    STEPCAST_SAME("no-overlap-p2p-communication", overlap_p2p_communication),
    STEPCAST_SAME("overlap-p2p-communication-warmup-flush", overlap_p2p_communication_warmup_flush),
    STEPCAST_SAME("overlap-moe-expert-parallel-comm", overlap_moe_expert_parallel_comm),
    STEPCAST_SAME("delay-wgrad-compute", delay_wgrad_compute),
    STEPCAST_SAME("overlap-dispatch-backward-with-experts-wgrad",
                  overlap_dispatch_backward_with_experts_wgrad),
    STEPCAST_SAME("moe-shared-expert-overlap", moe_shared_expert_overlap),
    STEPCAST_SAME("defer-embedding-wgrad-compute", defer_embedding_wgrad_compute),
    // experts
    STEPCAST_SAME("moe-token-dispatcher-type", moe_token_dispatcher_type),
    STEPCAST_SAME("moe-flex-dispatcher-backend", moe_flex_dispatcher_backend),
    STEPCAST_SAME("moe-expert-capacity-factor", moe_expert_capacity_factor),
    STEPCAST_SAME("moe-pad-expert-input-to-capacity", moe_pad_expert_input_to_capacity),
    STEPCAST_SAME("moe-expert-rank-capacity-factor", moe_expert_rank_capacity_factor),
    STEPCAST_SAME("moe-paged-stash", moe_paged_stash),
    STEPCAST_SAME("moe-router-padding-for-quantization", moe_router_padding_for_quantization),
    STEPCAST_SAME("moe-router-dtype", moe_router_dtype),
    STEPCAST_SAME("moe-grouped-gemm", moe_grouped_gemm),
    STEPCAST_SAME("moe-use-grouped-tensor", moe_use_grouped_tensor),
    STEPCAST_SAME("use-transformer-engine-op-fuser", use_transformer_engine_op_fuser),
    // precision
    STEPCAST_SAME("bf16", bf16),
    STEPCAST_SAME("fp16", fp16),
    STEPCAST_SAME("fp8-format", fp8),
    STEPCAST_SAME("fp8-recipe", fp8_recipe),
    STEPCAST_SAME("fp8-param-gather", fp8_param),
    STEPCAST_SAME("fp4-format", fp4),
    STEPCAST_SAME("fp4-recipe", fp4_recipe),
    STEPCAST_SAME("fp4-param-gather", fp4_param),
    STEPCAST_SAME("reuse-grad-buf-for-mxfp8-param-ag", reuse_grad_buf_for_mxfp8_param_ag),
    STEPCAST_SAME("first-last-layers-bf16", first_last_layers_bf16),
    STEPCAST_SAME("num-layers-at-start-in-bf16", num_layers_at_start_in_bf16),
    STEPCAST_SAME("num-layers-at-end-in-bf16", num_layers_at_end_in_bf16),
    // recompute, offload, kernels
    STEPCAST_SAME("recompute-granularity", recompute_granularity),
    STEPCAST_SAME("recompute-method", recompute_method),
    STEPCAST_SAME("recompute-num-layers", recompute_num_layers),
    STEPCAST_SAME("recompute-modules", recompute_modules),
    STEPCAST_SAME("distribute-saved-activations", distribute_saved_activations),
    STEPCAST_SAME("cpu-offloading-num-layers", cpu_offloading_num_layers),
    STEPCAST_SAME("fine-grained-activation-offloading", fine_grained_activation_offloading),
    STEPCAST_SAME("offload-modules", offload_modules),
    STEPCAST_SAME("attention-backend", attention_backend),
    STEPCAST_SAME("cuda-graph-impl", cuda_graph_impl),
    STEPCAST_SAME("cuda-graph-modules", cuda_graph_modules),
};

#undef STEPCAST_SAME

// Other spellings: older flags, and names of configuration fields that argument files use.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"num-moe-experts", "num-experts"},
    {"moe-router-padding-for-fp8", "moe-router-padding-for-quantization"},
    {"cuda-graph-scope", "cuda-graph-modules"},
    {"overlap-p2p-comm", "overlap-p2p-communication"},
    {"num-layers-in-first-pipeline-stage", "decoder-first-pipeline-num-layers"},
    {"num-layers-in-last-pipeline-stage", "decoder-last-pipeline-num-layers"},
    {"pipeline-model-parallel-layout-str", "pipeline-model-parallel-layout"},
    {"fp8-param", "fp8-param-gather"},
    {"fp4-param", "fp4-param-gather"},
};

// Options that end a family: "lr-" covers --lr-decay-style.
constexpr std::string_view kNoEffectPrefixes[] = {
    "lr-",
    "log-",
    "wandb-",
    "tensorboard-",
    "save",
    "load",
    "eval-",
    "adam-",
    "data-",
    "train-",
    "exit-",
    "dist-ckpt",
    "rotary-",
    "mscale",
    "init-method",
    "use-mcore",
    "manual-gc",
    "no-load-",
    "no-save-",
    "tokenizer",
    "async-",
    "ckpt-",
    "no-ckpt-",
    "profile",
    "timing-",
    "vocab-file",
    "merge-",
    "norm-eps",
    "layernorm-eps",
    "weight-decay",
    "start-weight-decay",
    "end-weight-decay",
    "attention-dropout",
    "hidden-dropout",
    "override-opt",
    "distributed-",
    "rerun-",
    "inprocess",
    "one-logger",
    "straggler",
    "use-one-",
    "check-for-nan",
    "no-check-for-nan",
    "no-mmap",
    "mmap",
    "no-create-attention",
    "rampup",
    "rope-",
    "no-rope",
    "original-max",
    "moe-aux-loss",
    "moe-z-loss",
    "moe-router-bias",
    "moe-router-topk-scaling",
    "moe-token-drop-policy",
    "mtp-loss",
    "moe-per-layer-log",
    "te-rng",
    "cuda-graph-warmup",
    "logging-level",
};

constexpr std::string_view kNoEffect[] = {
    "lr",
    "min-lr",
    "seed",
    "split",
    "finetune",
    "num-workers",
    "mock-data",
    "clip-grad",
    "sgd-momentum",
    "use-flash-attn",
    "transformer-impl",
    "enable-experimental",
    "auto-detect-ckpt-format",
    "cross-entropy-loss-fusion",
    "cross-entropy-fusion-impl",
    "moe-permute-fusion",
    "moe-router-fusion",
    "moe-deepep-num-sms",
    "moe-hybridep-num-sms",
    "moe-flex-dispatcher-num-sms",
    "use-legacy-models",
    "no-masked-softmax-fusion",
    "no-bias-swiglu-fusion",
    "no-bias-gelu-fusion",
    "no-bias-dropout-fusion",
    "apply-layernorm-1p",
    "use-rotary-position-embeddings",
    "legacy-tokenizer",
    "max-tokens-to-oom",
    "decoupled-lr",
    "decoupled-min-lr",
    "loss-scale",
    "initial-loss-scale",
    "min-loss-scale",
    "hysteresis",
    "skip-train",
    "iterations-to-skip",
    "use-checkpoint-args",
    "create-attention-mask-in-dataloader",
    "no-weight-decay-cond-type",
    "apply-query-key-layer-scaling",
    "attention-softmax-in-fp32",
    "moe-mlp-glu-interleave-size",
    "moe-pad-experts-for-cuda-graph-inference",
    "untied-lr",
    "use-dist-ckpt",
    "empty-unused-memory-level",
    "local-rank",
    "world-size",
    "rank",
    "data-parallel-size",
};

std::string dashes(std::string_view name) {
  std::string text(name.substr(std::min(name.find_first_not_of('-'), name.size())));
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

std::optional<double> number_of(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value - value != 0) return std::nullopt;
  return value;
}

std::optional<std::int64_t> size_of(const std::string& text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

// "a b,c" in one word is three elements; a list in brackets too.
std::vector<std::string> elements(const std::vector<std::string>& words) {
  std::vector<std::string> result;
  for (const std::string& word : words) {
    std::string element;
    for (const char c : word + ' ') {
      if (c != ' ' && c != ',' && c != '[' && c != ']' && c != '\'' && c != '"' && c != '(' && c != ')') {
        element += c;
      } else if (!element.empty()) {
        result.push_back(std::move(element));
        element.clear();
      }
    }
  }
  return result;
}

struct Setter {
  MegatronArguments& arguments;
  const Flag& flag;
  const std::vector<std::string>& words;

  bool one() const { return words.size() == 1; }

  std::string operator()(std::int64_t A::*member) const {
    const auto value = one() ? size_of(words[0]) : std::nullopt;
    if (!value) return "a whole number";
    arguments.*member = *value;
    return "";
  }
  std::string operator()(std::optional<std::int64_t> A::*member) const {
    const auto value = one() ? size_of(words[0]) : std::nullopt;
    if (!value) return "a whole number";
    arguments.*member = value;
    return "";
  }
  std::string operator()(double A::*member) const {
    const auto value = one() ? number_of(words[0]) : std::nullopt;
    if (!value) return "a number";
    arguments.*member = *value;
    return "";
  }
  std::string operator()(std::optional<double> A::*member) const {
    const auto value = one() ? number_of(words[0]) : std::nullopt;
    if (!value) return "a number";
    arguments.*member = value;
    return "";
  }
  std::string operator()(bool A::*member) const {
    if (!words.empty()) return "no value";
    arguments.*member = !is_negative(flag);
    return "";
  }
  std::string operator()(std::string A::*member) const {
    if (words.empty()) return "a value";
    arguments.*member = fmt::format("{}", fmt::join(words, " "));
    return "";
  }
  std::string operator()(std::vector<std::string> A::*member) const {
    auto list = elements(words);
    if (list.empty()) return "one or more values";
    arguments.*member = std::move(list);
    return "";
  }
  std::string operator()(std::vector<std::int64_t> A::*member) const {
    std::vector<std::int64_t> list;
    for (const std::string& element : elements(words)) {
      const auto value = size_of(element);
      if (!value) return "whole numbers";
      list.push_back(*value);
    }
    if (list.empty()) return "whole numbers";
    arguments.*member = std::move(list);
    return "";
  }
};

std::vector<std::string> words_of(std::int64_t value) { return {std::to_string(value)}; }
std::vector<std::string> words_of(const std::optional<std::int64_t>& value) {
  return {std::to_string(*value)};
}
std::vector<std::string> words_of(double value) { return {fmt::format("{}", value)}; }
std::vector<std::string> words_of(const std::optional<double>& value) { return {fmt::format("{}", *value)}; }
std::vector<std::string> words_of(bool /*value*/) { return {}; }
std::vector<std::string> words_of(const std::string& value) { return {value}; }
std::vector<std::string> words_of(const std::vector<std::string>& value) { return value; }
std::vector<std::string> words_of(const std::vector<std::int64_t>& value) {
  std::vector<std::string> words;
  for (const std::int64_t element : value) words.push_back(std::to_string(element));
  return words;
}

}  // namespace

std::span<const Flag> megatron_flags() { return kFlags; }

const Flag* find_flag(std::string_view name) {
  static const std::map<std::string, const Flag*, std::less<>> by_name = [] {
    std::map<std::string, const Flag*, std::less<>> map;
    for (const Flag& flag : kFlags) {
      map.emplace(flag.name, &flag);
      map.emplace(dashes(flag.field), &flag);
    }
    return map;
  }();
  std::string key = dashes(name);
  for (const auto& [alias, target] : kAliases)
    if (key == alias) key = target;
  const auto found = by_name.find(key);
  return found == by_name.end() ? nullptr : found->second;
}

bool is_switch(const Flag& flag) { return std::holds_alternative<bool A::*>(flag.member); }

bool is_negative(const Flag& flag) {
  return is_switch(flag) && MegatronArguments{}.*std::get<bool A::*>(flag.member);
}

std::string set_flag(MegatronArguments& arguments, const Flag& flag, const std::vector<std::string>& words) {
  return std::visit(Setter{arguments, flag, words}, flag.member);
}

bool at_default(const MegatronArguments& arguments, const Flag& flag) {
  static const MegatronArguments defaults;
  return std::visit([&](auto member) { return arguments.*member == defaults.*member; }, flag.member);
}

std::vector<std::string> flag_words(const MegatronArguments& arguments, const Flag& flag) {
  return std::visit([&](auto member) { return words_of(arguments.*member); }, flag.member);
}

bool has_no_effect(std::string_view name) {
  const std::string key = dashes(name);
  return std::find(std::begin(kNoEffect), std::end(kNoEffect), key) != std::end(kNoEffect) ||
         std::any_of(std::begin(kNoEffectPrefixes), std::end(kNoEffectPrefixes),
                     [&](std::string_view prefix) { return key.starts_with(prefix); });
}

}  // namespace stepcast
