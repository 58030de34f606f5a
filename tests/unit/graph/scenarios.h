// Scenarios for the tests of graph, network, result and the properties: models small enough to count by hand,
// on shipped clusters, read as the program reads them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/data_folder.h"
#include "base/json.h"
#include "cost/stack.h"
#include "graph/build.h"
#include "layout/scenario.h"

namespace stepcast::graph_test {

// 8 layers, h 1024, 16 heads of 64 over 4 KV heads, f 4096.
inline Json dense_model() {
  return {{"name", "dense"},
          {"layers", 8},
          {"hidden", 1024},
          {"vocab", 32768},
          {"ffn_hidden", 4096},
          {"attention", {{"kind", "gqa"}, {"heads", 16}, {"kv_heads", 4}, {"head_dim", 64}}}};
}

// 8 layers, all with 32 experts of width 512, of which 4 are used.
inline Json moe_model() {
  return {{"name", "moe"},
          {"layers", 8},
          {"hidden", 1024},
          {"vocab", 32768},
          {"attention", {{"kind", "gqa"}, {"heads", 16}, {"kv_heads", 4}, {"head_dim", 64}}},
          {"moe", {{"experts", 32}, {"top_k", 4}, {"ffn_hidden", 512}}}};
}

// 16 micro-batches a rank unless `changes` (a merge patch) says otherwise; one sequence of 2048 tokens each.
inline Json scenario_json(const Json& model, std::int64_t gpus, const Json& layout,
                          const Json& changes = Json::object(), const std::string& topology = "dgx-h100") {
  const auto size = [&](const char* key) { return layout.value(key, std::int64_t{1}); };
  const std::int64_t dp = std::max<std::int64_t>(1, gpus / (size("tp") * size("cp") * size("pp")));
  Json scenario = {{"model", model},
                   {"cluster", {{"topology", topology}, {"gpus", gpus}}},
                   {"batch", {{"seq_len", 2048}, {"global", 16 * dp}}},
                   {"layout", layout}};
  scenario["layout"]["sequence_parallel"] = size("tp") > 1;
  scenario.merge_patch(changes);
  return scenario;
}

inline Scenario read(const Json& scenario) { return read_scenario(scenario, "test", "", data_folder()); }

inline std::vector<std::filesystem::path> shipped_scenarios() {
  std::vector<std::filesystem::path> files;
  for (const std::string& name : data_names("scenarios"))
    files.push_back(data_folder() / "scenarios" / (name + ".json"));
  return files;
}

// Constants that make counting easy: no factors on launches or traffic, and round times.
inline Stack plain_stack() {
  Stack stack;
  stack.name = "test";
  stack.kind = "megatron";
  stack.launch_s = 1e-6;
  stack.fixed_step_s = 0.01;
  stack.fragmentation = 1;
  stack.logits_bytes = 8;
  return stack;
}

// A scenario with its graph; kept together because a graph's readers need both.
struct Step {
  explicit Step(Scenario s, const Stack& with = plain_stack())
      : scenario(std::move(s)),
        split(split_of(scenario)),
        stack(with),
        graph(build_step(scenario, split, stack)) {}
  explicit Step(const Json& json) : Step(read(json)) {}

  const Program& program_of(const Instance& instance) const {
    return graph.programs[static_cast<std::size_t>(instance.program)];
  }
  const Op& op_of(const Task& task) const { return graph.ops[task.op]; }

  // Every task of every instance, in order.
  void for_each(const std::function<void(const Instance&, const Task&, const Op&)>& visit) const {
    for (const Instance& instance : graph.instances)
      for (const Task& task : program_of(instance)) visit(instance, task, op_of(task));
  }

  // The sum of `value` over every task (of one pipeline rank, when `rank` is not negative).
  double sum(const std::function<double(const Instance&, const Op&)>& value, std::int32_t rank = -1) const {
    double total = 0;
    for_each([&](const Instance& instance, const Task&, const Op& op) {
      if (rank < 0 || instance.rank == rank) total += value(instance, op);
    });
    return total;
  }

  Scenario scenario;
  StageSplit split;
  Stack stack;
  StepGraph graph;
};

inline bool is_transfer(const Op& op, Collective collective, Group group) {
  return op.communicates && op.transfer.collective == collective && op.transfer.group == group;
}

}  // namespace stepcast::graph_test
