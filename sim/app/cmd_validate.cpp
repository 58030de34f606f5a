#include <fmt/format.h>
#include <unistd.h>

#include <atomic>

#include "app/commands.h"
#include "observe/validate.h"

namespace stepcast {
namespace {

struct Options {
  std::vector<std::string> files;
  bool json = false;
  int threads = 0;
  double max_mean_error = -1;
};

int run(const Options& options) {
  const std::vector<std::filesystem::path> files(options.files.begin(), options.files.end());
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto outcomes = validate_runs(files, options.threads, [&](std::size_t done, std::size_t all) {
    if (terminal && (done % 16 == 0 || done == all)) fmt::print(stderr, "\r{} of {} runs", done, all);
  });
  if (terminal) fmt::print(stderr, "\r{:40}\r", "");
  const Json document = validation_document(outcomes);
  if (options.json)
    fmt::print("{}\n", document.dump(1, ' ', false, Json::error_handler_t::replace));
  else
    fmt::print("{}", validation_text(outcomes, document));
  const double error = document["summary"]["mean_abs_error"];
  const bool nothing = document["summary"]["n"] == 0;  // a bound that no run was held against is not met
  return options.max_mean_error >= 0 && (nothing || error > options.max_mean_error) ? 1 : 0;
}

}  // namespace

void add_validate(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("validate", "Forecasts against published or own runs: the error table");
  command->add_option("FILE", options->files, "runs (stepcast/runs/1)")->required();
  command->add_flag("--json", options->json, "print the validation document (stepcast/validation/1)");
  command->add_option("--threads", options->threads, "threads to use (0 = all)")->check(CLI::Range(0, 1024));
  command
      ->add_option("--max-mean-error", options->max_mean_error,
                   "exit with 1 when the mean error is above this fraction")
      ->check(CLI::Range(0.0, 1e9));
  command->footer(
      "Example: stepcast validate scenarios/published/*.json --max-mean-error 0.2\n"
      "Exit code: 0, or 1 when the mean error is above --max-mean-error.");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace stepcast
