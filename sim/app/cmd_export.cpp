// `stepcast export`: ours -> launch arguments.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "app/commands.h"
#include "base/json.h"
#include "layout/launch_line.h"
#include "layout/megatron_scenario.h"
#include "layout/rules.h"
#include "layout/scenario.h"
#include "layout/scenario_pointer.h"

namespace stepcast {
namespace {

struct Options {
  std::string file;
  std::vector<std::string> assignments;
  std::string format = "shell";
  std::string output;
  bool json = false;
};

MegatronArguments arguments_of(const Scenario& scenario) {
  std::vector<Problem> problems;
  MegatronArguments arguments = launch_arguments(scenario, problems);
  for (const Violation& v : check_rules(arguments))
    problems.push_back(
        {scenario.file, scenario_pointer(v.option), fmt::format("{} (rule {})", v.found, v.rule), v.allowed});
  throw_if_any(problems);
  return arguments;
}

Json export_json(const Options& options, const MegatronArguments& arguments, const std::string& text) {
  Json flags = Json::object();
  for (const FlagWords& flag : launch_flags(arguments)) {
    Json& value = flags[flag.flag];
    if (flag.words.empty())
      value = true;
    else if (flag.words.size() == 1)
      value = flag.words[0];
    else
      value = flag.words;
  }
  return {{"schema", "stepcast/export/1"},
          {"kind", "megatron"},
          {"file", options.file},
          {"arguments", flags},
          {"environment", launch_environment(arguments)},
          {"launch", text}};
}

void run(const Options& options) {
  const Scenario scenario = load_scenario(options.file, options.assignments);
  const MegatronArguments arguments = arguments_of(scenario);
  const std::string text =
      options.format == "yaml" ? yaml_file(arguments) : shell_line(arguments, scenario.cluster.gpus_per_node);
  if (!options.output.empty()) write_file(options.output, text);
  if (options.json)
    fmt::print("{}\n",
               export_json(options, arguments, text).dump(2, ' ', false, Json::error_handler_t::replace));
  else if (options.output.empty())
    fmt::print("{}", text);
  else
    fmt::print("written to {}\n", options.output);
}

void add_export_megatron(CLI::App& parent, int& exit_code) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = parent.add_subcommand("megatron", "Launch arguments of Megatron-LM");
  command->add_option("scenario", options->file, "The scenario")->required();
  command->add_option("--set", options->assignments, "/pointer=value: change the scenario; may be repeated");
  command->add_option("--format", options->format, "shell or yaml")->check(CLI::IsMember({"shell", "yaml"}));
  command->add_option("-o,--output", options->output, "Write the text here instead of to stdout");
  command->add_flag("--json", options->json, "One JSON document on stdout");
  command->footer("Example:\n  stepcast export megatron scenarios/moe-1.8t-1024xh100.json");
  command->callback([options, &exit_code] {
    run(*options);
    exit_code = 0;
  });
}

}  // namespace

void add_export(CLI::App& app, int& exit_code) {
  CLI::App* parent = app.add_subcommand("export", "Write launch arguments for a scenario");
  parent->require_subcommand(1);
  parent->footer("Example:\n  stepcast export megatron scenarios/moe-1.8t-1024xh100.json");
  add_export_megatron(*parent, exit_code);
}

}  // namespace stepcast
