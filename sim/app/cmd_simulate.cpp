#include <fmt/format.h>

#include <chrono>

#include "app/commands.h"
#include "base/json.h"
#include "result/document.h"
#include "result/memory_view.h"

namespace stepcast {
namespace {

struct Options {
  std::string scenario;
  std::vector<std::string> sets;
  bool json = false;
};

int run(const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  const Scenario scenario = load_scenario(options.scenario, options.sets);
  const Forecast f = forecast(scenario);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  if (options.json) {
    Json document = result_document(scenario, f);
    document["run"] = run_section(f, wall.count());
    fmt::print("{}\n", document.dump(1, ' ', false, Json::error_handler_t::replace));
  } else {
    fmt::print("{}", result_text(scenario, f));
    const std::string out = ways_out(scenario, f.memory);
    if (!out.empty()) fmt::print("\n{}", out);
    fmt::print("\nsimulated {} tasks on {} ranks (folded) in {:.0f} ms\n", f.tasks, f.ranks_simulated,
               1e3 * wall.count());
  }
  return f.memory.fits() ? 0 : 1;
}

}  // namespace

void add_simulate(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("simulate", "Forecast one training step: time, memory, where it goes");
  command->add_option("SCENARIO", options->scenario, "scenario file (stepcast/scenario/1)")->required();
  command
      ->add_option("--set", options->sets, "change a key: /pointer=value (JSON, else a string); repeatable")
      ->type_name("/pointer=value")
      ->allow_extra_args(false);
  command->add_flag("--json", options->json, "print the result document (stepcast/result/1)");
  command->footer(
      "Example: stepcast simulate scenarios/moe-1.8t-1024xh100.json --set /batch/global=4096\n"
      "Exit code: 0 fits, 1 does not fit, 2 bad input or an illegal layout.");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace stepcast
