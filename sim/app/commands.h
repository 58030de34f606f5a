// One function a subcommand: it declares its options and leaves the exit code of a run in `exit_code`.
// Exit codes: 0 answered, yes; 1 answered, no; 2 bad usage, bad input or an illegal layout; 3 internal error.
#pragma once

#include <CLI/CLI.hpp>

namespace stepcast {

void add_init(CLI::App& app, int& exit_code);
void add_simulate(CLI::App& app, int& exit_code);
void add_validate(CLI::App& app, int& exit_code);
void add_import(CLI::App& app, int& exit_code);
void add_export(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);

}  // namespace stepcast
