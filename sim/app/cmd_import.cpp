// `stepcast import`: other tools' files -> ours, and what was understood.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "app/commands.h"
#include "app/import_megatron.h"
#include "base/json.h"
#include "model/hf_import.h"

namespace stepcast {
namespace {

struct HfOptions {
  std::string file;
  std::string output;
  bool json = false;
};

Json import_json(const HfImport& import, const std::string& file) {
  Json ignored = Json::array();
  for (const std::string& key : import.ignored) ignored.push_back({{"what", key}, {"count", 1}});
  return {{"schema", "stepcast/import/1"},
          {"kind", "hf"},
          {"file", file},
          {"document", import.model},
          {"understood", import.understood},
          {"ignored", ignored},
          {"unrecognised", import.unrecognised}};
}

void print_import(const HfImport& import, const HfOptions& options) {
  fmt::print("Understood\n");
  for (const std::string& line : import.understood) fmt::print("  {}\n", line);
  fmt::print("\nIgnored\n");
  for (const std::string& key : import.ignored) {
    const auto& unknown = import.unrecognised;
    const bool known = std::find(unknown.begin(), unknown.end(), key) == unknown.end();
    fmt::print("  {}{}\n", key, known ? "" : "  (not recognised: the model may differ)");
  }
  if (options.output.empty())
    fmt::print("\nModel\n{}\n", import.model.dump(2));
  else
    fmt::print("\nWritten to {}\n", options.output);
}

void import_hf_file(const HfOptions& options) {
  const HfImport import = import_hf(load_json(options.file), options.file);
  if (!options.output.empty()) write_file(options.output, import.model.dump(2) + "\n");
  if (options.json)
    fmt::print("{}\n", import_json(import, options.file).dump(2, ' ', false, Json::error_handler_t::replace));
  else
    print_import(import, options);
}

void add_import_hf(CLI::App& import, int& exit_code) {
  const auto options = std::make_shared<HfOptions>();
  CLI::App* command = import.add_subcommand("hf", "A Hugging Face config.json -> a model object");
  command->add_option("file", options->file, "The config.json")->required();
  command->add_option("-o,--output", options->output, "Write the model object here");
  command->add_flag("--json", options->json, "One JSON document on stdout");
  command->footer("Example:\n  stepcast import hf tests/data/hf/deepseek_v3.json");
  command->callback([options, &exit_code] {
    import_hf_file(*options);
    exit_code = 0;
  });
}

}  // namespace

void add_import(CLI::App& app, int& exit_code) {
  CLI::App* import = app.add_subcommand("import", "Read another tool's file");
  import->require_subcommand(1);
  import->footer("Example:\n  stepcast import hf tests/data/hf/deepseek_v3.json");
  add_import_hf(*import, exit_code);
  add_import_megatron(*import, exit_code);
}

}  // namespace stepcast
