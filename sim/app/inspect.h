// The subcommands of `stepcast inspect`, each in a file of its own.
#pragma once

#include <CLI/CLI.hpp>

namespace stepcast {

void add_inspect_model(CLI::App& inspect, int& exit_code);
void add_inspect_layout(CLI::App& inspect, int& exit_code);

}  // namespace stepcast
