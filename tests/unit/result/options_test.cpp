// What a scenario may ask for changes the forecast, or is refused: nothing is ignored in silence.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "result/document.h"
#include "unit/graph/scenarios.h"

namespace stepcast::graph_test {
namespace {

// Shared experts and latent attention, so that every module is there; two nodes, so that every link is.
Json full_model() {
  Json model = moe_model();
  model["moe"]["shared_ffn_hidden"] = 1024;
  model["ffn_hidden"] = 4096;
  model["moe"]["dense_layers"] = 2;
  model["attention"] = {{"kind", "mla"},          {"heads", 16},
                        {"q_lora_rank", 512},     {"kv_lora_rank", 256},
                        {"qk_nope_head_dim", 64}, {"qk_rope_head_dim", 32},
                        {"v_head_dim", 64}};
  return model;
}

struct Option {
  Json layout;
  Json without;
  Json with;
};

// What the forecast says, without what it was asked.
Json answer(const Json& layout, const Json& changes) {
  const Scenario scenario = read(scenario_json(full_model(), 16, layout, changes));
  Json document = result_document(scenario, forecast(scenario));
  for (const char* key : {"scenario", "provenance", "warnings"}) document.erase(key);
  return document;
}

// "" when it was refused or made a difference.
std::string ignored(const Option& option) {
  const Json before = answer(option.layout, option.without);
  Json changes = option.without;
  changes.merge_patch(option.with);
  try {
    if (answer(option.layout, changes) != before) return "";
  } catch (const InputError&) {
    return "";
  }
  return option.with.dump() + " with " + option.layout.dump() + " " + option.without.dump();
}

const Json kNothing = Json::object();
const Json kEp = {{"ep", 8}, {"etp", 1}};
const Json kTpEp = {{"tp", 2}, {"ep", 8}, {"etp", 1}};
const Json kPp = {{"pp", 4}, {"ep", 2}, {"etp", 1}};
const Json kVpp = {{"pp", 2}, {"vpp", 2}, {"ep", 2}, {"etp", 1}};
const Json kCp = {{"cp", 4}, {"ep", 4}, {"etp", 1}};

Json recompute(const char* module) {
  return {{"recompute", {{"granularity", "selective"}, {"modules", {module}}}}};
}

Json overriding(const char* key, const Json& value) { return {{"cluster", {{"overrides", {{key, value}}}}}}; }

std::vector<Option> options() {
  return {
      {kTpEp, kNothing, {{"overlap", {{"tp", true}}}}},
      {kEp, kNothing, {{"overlap", {{"grad_reduce", false}, {"param_gather", false}}}}},
      {kEp, kNothing, {{"overlap", {{"param_gather", false}}}}},
      {kEp, kNothing, {{"overlap", {{"moe_a2a", true}}}}},
      {kEp, {{"overlap", {{"moe_a2a", true}}}}, {{"overlap", {{"delay_wgrad", true}}}}},
      {kVpp, {{"batch", {{"global", 256}}}}, {{"overlap", {{"p2p", false}}}}},
      {kEp, kNothing, {{"overlap", {{"shared_expert", true}}}}},
      {kEp, kNothing, {{"moe", {{"dispatcher", "allgather"}}}}},
      {kEp, kNothing, {{"moe", {{"dispatcher", "deepep"}}}}},
      {kEp, {{"moe", {{"dispatcher", "deepep"}}}}, {{"moe", {{"dispatcher", "hybridep"}}}}},
      {kEp, {{"moe", {{"dispatcher", "deepep"}}}}, {{"moe", {{"dedup", false}}}}},
      {kEp, kNothing, {{"moe", {{"routing", {{"kind", "zipf"}, {"s", 0.8}}}}}}},
      {kEp, {{"moe", {{"routing", {{"kind", "zipf"}, {"s", 0.8}}}}}}, {{"moe", {{"capacity_factor", 1}}}}},
      {kEp,
       {{"moe", {{"capacity_factor", 1}, {"pad_to_capacity", true}}}},
       {{"moe", {{"capacity_factor", 2}}}}},
      {kEp, kNothing, {{"kernels", {{"attention", "unfused"}}}}},
      {kEp, kNothing, {{"kernels", {{"attention", "flash2"}}}}},
      {kEp, kNothing, {{"kernels", {{"fused_norm", false}}}}},
      {kEp, kNothing, {{"kernels", {{"cuda_graphs", "layer"}}}}},
      {kEp, kNothing, {{"kernels", {{"cuda_graphs", "full"}}}}},
      {kEp, kNothing, {{"optimizer", {{"kind", "sgd"}}}}},
      {kEp, kNothing, {{"optimizer", {{"grad_dtype", "bf16"}}}}},
      {kEp, kNothing, {{"optimizer", {{"state_dtype", "bf16"}}}}},
      {kEp, kNothing, {{"optimizer", {{"compression", "1bit-adam"}}}}},
      {kEp, kNothing, {{"offload", {{"optimizer_fraction", 0.5}}}}},
      {kEp, kNothing, {{"offload", {{"activations", {"core_attn"}}}}}},
      {kEp, kNothing, {{"offload", {{"experts", {{"resident_fraction", 0.5}}}}}}},
      {kEp, kNothing, {{"sharding", {{"zero_stage", 0}}}}},
      {kEp, kNothing, {{"sharding", {{"zero_stage", 2}}}}},
      {kEp, {{"sharding", {{"zero_stage", 2}}}}, {{"sharding", {{"zero_stage", 3}}}}},
      {kEp, kNothing, {{"sharding", {{"scope", "node"}}}}},
      {kEp, kNothing, {{"sharding", {{"instances", 2}}}}},
      {kEp, kNothing, {{"recompute", {{"granularity", "full"}}}}},
      {kEp, {{"recompute", {{"granularity", "full"}}}}, {{"recompute", {{"layers", 3}}}}},
      {kEp, kNothing, recompute("core_attn")},
      {kEp, kNothing, recompute("moe_act")},
      {kEp, kNothing, recompute("layernorm")},
      {kEp, kNothing, recompute("mla_up_proj")},
      {kEp, kNothing, recompute("mlp")},
      {kEp, kNothing, recompute("moe")},
      {kEp, kNothing, recompute("shared_experts")},
      {kEp, kNothing, {{"precision", {{"recipe", "fp8-tensor"}}}}},
      {kEp, kNothing, {{"precision", {{"recipe", "fp8-block"}}}}},
      {kEp, {{"precision", {{"recipe", "fp8-block"}}}}, {{"precision", {{"fp8_params", true}}}}},
      {kEp, kNothing, {{"precision", {{"recipe", "nvfp4-weights"}}}}},
      {kEp, kNothing, {{"precision", {{"router", "bf16"}}}}},
      {kCp, kNothing, {{"layout", {{"cp_comm", "a2a"}}}}},
      {kCp, kNothing, {{"layout", {{"cp_comm", "allgather"}}}}},
      {kCp, kNothing, {{"layout", {{"cp_comm", "a2a+p2p"}}}}},
      {kPp, kNothing, {{"layout", {{"schedule", "gpipe"}}}}},
      {kVpp, {{"batch", {{"global", 256}}}}, {{"layout", {{"microbatch_group", 4}}}}},
      {kPp, kNothing, {{"layout", {{"stages", "Et*3|t*2|t*2|tL"}}}}},
      {kEp, kNothing, {{"batch", {{"micro", 2}}}}},
      {kEp, kNothing, {{"batch", {{"lengths", {1024, 1024}}}}}},
      {kEp, kNothing, {{"software", {{"stack", "fsdp"}}}}},
      {kEp, kNothing, {{"software", {{"date", "2022"}}}}},
      {kEp, kNothing, {{"training", {{"kind", "lora"}, {"rank", 8}, {"targets", {"qkv"}}}}}},
      {kEp, kNothing, {{"disturbances", {{"slow_gpus", {{{"rank", 0}, {"factor", 2}}}}}}}},
      {kEp, kNothing, {{"disturbances", {{"slow_links", {{{"tier", "leaf"}, {"factor", 2}}}}}}}},
      {kEp, kNothing, {{"disturbances", {{"failed_nics", {{{"node", 0}, {"nic", 0}}}}}}}},
      {kEp, kNothing, {{"calibration", "h200-sxm"}}},
      {kEp, kNothing, overriding("nvlink_bytes_per_s", 100e9)},
      {kEp, kNothing, overriding("nvlink_latency_s", 1e-3)},
      {kEp, kNothing, overriding("network_latency_s", 1e-3)},
      {kEp, kNothing, overriding("nic_gbit_per_s", 100)},
      {kEp, kNothing, overriding("nics_per_node", 2)},
      {kEp, kNothing, overriding("gpus_per_node", 4)},
      {kEp, kNothing, overriding("gpus_per_domain", 4)},
      {kEp, kNothing, overriding("hbm_bytes", 40e9)},
      {kEp, kNothing, overriding("hbm_bytes_per_s", 1e12)},
      {kEp, {{"offload", {{"optimizer_fraction", 0.5}}}}, overriding("host_link_bytes_per_s", 10e9)},
      {{{"tp", 8}}, kNothing, overriding("in_network_reduction", false)},
  };
}

TEST(EveryOption, ChangesTheForecastOrIsRefused) {
  for (const Option& option : options()) EXPECT_EQ(ignored(option), "");
}

}  // namespace
}  // namespace stepcast::graph_test
