// `stepcast import megatron FILE`: Megatron launch arguments -> a scenario.
#pragma once

#include <CLI/CLI.hpp>

namespace stepcast {

void add_import_megatron(CLI::App& import, int& exit_code);

}  // namespace stepcast
