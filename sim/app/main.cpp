#include <fmt/format.h>

#include <exception>

#include "app/commands.h"
#include "base/problem.h"

#ifndef STEPCAST_VERSION
#define STEPCAST_VERSION "unknown"
#endif

int main(int argc, char** argv) {
  CLI::App app{"stepcast forecasts a training step before you book the cluster.", "stepcast"};
  app.set_version_flag("--version", STEPCAST_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  try {
    stepcast::add_simulate(app, exit_code);
    stepcast::add_validate(app, exit_code);
    stepcast::add_inspect(app, exit_code);
    stepcast::add_import(app, exit_code);
    stepcast::add_init(app, exit_code);
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    const bool asked = error.get_exit_code() == 0;  // --help, --version
    app.exit(error);
    return asked ? 0 : 2;
  } catch (const stepcast::InputError& error) {
    for (const auto& problem : error.problems()) fmt::print(stderr, "error: {}\n", stepcast::to_string(problem));
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: internal: {}\n", error.what());
    return 3;
  }
}
