// `stepcast init`: a first scenario for a model on a cluster. Takes the first layout, in the order below,
// that Megatron's rules allow and whose memory fits; `search` finds better ones.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>

#include "app/commands.h"
#include "app/model_file.h"
#include "base/json.h"
#include "base/units.h"
#include "cost/stack.h"
#include "layout/scenario.h"
#include "memory/ledger.h"

namespace stepcast {
namespace {

constexpr double kRoom = 0.95;  // of the device's memory: allocators stall above it
constexpr std::int64_t kTokensPerStep = std::int64_t{1} << 22;  // a usual batch for a large model
constexpr std::int64_t kMostRanks = 1 << 20;

struct InitOptions {
  std::string model;
  std::string topology;
  std::int64_t gpus = 0;
  std::optional<std::int64_t> seq_len;
  std::optional<std::int64_t> global_batch;
  std::string output;
  bool json = false;
};

struct Candidate {
  std::int64_t tp = 1, cp = 1, pp = 1, ep = 1;
  bool recompute = false;
};

struct Choice {
  Json scenario;
  double device_bytes = 0;
  double capacity_bytes = 0;
  bool fits = false;
};

std::int64_t default_seq_len(const Model& model) {
  return model.max_positions > 0 ? std::min<std::int64_t>(4096, model.max_positions) : 4096;
}

// Enough micro-batches to fill the pipeline four times over.
std::int64_t default_global_batch(std::int64_t seq_len, std::int64_t dp, std::int64_t pp) {
  return dp * std::max(4 * pp, kTokensPerStep / (seq_len * dp));
}

// Divisors of the GPU count that divide the layers too, or are powers of two.
std::vector<std::int64_t> pipeline_sizes(std::int64_t layers, std::int64_t gpus) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t pp = 1; pp <= std::min(layers, gpus); ++pp)
    if (gpus % pp == 0 && (layers % pp == 0 || (pp & (pp - 1)) == 0)) sizes.push_back(pp);
  return sizes;
}

// Fewer GPUs a model copy first; then, for dense models, TP inside a node before PP, and PP before TP for
// experts; experts inside a node first; recompute of everything last.
std::vector<Candidate> candidates(const Model& model, const Cluster& cluster, std::int64_t seq_len) {
  const std::int64_t gpus = cluster.gpus;
  const std::int64_t most_ep = model.moe ? std::min<std::int64_t>(model.moe->experts, 64) : 1;
  std::vector<Candidate> all;
  for (const bool recompute : {false, true})
    for (const std::int64_t pp : pipeline_sizes(model.layers, gpus))
      for (std::int64_t tp = 1; tp <= std::min(cluster.gpus_per_node, model.attention.heads); tp *= 2)
        for (std::int64_t cp = 1; cp == 1 || cp * 8192 <= seq_len; cp *= 2)
          for (std::int64_t ep = 1; ep <= most_ep; ep *= 2)
            if (gpus % (tp * cp * pp) == 0 && gpus % (ep * pp) == 0)
              all.push_back({tp, cp, pp, ep, recompute});
  const std::int64_t node = std::min(cluster.gpus_per_node, most_ep);
  const bool moe = model.moe.has_value();
  const auto order = [&](const Candidate& c) {
    const std::int64_t ep_distance =
        c.ep >= node ? c.ep / node : 2 * node / c.ep;  // a node, 2 nodes, half a node, ...
    return std::tuple(c.recompute, c.tp * c.pp * c.cp, moe ? c.tp : c.pp, c.cp, ep_distance);
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](const Candidate& a, const Candidate& b) { return order(a) < order(b); });
  return all;
}

Json scenario_json(const InitOptions& options, const Model& model, const std::string& topology,
                   const Candidate& c) {
  const std::int64_t seq_len = options.seq_len.value_or(default_seq_len(model));
  const std::int64_t dp = std::max<std::int64_t>(1, options.gpus / (c.tp * c.cp * c.pp));
  const std::int64_t global = options.global_batch.value_or(default_global_batch(seq_len, dp, c.pp));
  Json scenario = {{"schema", "stepcast/scenario/1"},
                   {"name", fmt::format("{}, {} GPUs of {}", model.name, options.gpus, options.topology)},
                   {"model", model_json(model)},
                   {"cluster", {{"topology", topology}, {"gpus", options.gpus}}},
                   {"batch", {{"seq_len", seq_len}, {"global", global}, {"micro", 1}}},
                   {"layout", {{"tp", c.tp}, {"cp", c.cp}, {"pp", c.pp}, {"ep", c.ep}}}};
  if (model.moe) scenario["layout"]["etp"] = 1;
  scenario["layout"]["sequence_parallel"] = c.tp > 1;
  if (c.recompute) scenario["recompute"] = {{"granularity", "full"}};
  return scenario;
}

Scenario read(const Json& document) {
  return read_scenario(document, "init", "", std::filesystem::current_path());
}

Cluster cluster_of(const InitOptions& options) {
  if (options.gpus < 1 || options.gpus > kMostRanks)
    throw InputError({"--gpus", "", std::to_string(options.gpus), fmt::format("1 to {}", kMostRanks)});
  std::vector<Problem> problems;
  const Json object = {{"topology", options.topology}, {"gpus", options.gpus}};
  Cluster cluster = read_cluster(object, "init", problems, std::filesystem::current_path());
  throw_if_any(problems);
  return cluster;
}

// The choice that a candidate amounts to; none when a rule refuses it.
std::optional<Choice> weigh(Json document) {
  try {
    const Scenario scenario = read(document);
    const MemoryReport memory = memory_report(scenario, split_of(scenario), scenario.stack);
    const double device = memory.peak().device;
    return Choice{std::move(document), device, memory.capacity, device <= kRoom * memory.capacity};
  } catch (const InputError&) {
    return std::nullopt;
  }
}

// The first that fits, else the one that needs least; throws when none is legal.
Choice choose(const InitOptions& options, const Model& model) {
  const Cluster cluster = cluster_of(options);
  const std::int64_t seq_len = options.seq_len.value_or(default_seq_len(model));
  std::optional<Choice> best;
  for (const Candidate& candidate : candidates(model, cluster, seq_len)) {
    auto choice = weigh(scenario_json(options, model, cluster.topology, candidate));
    if (!choice) continue;
    if (choice->fits) return *choice;
    if (!best || choice->device_bytes < best->device_bytes) best = std::move(choice);
  }
  if (best) return *best;
  read(scenario_json(options, model, cluster.topology, {}));  // says what is wrong
  throw InputError({"init", "", "no layout is legal", "another number of GPUs or another batch"});
}

std::string summary(const Choice& choice) {
  const Json& layout = choice.scenario["layout"];
  std::string text =
      fmt::format("tp {}, cp {}, pp {}, ep {}{}: {:.1f} GiB of {:.1f} on the fullest GPU",
                  layout["tp"].dump(), layout["cp"].dump(), layout["pp"].dump(), layout["ep"].dump(),
                  choice.scenario.contains("recompute") ? ", full recompute" : "", choice.device_bytes / kGiB,
                  choice.capacity_bytes / kGiB);
  if (!choice.fits) text += fmt::format("; no layout stays below {:.0f} % of the memory", kRoom * 100);
  return text;
}

int init(const InitOptions& options) {
  const ModelFile model = load_model_file(options.model);
  const Choice choice = choose(options, model.model);
  const std::string document = choice.scenario.dump(2, ' ', false, Json::error_handler_t::replace);
  if (!options.output.empty()) write_file(options.output, document + "\n");
  if (options.json || options.output.empty()) fmt::print("{}\n", document);
  if (options.output.empty() || options.json)
    fmt::print(stderr, "{}\n", summary(choice));
  else
    fmt::print("{}\nwritten to {}; next: stepcast simulate {}\n", summary(choice), options.output,
               options.output);
  if (!model.unrecognised.empty())
    fmt::print(stderr, "keys not recognised, and ignored: {}\n", fmt::join(model.unrecognised, ", "));
  return choice.fits ? 0 : 1;
}

}  // namespace

void add_init(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<InitOptions>();
  CLI::App* command = app.add_subcommand("init", "Write a first scenario for a model on a cluster");
  command
      ->add_option("config", options->model,
                   "A Hugging Face config.json, a model file, or a shipped model's name")
      ->required();
  command->add_option("--topology", options->topology, "A name under topologies/, or a path")->required();
  command->add_option("--gpus", options->gpus, "GPUs of the job")->required();
  command->add_option("--seq-len", options->seq_len, "Tokens of a sequence; default 4096")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{16777216}));
  command
      ->add_option("--global-batch", options->global_batch, "Sequences of a step; default about 4 Mi tokens")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{16777216}));
  command->add_option("-o,--output", options->output, "Write the scenario here instead of to stdout");
  command->add_flag("--json", options->json, "One JSON document on stdout");
  command->footer("Example:\n  stepcast init deepseek-v3 --topology dgx-h100 --gpus 1024");
  command->callback([options, &exit_code] { exit_code = init(*options); });
}

}  // namespace stepcast
