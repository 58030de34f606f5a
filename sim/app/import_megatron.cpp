#include "app/import_megatron.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "layout/launch_line.h"
#include "layout/megatron_flags.h"
#include "layout/megatron_scenario.h"
#include "layout/nearest.h"
#include "layout/rules.h"
#include "layout/scenario.h"
#include "topology/topology.h"

namespace stepcast {
namespace {

struct Options {
  std::string file;
  std::int64_t gpus = 0;
  std::string topology;
  std::vector<std::string> environment;
  std::string output;
  bool json = false;
};

struct Import {
  LaunchLine line;
  ImportedScenario scenario;
  std::vector<std::string> warnings;
  std::vector<Problem> refused;  // what Megatron's own checks would refuse
};

LaunchLine read_line(const Options& options) {
  Environment environment;
  for (const std::string& entry : options.environment) add_environment(entry, environment);
  LaunchLine line = read_launch_line(options.file, environment);
  if (options.gpus > 0) line.arguments.world_size = options.gpus;
  return line;
}

void know_the_gpu(const Options& options, MegatronArguments& arguments) {
  if (options.topology.empty()) return;
  std::vector<Problem> problems;
  const Json object = {{"topology", options.topology},
                       {"gpus", std::max<std::int64_t>(1, arguments.world_size)}};
  const Cluster cluster = read_cluster(object, "--topology", problems, std::filesystem::current_path());
  throw_if_any(problems);
  arguments.compute_capability = cluster.gpu.compute_capability;
}

// The rules' words, by flag.
std::string said(const Violation& violation) {
  const Flag* flag = find_flag(violation.option);
  return flag == nullptr ? violation.option : fmt::format("--{}", flag->name);
}

std::vector<Problem> broken_rules(const Options& options, const MegatronArguments& arguments) {
  std::vector<Problem> problems;
  for (const Violation& v : check_rules(arguments))
    problems.push_back({options.file, said(v), fmt::format("{} (rule {})", v.found, v.rule), v.allowed});
  return problems;
}

void throw_if_refused(const Import& import) {
  if (import.refused.empty()) return;
  std::vector<std::string> hints;
  const std::string nearest = nearest_legal_text(import.line.arguments);
  if (!nearest.empty()) hints.push_back("nearest legal layouts: " + nearest);
  throw InputError(import.refused, hints);
}

bool is_complete(const Json& document, const LaunchLine& line) {
  return line.arguments.unfilled.empty() && document["cluster"].contains("topology") &&
         document["cluster"].contains("gpus") && document["model"].contains("vocab") &&
         document["batch"].contains("global");
}

Import import_file(const Options& options) {
  Import import;
  import.line = read_line(options);
  know_the_gpu(options, import.line.arguments);
  import.refused = broken_rules(options, import.line.arguments);
  import.warnings = rule_warnings(import.line.arguments);
  import.scenario = scenario_of(import.line.arguments, options.file, options.topology);
  if (import.refused.empty() && is_complete(import.scenario.document, import.line))
    read_scenario(import.scenario.document, options.file, "", std::filesystem::current_path());
  return import;
}

Json import_json(const Import& import, const Options& options) {
  Json ignored = Json::array();
  for (const auto* list : {&import.line.without_effect, &import.line.unrecognised})
    for (const std::string& what : *list) ignored.push_back({{"what", what}, {"count", 1}});
  if (import.line.dumped > 0)
    ignored.push_back({{"what", "other lines of the dump"}, {"count", import.line.dumped}});
  Json refused = Json::array();
  for (const Problem& problem : import.refused)
    refused.push_back(fmt::format("{}: {}; {}", problem.pointer, problem.found, problem.allowed));
  return {{"schema", "stepcast/import/1"},
          {"kind", "megatron"},
          {"file", options.file},
          {"document", import.scenario.document},
          {"understood", import.line.understood},
          {"ignored", ignored},
          {"unrecognised", import.line.unrecognised},
          {"unfilled", import.line.unfilled},
          {"notes", import.scenario.notes},
          {"warnings", import.warnings},
          {"refused", refused}};
}

void print_list(const char* title, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  fmt::print("{}\n", title);
  for (const std::string& line : lines) fmt::print("  {}\n", line);
  fmt::print("\n");
}

void print_import(const Import& import, const Options& options) {
  print_list("Understood", import.line.understood);
  print_list("Ignored: without effect on a forecast", import.line.without_effect);
  print_list("Not recognised: the forecast may differ", import.line.unrecognised);
  print_list("Variables that nobody filled in (--env NAME=VALUE does)", import.line.unfilled);
  print_list("Assumed", import.scenario.notes);
  print_list("Warnings", import.warnings);
  if (options.output.empty())
    fmt::print("Scenario\n{}\n",
               import.scenario.document.dump(2, ' ', false, Json::error_handler_t::replace));
  else
    fmt::print("Written to {}\n", options.output);
}

// A line that Megatron refuses is read all the same, so that it can be mended; the exit code says that it is refused.
void run(const Options& options) {
  const Import import = import_file(options);
  const auto dump = [](const Json& json) {
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  };
  if (!options.output.empty()) write_file(options.output, dump(import.scenario.document));
  if (options.json)
    fmt::print("{}", dump(import_json(import, options)));
  else
    print_import(import, options);
  throw_if_refused(import);
}

}  // namespace

void add_import_megatron(CLI::App& import, int& exit_code) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = import.add_subcommand(
      "megatron", "Megatron launch arguments (shell, YAML, or the arguments dump of a log) -> a scenario");
  command->add_option("file", options->file, "The launch script, YAML file or log")->required();
  command->add_option("--gpus", options->gpus, "GPUs of the job: the arguments do not say")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1048576}));
  command->add_option("--topology", options->topology, "The cluster: a name under topologies/, or a path");
  command->add_option("--env", options->environment,
                      "NAME=VALUE, or a file of such lines, to fill in ${NAME}; may be repeated");
  command->add_option("-o,--output", options->output, "Write the scenario here");
  command->add_flag("--json", options->json, "One JSON document on stdout");
  command->footer(
      "Example:\n  stepcast import megatron tests/data/megatron/deepseek_v3.yaml --gpus 1024 --topology "
      "dgx-h100");
  command->callback([options, &exit_code] {
    run(*options);
    exit_code = 0;
  });
}

}  // namespace stepcast
