#include "cost/stack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "base/data_folder.h"
#include "base/json.h"
#include "base/schema.h"

namespace stepcast {
namespace {

struct Constant {
  const char* name;
  double Stack::*member;
};

constexpr std::array kConstants = {
    Constant{"launch_s", &Stack::launch_s},
    Constant{"kernels_factor", &Stack::kernels_factor},
    Constant{"elementwise_traffic", &Stack::elementwise_traffic},
    Constant{"tp_overlap_chunks", &Stack::tp_overlap_chunks},
    Constant{"fsdp_contention", &Stack::fsdp_contention},
    Constant{"fixed_step_s", &Stack::fixed_step_s},
    Constant{"fragmentation", &Stack::fragmentation},
    Constant{"context_bytes", &Stack::context_bytes},
    Constant{"nccl_bytes_per_communicator", &Stack::nccl_bytes_per_communicator},
    Constant{"logits_bytes", &Stack::logits_bytes},
    Constant{"layer_graph_launches", &Stack::layer_graph_launches},
    Constant{"layer_graph_moe_launches", &Stack::layer_graph_moe_launches},
    Constant{"cuda_graph_bytes", &Stack::cuda_graph_bytes},
    Constant{"cuda_graph_pipeline_bytes", &Stack::cuda_graph_pipeline_bytes},
    Constant{"offload_min_elements", &Stack::offload_min_elements},
    Constant{"offload_groups_in_flight", &Stack::offload_groups_in_flight},
    Constant{"ep_host_factor", &Stack::ep_host_factor},
};

struct Practice {
  const char* name;
  bool Stack::*member;
};

constexpr std::array kPractices = {
    Practice{"vocab_parallel_loss", &Stack::vocab_parallel_loss},
    Practice{"fused_activation", &Stack::fused_activation},
    Practice{"resharding", &Stack::resharding},
    Practice{"fp32_master", &Stack::fp32_master},
    Practice{"selective_by_op", &Stack::selective_by_op},
};

// Read once; many scenarios share them.
const Json& load_stack(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, Json> cache;
  const std::lock_guard lock(mutex);
  const auto known = cache.find(name);
  if (known != cache.end()) return known->second;
  const auto file = data_folder() / "calib" / "stacks" / (name + ".json");
  Json document = load_json(file);
  std::vector<Problem> problems;
  check_schema(document, "stack", file.string(), "", problems);
  throw_if_any(problems);
  return cache[name] = std::move(document);
}

// The file to use for a stack's name, and how it was chosen.
const Json& choose(const std::string& stack, bool fsdp_like, std::vector<std::string>& assumptions) {
  const std::vector<std::string> names = data_names("calib/stacks");
  if (std::find(names.begin(), names.end(), stack) != names.end()) return load_stack(stack);
  for (const std::string& name : names) {
    const Json& document = load_stack(name);
    const Json stands_for = document.value("stands_for", Json::array());
    if (std::find(stands_for.begin(), stands_for.end(), stack) == stands_for.end()) continue;
    assumptions.push_back(fmt::format("software stack {}: constants of {}", stack, name));
    return document;
  }
  const std::string kind = fsdp_like ? "fsdp" : "megatron-lm";
  assumptions.push_back(fmt::format("software stack \"{}\" is unknown: constants of {}", stack, kind));
  return load_stack(kind);
}

// Applies the entries up to `until`, oldest first; the oldest stands for everything before it.
void apply(const Json& document, const std::string& until, Stack& result) {
  if (document.contains("like")) apply(load_stack(document["like"]), until, result);
  bool first = true;
  for (const Json& entry : document["entries"]) {
    if (!first && entry["date"].get<std::string>() > until) break;
    first = false;
    result.date = std::max(result.date, entry["date"].get<std::string>());
    if (entry.contains("attention")) result.attention = entry["attention"];
    const auto value = [&](const char* section, const char* name) {
      const bool given = entry.contains(section) && entry[section].contains(name);
      return given ? entry[section][name]["value"] : Json();
    };
    for (const Constant& constant : kConstants)
      if (const Json v = value("constants", constant.name); !v.is_null())
        result.*constant.member = v.get<double>();
    for (const Practice& practice : kPractices)
      if (const Json v = value("practices", practice.name); !v.is_null())
        result.*practice.member = v.get<bool>();
    if (const Json v = value("defaults", "grad_dtype"); !v.is_null())
      result.grad_dtype = v.get<std::string>();
    if (const Json v = value("defaults", "fp8_params"); !v.is_null()) result.fp8_params = v.get<bool>();
  }
}

}  // namespace

Stack find_stack(const std::string& stack, const std::string& date, bool fsdp_like,
                 std::vector<std::string>& assumptions) {
  const Json& document = choose(stack, fsdp_like, assumptions);
  std::string until = date.empty() ? "9999-12" : date;
  if (until.size() == 4) until += "-12";
  Stack result;
  result.name = document["name"];
  result.kind = document["kind"];
  apply(document, until, result);
  return result;
}

Json stack_json(const Stack& stack) {
  Json json = {{"name", stack.name}, {"date", stack.date}, {"attention", stack.attention}};
  for (const Constant& constant : kConstants) json[constant.name] = stack.*constant.member;
  for (const Practice& practice : kPractices) json[practice.name] = stack.*practice.member;
  return json;
}

}  // namespace stepcast
