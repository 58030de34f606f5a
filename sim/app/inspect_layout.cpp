// `stepcast inspect layout`: parallel sizes, what each pipeline stage holds, where the groups of a rank lie,
// and the memory of each pipeline rank. Nothing is simulated, so any legal scenario has an answer.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/inspect.h"
#include "base/json.h"
#include "layout/groups.h"
#include "layout/scenario.h"
#include "layout/stage_split.h"
#include "memory/advice.h"
#include "result/memory_view.h"

namespace stepcast {
namespace {

constexpr std::array kDenseGroups = {Group::kTp,   Group::kCp,     Group::kTpCp, Group::kDp,
                                     Group::kDpCp, Group::kTpDpCp, Group::kPp,   Group::kEmbedding};
constexpr std::array kExpertGroups = {Group::kEtp, Group::kEp, Group::kEtpEp, Group::kEdp};
constexpr std::size_t kShownStages = 200;

struct InspectLayoutOptions {
  std::string scenario;
  std::vector<std::string> set;
  std::int64_t rank = 0;
  bool json = false;
};

// The PP rank that holds the second copy of a stage under DualPipe; -1 otherwise.
std::int64_t second_rank_of(const Scenario& scenario, std::int64_t stage) {
  return scenario.layout.schedule == "dualpipe" ? scenario.layout.pp - 1 - stage : -1;
}

std::int64_t pp_rank_of(const Scenario& scenario, std::int64_t rank) {
  return rank / (scenario.cluster.gpus / scenario.layout.pp);
}

std::vector<std::int64_t> layers_per_rank(const StageSplit& split) {
  std::vector<std::int64_t> layers;
  for (std::int64_t rank = 0; rank < split.pp; ++rank) layers.push_back(split.layers_of_rank(rank));
  return layers;
}

Json layout_json(const Scenario& scenario) {
  const Layout& l = scenario.layout;
  return {{"gpus", scenario.cluster.gpus},
          {"tp", l.tp},
          {"cp", l.cp},
          {"dp", l.dp},
          {"pp", l.pp},
          {"vpp", l.vpp},
          {"etp", l.etp},
          {"ep", l.ep},
          {"edp", l.edp},
          {"sequence_parallel", l.sequence_parallel},
          {"schedule", l.schedule},
          {"microbatch_group", l.microbatch_group}};
}

Json stages_json(const Scenario& scenario, const StageSplit& split) {
  Json stages = Json::array();
  for (std::size_t i = 0; i < split.stages.size(); ++i) {
    const Stage& stage = split.stages[i];
    const auto q = static_cast<std::int64_t>(i);
    Json row = {{"stage", q},
                {"rank", split.rank_of(q)},
                {"chunk", split.chunk_of(q)},
                {"contents", contents_of(stage)},
                {"embedding", stage.embedding},
                {"first_layer", stage.first_layer},
                {"layers", stage.layers},
                {"mtp", stage.mtp},
                {"head", stage.head}};
    if (second_rank_of(scenario, q) >= 0) row["second_rank"] = second_rank_of(scenario, q);
    stages.push_back(std::move(row));
  }
  return stages;
}

struct Placed {
  Group kind;
  std::vector<std::int64_t> ranks;
};

// The groups that `rank` is in; those of experts only where the model has some.
std::vector<Placed> groups_of(const Scenario& scenario, std::int64_t rank) {
  const Grid grid = grid_of(scenario.layout);
  std::vector<Placed> groups;
  for (const Group kind : kDenseGroups) groups.push_back({kind, group_of(grid, kind, rank)});
  if (scenario.model.moe)
    for (const Group kind : kExpertGroups) groups.push_back({kind, group_of(grid, kind, rank)});
  std::erase_if(groups, [](const Placed& group) { return group.ranks.empty(); });
  return groups;
}

Json groups_json(const Scenario& scenario, std::int64_t rank) {
  Json groups = Json::array();
  for (const auto& [kind, ranks] : groups_of(scenario, rank)) {
    const Span span = span_of(ranks, scenario.cluster);
    groups.push_back({{"group", name_of(kind)},
                      {"size", span.size},
                      {"nodes", span.nodes},
                      {"domains", span.domains},
                      {"ranks_per_node", span.ranks_per_node},
                      {"ranks_per_domain", span.ranks_per_domain},
                      {"ranks", ranks}});
  }
  return groups;
}

// What the ledger has to add to the notes of the scenario.
struct Notes {
  std::vector<std::string> warnings;
  std::vector<std::string> assumptions;
};

// The ledger, or why there is none.
struct Memory {
  std::optional<MemoryReport> report;
  std::string why;
};

Memory memory_of(const Scenario& scenario, const StageSplit& split) {
  try {
    return {memory_report(scenario, split, scenario.stack), ""};
  } catch (const NotSimulated& error) {
    return {std::nullopt, error.what()};
  }
}

Notes notes_of(const Scenario& scenario, const Memory& memory) {
  Notes notes{scenario.warnings, scenario.assumptions};
  if (!memory.report) {
    notes.warnings.push_back("no memory forecast: " + memory.why);
    return notes;
  }
  for (const std::string& line : memory_warnings(*memory.report)) notes.warnings.push_back(line);
  for (const std::string& line : memory_assumptions(scenario)) notes.assumptions.push_back(line);
  return notes;
}

Json report_json(const Scenario& scenario, const StageSplit& split, const Memory& memory, std::int64_t rank) {
  Json report;
  report["schema"] = "stepcast/layout-report/1";
  report["name"] = scenario.name;
  report["layout"] = layout_json(scenario);
  report["microbatches"] = scenario.microbatches();
  report["split"] = {{"how", split.how},
                     {"layout_string", layout_string(split)},
                     {"layers_per_rank", layers_per_rank(split)},
                     {"stages", stages_json(scenario, split)}};
  report["rank"] = rank;
  report["pp_rank"] = pp_rank_of(scenario, rank);
  report["groups"] = groups_json(scenario, rank);
  if (memory.report) {
    report["fits"] = memory.report->fits();
    report["memory"] = memory_json(*memory.report);
  }
  const Notes notes = notes_of(scenario, memory);
  report["warnings"] = notes.warnings;
  report["assumptions"] = notes.assumptions;
  return report;
}

// "7, 8 x6, 6"
std::string runs_of(const std::vector<std::int64_t>& values) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < values.size();) {
    std::size_t end = i;
    while (end < values.size() && values[end] == values[i]) ++end;
    parts.push_back(end - i == 1 ? fmt::format("{}", values[i]) : fmt::format("{} x{}", values[i], end - i));
    i = end;
  }
  constexpr std::size_t kShown = 12;
  const bool cut = parts.size() > kShown;
  if (cut) parts.resize(kShown);
  return fmt::format("{}{}", fmt::join(parts, ", "), cut ? ", ..." : "");
}

// "0, 8, 16 ... 1016": the first three and the last of a long list.
std::string shortened(const std::vector<std::int64_t>& ranks) {
  if (ranks.size() <= 5) return fmt::format("{}", fmt::join(ranks, ", "));
  return fmt::format("{}, {}, {} ... {}", ranks[0], ranks[1], ranks[2], ranks.back());
}

// "3-6", "3", "-"
std::string layer_range(const Stage& stage) {
  if (stage.layers == 0) return "-";
  if (stage.layers == 1) return fmt::format("{}", stage.first_layer);
  return fmt::format("{}-{}", stage.first_layer, stage.first_layer + stage.layers - 1);
}

void print_sizes(const Scenario& s) {
  const Layout& l = s.layout;
  fmt::print("{}\n\n", s.name);
  fmt::print("{} GPUs of {}, {} a node, {} an NVLink domain\n", s.cluster.gpus, s.cluster.topology,
             s.cluster.gpus_per_node, s.cluster.gpus_per_domain);
  fmt::print("  dense    tp {:<5} cp {:<5} dp {:<5} pp {:<5} sequence parallel {}\n", l.tp, l.cp, l.dp, l.pp,
             l.sequence_parallel ? "on" : "off");
  if (s.model.moe) fmt::print("  experts  etp {:<4} ep {:<5} edp {:<4} pp {}\n", l.etp, l.ep, l.edp, l.pp);
  fmt::print("  batch    {} sequences of {} tokens = dp {} x {} micro-batches of {}\n", s.batch.global,
             s.batch.seq_len, l.dp, s.microbatches(), s.batch.micro);
  fmt::print("  pipeline {}, {} stage{} (pp {} x vpp {})\n\n", l.schedule, l.pp * l.vpp,
             l.pp * l.vpp == 1 ? "" : "s", l.pp, l.vpp);
}

void print_stages(const Scenario& scenario, const StageSplit& split) {
  fmt::print("{} layers{} over the stages: {}\n", scenario.model.layers,
             scenario.model.mtp_layers > 0 ? fmt::format(" + {} MTP", scenario.model.mtp_layers) : "",
             split.how);
  fmt::print("  layout string  {}\n", layout_string(split));
  fmt::print("  layers a rank  {}\n", runs_of(layers_per_rank(split)));
  if (scenario.layout.schedule == "dualpipe")
    fmt::print("  each stage q is held twice: by PP rank q and by PP rank {} - q\n", split.pp - 1);
  fmt::print("\n  {:>5}  {:>7}  {:>5}  {:>11}  {}\n", "stage", "PP rank", "chunk", "layers", "contents");
  const std::size_t shown = std::min(split.stages.size(), kShownStages);
  for (std::size_t i = 0; i < shown; ++i) {
    const auto q = static_cast<std::int64_t>(i);
    fmt::print("  {:>5}  {:>7}  {:>5}  {:>11}  {}\n", q, split.rank_of(q), split.chunk_of(q),
               layer_range(split.stages[i]), contents_of(split.stages[i]));
  }
  if (shown < split.stages.size())
    fmt::print("  ... {} more (all with --json)\n", split.stages.size() - shown);
}

std::string stages_of_rank(const StageSplit& split, std::int64_t pp_rank) {
  std::vector<std::int64_t> stages;
  for (std::int64_t chunk = 0; chunk < split.chunks; ++chunk)
    stages.push_back(split.stage_of(pp_rank, chunk));
  return fmt::format("stage{} {}", stages.size() == 1 ? "" : "s", shortened(stages));
}

void print_groups(const Scenario& scenario, const StageSplit& split, std::int64_t rank) {
  const std::int64_t pp_rank = pp_rank_of(scenario, rank);
  fmt::print("\nGroups of rank {}: PP rank {}, {}, node {}\n", rank, pp_rank, stages_of_rank(split, pp_rank),
             rank / std::max<std::int64_t>(1, scenario.cluster.gpus_per_node));
  fmt::print("  {:<9}  {:>6}  {:>6}  {:>11}  {:>7}  {:>9}  {}\n", "group", "size", "nodes", "NVL domains",
             "in node", "in domain", "ranks");
  for (const auto& [kind, ranks] : groups_of(scenario, rank)) {
    const Span span = span_of(ranks, scenario.cluster);
    fmt::print("  {:<9}  {:>6}  {:>6}  {:>11}  {:>7}  {:>9}  {}\n", name_of(kind), span.size, span.nodes,
               span.domains, span.ranks_per_node, span.ranks_per_domain, shortened(ranks));
  }
}

void print_memory(const Scenario& scenario, const MemoryReport& memory) {
  fmt::print("\n{}\n{}", memory_verdict(memory), memory_table(memory));
  const std::string out = ways_out(scenario, memory);
  if (!out.empty()) fmt::print("\n{}", out);
}

void print_notes(const char* title, const std::vector<std::string>& notes) {
  if (notes.empty()) return;
  fmt::print("\n{}\n", title);
  for (const std::string& note : notes) fmt::print("  {}\n", note);
}

void inspect_layout(const InspectLayoutOptions& options) {
  const Scenario scenario = load_scenario(options.scenario, options.set);
  const std::int64_t last = scenario.cluster.gpus - 1;
  if (options.rank < 0 || options.rank > last)
    throw InputError({"--rank", "", fmt::format("no rank {}", options.rank), fmt::format("0 to {}", last)});
  const StageSplit split = split_of(scenario);
  const Memory memory = memory_of(scenario, split);
  if (options.json) {
    const Json report = report_json(scenario, split, memory, options.rank);
    fmt::print("{}\n", report.dump(2, ' ', false, Json::error_handler_t::replace));
    return;
  }
  print_sizes(scenario);
  print_stages(scenario, split);
  print_groups(scenario, split, options.rank);
  if (memory.report) print_memory(scenario, *memory.report);
  const Notes notes = notes_of(scenario, memory);
  print_notes("Warnings", notes.warnings);
  print_notes("Assumptions", notes.assumptions);
}

}  // namespace

void add_inspect_layout(CLI::App& inspect, int& exit_code) {
  const auto options = std::make_shared<InspectLayoutOptions>();
  CLI::App* command =
      inspect.add_subcommand("layout", "Parallel groups, the nodes they span, pipeline stages, and memory");
  command->add_option("scenario", options->scenario, "Scenario file")->required();
  command->add_option("--set", options->set, "Change a key before reading: /layout/tp=8 (repeatable)")
      ->allow_extra_args(false);
  command->add_option("--rank", options->rank, "Show the groups of this rank")->capture_default_str();
  command->add_flag("--json", options->json, "One JSON document on stdout");
  command->footer("Example:\n  stepcast inspect layout scenarios/deepseek-v3-2048xh800.json --rank 8");
  command->callback([options, &exit_code] {
    inspect_layout(*options);
    exit_code = 0;
  });
}

}  // namespace stepcast
