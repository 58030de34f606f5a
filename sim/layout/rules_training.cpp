// Rules of the optimizer and its overlap, FSDP, precision, recompute, offload and CUDA connections.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "layout/rule_list.h"

namespace stepcast {
namespace {

// The names that are not among `known`.
std::vector<std::string> unknown_among(const std::vector<std::string>& names,
                                       const std::set<std::string>& known) {
  std::vector<std::string> unknown;
  std::copy_if(names.begin(), names.end(), std::back_inserter(unknown),
               [&](const std::string& name) { return !known.contains(name); });
  return unknown;
}

bool contains(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool one_connection(const MegatronArguments& a) {
  return a.cuda_device_max_connections && *a.cuda_device_max_connections == 1;
}

constexpr const char* kConnections = "cuda_device_max_connections";

// Rule 38 on which modules can be recomputed.
void check_recompute_modules(const MegatronArguments& a, Violations& violations) {
  static const std::set<std::string> known = {
      "core_attn", "moe_act",      "layernorm",      "mla_up_proj", "mlp",    "moe",
      "mhc",       "gdn_norm_out", "shared_experts", "gdp_in_proj", "gdp_qkv"};
  const auto refuse = [&](std::string found, std::string allowed) {
    violations.push_back({38, "recompute_modules", std::move(found), std::move(allowed)});
  };
  for (const std::string& module : unknown_among(a.recompute_modules, known))
    refuse(fmt::format("recompute of \"{}\"", module), fmt::format("{}", fmt::join(known, ", ")));
  if (a.recomputes("moe_act") && !a.moe_grouped_gemm)
    refuse("recompute of \"moe_act\" without moe_grouped_gemm", "both, or neither");
  if (a.recomputes("mla_up_proj") && !a.multi_latent_attention)
    refuse("recompute of \"mla_up_proj\" without latent attention", "other modules");
  const bool delayed = !a.fp8.empty() && a.fp8_recipe == "delayed";
  for (const char* module : {"moe_act", "layernorm"})
    if (delayed && a.recomputes(module))
      refuse(fmt::format("recompute of \"{}\" with delayed FP8 scaling", module),
             "another FP8 recipe, or other modules");
}

// Rule 40 on which activations can be offloaded.
void check_offload_modules(const MegatronArguments& a, Violations& violations) {
  static const std::set<std::string> known = {"core_attn",       "attn_proj",  "expert_fc1",
                                              "fused_group_mlp", "moe_act",    "attn_norm",
                                              "mlp_norm",        "qkv_linear", "gdp_qkv"};
  const auto refuse = [&](std::string found, std::string allowed) {
    violations.push_back({40, "offload_modules", std::move(found), std::move(allowed)});
  };
  for (const std::string& module : unknown_among(a.offload_modules, known))
    refuse(fmt::format("offload of \"{}\"", module), fmt::format("{}", fmt::join(known, ", ")));
  if (contains(a.offload_modules, "attn_proj") && !contains(a.offload_modules, "core_attn"))
    refuse("offload of \"attn_proj\" without \"core_attn\", whose output it takes", "both, or neither");
  for (const char* module : {"expert_fc1", "moe_act", "fused_group_mlp"})
    if (contains(a.offload_modules, module) && a.recomputes("moe"))
      refuse(fmt::format("offload of \"{}\" with recompute of \"moe\"", module), "one of the two");
}

// Rule 42 on layers that stay in BF16.
void check_bf16_layers(const MegatronArguments& a, Violations& violations) {
  if (a.fp8.empty() || !a.first_last_layers_bf16) return;
  if (a.fp8_recipe == "delayed")
    violations.push_back({42, "first_last_layers_bf16", "first and last layers in BF16 with delayed scaling",
                          "another FP8 recipe, or all layers in FP8"});
  if (a.num_layers == 0) return;
  const std::int64_t most = a.num_layers / a.pipeline_model_parallel_size;
  const auto check = [&](std::int64_t layers, const char* option, const char* place) {
    if (layers < 0 || layers > most)
      violations.push_back({42, option,
                            fmt::format("{} layers in BF16 at the {} and {} a stage", layers, place, most),
                            fmt::format("0 to {}", most)});
  };
  check(a.num_layers_at_start_in_bf16, "num_layers_at_start_in_bf16", "start");
  check(a.num_layers_at_end_in_bf16, "num_layers_at_end_in_bf16", "end");
}

}  // namespace

void param_gather_overlap(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.overlap_param_gather) return;
  if (!a.overlap_grad_reduce)
    violations.push_back(
        {20, "overlap_param_gather", "overlap_param_gather without overlap_grad_reduce", "both, or neither"});
  if (!a.use_distributed_optimizer && !a.use_megatron_fsdp && a.optimizer != "dist_muon")
    violations.push_back({20, "overlap_param_gather",
                          "overlap_param_gather without an optimizer that is sharded",
                          "use_distributed_optimizer, Megatron-FSDP or dist_muon"});
}

void param_gather_with_step(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.overlap_param_gather_with_optimizer_step) return;
  const auto needs = [&](bool met, const char* found, const char* allowed) {
    if (!met)
      violations.push_back({21, "overlap_param_gather_with_optimizer_step",
                            fmt::format("overlap_param_gather_with_optimizer_step {}", found), allowed});
  };
  needs(a.use_distributed_optimizer, "without the distributed optimizer", "both, or neither");
  needs(a.overlap_param_gather, "without overlap_param_gather", "both, or neither");
  needs(virtual_stages(a) > 1, "at vpp 1", "vpp above 1");
  needs(a.ckpt_format == "torch", "with distributed checkpoints", "ckpt_format torch");
}

void recompute_options(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const std::string& granularity = a.recompute_granularity;
  if (granularity.empty()) return;
  const auto needs = [&](bool met, const char* option, std::string found, const char* allowed) {
    if (!met) violations.push_back({38, option, std::move(found), allowed});
  };
  if (granularity != "full" && granularity != "selective")
    return needs(false, "recompute_granularity", "recompute " + granularity, "full, selective");
  const bool known = a.recompute_method == "uniform" || a.recompute_method == "block";
  needs(known || a.recompute_method.empty(), "recompute_method", "method " + a.recompute_method,
        "uniform, block");
  if (granularity == "full") {
    // the overlap recomputes whole chunks, and rule 23 refuses it
    if (a.overlap_moe_expert_parallel_comm) return;
    needs(!a.recompute_method.empty(), "recompute_method", "full recompute without a method",
          "uniform, block");
    needs(a.recompute_num_layers.has_value(), "recompute_num_layers",
          "full recompute without a number of layers", "1 or more");
    return;
  }
  needs(a.recompute_method.empty(), "recompute_method", "selective recompute with a method", "none");
  needs(!a.recompute_num_layers, "recompute_num_layers", "selective recompute with a number of layers",
        "none");
  check_recompute_modules(a, violations);
}

void distributed_activations(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.distribute_saved_activations) return;
  const auto needs = [&](bool met, const char* found, const char* allowed) {
    if (!met)
      violations.push_back({39, "distribute_saved_activations",
                            fmt::format("saved activations distributed {}", found), allowed});
  };
  needs(a.tp() > 1, "at tp 1", "false, or tp above 1");
  needs(a.full_recompute(), "without full recompute", "false, or full recompute");
  needs(!a.sequence_parallel, "with sequence parallelism", "one of the two");
}

void activation_offload(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const std::int64_t layers = a.cpu_offloading_num_layers;
  const std::int64_t pp = a.pipeline_model_parallel_size;
  const auto refuse = [&](const char* option, std::string found, std::string allowed) {
    violations.push_back({40, option, std::move(found), std::move(allowed)});
  };
  if (layers < 0 || (layers > 0 && a.num_layers > 0 && layers >= a.num_layers))
    refuse("cpu_offloading_num_layers", fmt::format("offload of {} of {} layers", layers, a.num_layers),
           fmt::format("0 to {}", std::max<std::int64_t>(0, a.num_layers - 1)));
  if (layers > 0 && pp > 1)
    refuse("cpu_offloading_num_layers", fmt::format("offload of layers with pp {}", pp), "0, or pp 1");
  if (layers > 0 && !a.recompute_granularity.empty())
    refuse("cpu_offloading_num_layers", "offload of layers with recompute", "one of the two");
  if (!a.fine_grained_activation_offloading) return;
  if (layers > 0)
    refuse("fine_grained_activation_offloading", "offload of layers and of modules", "one of the two");
  check_offload_modules(a, violations);
}

void mla_without_groups(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.multi_latent_attention) return;
  if (a.group_query_attention)
    violations.push_back(
        {41, "group_query_attention", "latent attention with groups of queries", "one of the two"});
  if (a.attention_output_gate)
    violations.push_back({41, "attention_output_gate", "latent attention with an output gate", "false"});
}

void low_precision(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const auto needs = [&](bool met, const char* option, const char* found, const char* allowed) {
    if (!met) violations.push_back({42, option, found, allowed});
  };
  needs(a.fp8.empty() || a.fp4.empty(), "fp4", "FP8 and FP4", "one of the two");
  needs(!a.fp8_param || !a.fp8.empty(), "fp8_param", "FP8 parameters without FP8", "both, or neither");
  needs(!a.fp4_param || !a.fp4.empty(), "fp4_param", "FP4 parameters without FP4", "both, or neither");
  needs(!a.fp8_param || a.use_distributed_optimizer || any_fsdp(a), "fp8_param",
        "FP8 parameters without a sharded optimizer", "use_distributed_optimizer, or FSDP");
  check_bf16_layers(a, violations);
}

void optimizer_offload(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.optimizer_cpu_offload) return;
  if (!a.use_precision_aware_optimizer)
    violations.push_back({43, "optimizer_cpu_offload",
                          "optimizer offload without use_precision_aware_optimizer", "both, or neither"});
  if (a.fp8_param && a.fp8_recipe != "delayed")
    violations.push_back({43, "fp8_param",
                          fmt::format("optimizer offload with FP8 parameters of recipe {}", a.fp8_recipe),
                          "recipe delayed, or parameters in 16 bit"});
}

void torch_fsdp2_alone(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.use_torch_fsdp2) return;
  const auto needs = [&](bool met, const char* option, std::string found, const char* allowed) {
    if (!met) violations.push_back({44, option, "FSDP2 with " + std::move(found), allowed});
  };
  const std::int64_t pp = a.pipeline_model_parallel_size;
  const std::int64_t ep = a.expert_model_parallel_size;
  needs(pp == 1, "pipeline_model_parallel_size", fmt::format("pp {}", pp), "pp 1");
  needs(ep == 1, "expert_model_parallel_size", fmt::format("ep {}", ep), "ep 1");
  needs(!a.use_distributed_optimizer, "use_distributed_optimizer", "the distributed optimizer", "false");
  needs(!a.gradient_accumulation_fusion, "gradient_accumulation_fusion", "gradient_accumulation_fusion",
        "false");
  needs(a.untie_embeddings_and_output_weights, "untie_embeddings_and_output_weights", "tied embeddings",
        "true");
  needs(a.ckpt_format == "torch_dist" || a.ckpt_format == "torch_dcp", "ckpt_format",
        "checkpoint format " + a.ckpt_format, "torch_dist, torch_dcp");
  needs(!one_connection(a), kConnections, "CUDA_DEVICE_MAX_CONNECTIONS 1", "another value");
}

void megatron_fsdp_needs(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.use_megatron_fsdp) return;
  const auto needs = [&](bool met, const char* option, std::string found, const char* allowed) {
    if (!met) violations.push_back({45, option, "Megatron-FSDP with " + std::move(found), allowed});
  };
  needs(a.optimizer == "adam" || a.optimizer == "sgd", "optimizer", "optimizer " + a.optimizer, "adam, sgd");
  needs(a.ckpt_format == "fsdp_dtensor", "ckpt_format", "checkpoint format " + a.ckpt_format, "fsdp_dtensor");
  needs(!one_connection(a), kConnections, "CUDA_DEVICE_MAX_CONNECTIONS 1", "another value");
  if (!a.use_distributed_optimizer)
    violations.push_back({45, "use_distributed_optimizer",
                          "Megatron-FSDP without the distributed optimizer: it is switched on", "true",
                          true});
}

void connections_of_tp_and_cp(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.cuda_device_max_connections) return;
  const std::int64_t connections = *a.cuda_device_max_connections;
  if (a.overlap_moe_expert_parallel_comm && connections == 1)
    violations.push_back({46, kConnections,
                          "overlap of expert communication with CUDA_DEVICE_MAX_CONNECTIONS 1",
                          "a larger value, such as 32", true});
  const bool before_blackwell = a.compute_capability > 0 && a.compute_capability < 10;
  const bool ordered = a.tp() > 1 || a.context_parallel_size > 1;
  if (!before_blackwell || !ordered || connections == 1 || any_fsdp(a) || a.overlap_moe_expert_parallel_comm)
    return;
  violations.push_back({46, kConnections,
                        fmt::format("CUDA_DEVICE_MAX_CONNECTIONS {} with tp {} and cp {} before Blackwell",
                                    connections, a.tp(), a.context_parallel_size),
                        "1"});
}

void ucc_connections(const MegatronArguments& arguments, Violations& violations) {
  if (arguments.pipeline_model_parallel_comm_backend != "ucc" || !one_connection(arguments)) return;
  violations.push_back(
      {56, kConnections, "UCC between stages with CUDA_DEVICE_MAX_CONNECTIONS 1", "above 1"});
}

void onebit_without_zero(const MegatronArguments& arguments, Violations& violations) {
  if (!arguments.onebit_adam || arguments.zero_stage == 0) return;
  violations.push_back(
      {102, "zero_stage", fmt::format("1-bit Adam with ZeRO stage {}", arguments.zero_stage), "stage 0"});
}

}  // namespace stepcast
