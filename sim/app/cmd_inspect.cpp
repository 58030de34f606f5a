// `stepcast inspect`: what an input says, without simulating.
#include "app/commands.h"
#include "app/inspect.h"

namespace stepcast {

void add_inspect(CLI::App& app, int& exit_code) {
  CLI::App* inspect = app.add_subcommand("inspect", "Show what a model or a layout is, without simulating");
  inspect->require_subcommand(1);
  inspect->footer("Example:\n  stepcast inspect model deepseek-v3");
  add_inspect_model(*inspect, exit_code);
  add_inspect_layout(*inspect, exit_code);
}

}  // namespace stepcast
