#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <stdexcept>

#include "app/commands.h"
#include "base/problem.h"

#ifndef STEPCAST_VERSION
#define STEPCAST_VERSION "unknown"
#define STEPCAST_BUILD "unknown"
#endif

int main(int argc, char** argv) {
  CLI::App app{"stepcast forecasts a training step before you book the cluster.", "stepcast"};
  app.set_version_flag("--version", STEPCAST_VERSION " (" STEPCAST_BUILD ")");
  app.require_subcommand(1);
  app.footer("Example: stepcast simulate scenarios/moe-1.8t-1024xh100.json");
  int exit_code = 0;
  try {
    stepcast::add_simulate(app, exit_code);
    stepcast::add_validate(app, exit_code);
    stepcast::add_inspect(app, exit_code);
    stepcast::add_import(app, exit_code);
    stepcast::add_export(app, exit_code);
    stepcast::add_init(app, exit_code);
    app.parse(argc, argv);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      throw std::runtime_error("the answer could not be written");
    return exit_code;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    fmt::print(stderr, "error: {}; see stepcast --help, or stepcast SUBCOMMAND --help\n", error.what());
    return 2;
  } catch (const stepcast::InputError& error) {
    for (const auto& problem : error.problems())
      fmt::print(stderr, "error: {}\n", stepcast::to_string(problem));
    for (const auto& hint : error.hints()) fmt::print(stderr, "hint: {}\n", hint);
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: internal: {}\n", error.what());
    return 3;
  }
}
