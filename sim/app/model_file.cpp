#include "app/model_file.h"

#include <filesystem>

#include "base/data_folder.h"
#include "base/schema.h"
#include "model/hf_import.h"

namespace stepcast {
namespace fs = std::filesystem;
namespace {

constexpr const char* kModels = "scenarios/models";

bool is_scenario(const Json& document) {
  if (!document.is_object()) return false;
  if (document.contains("schema")) return document["schema"] == "stepcast/scenario/1";
  return document.contains("model") && document.contains("cluster");
}

void read_object(const Json& object, const std::string& prefix, ModelFile& result) {
  std::vector<Problem> problems;
  if (is_hf_config(object)) {
    const HfImport import = import_hf(object, result.file, prefix);
    result.unrecognised = import.unrecognised;
    result.model = read_model(import.model, result.file, prefix, problems);
  } else {
    result.model = read_model(object, result.file, prefix, problems);
  }
  throw_if_any(problems);
  if (result.model.name.empty()) result.model.name = fs::path(result.file).stem().string();
}

void read_scenario_model(const Json& scenario, const fs::path& folder, ModelFile& result) {
  std::vector<Problem> problems;
  check_schema(scenario, "scenario", result.file, "", problems);
  throw_if_any(problems);
  result.scenario = scenario;
  const Json& model = scenario["model"];
  if (model.is_object()) return read_object(model, "/model", result);
  const fs::path path = resolve_data(model.get<std::string>(), kModels, folder, result.file, "/model");
  result.file = path.string();
  read_object(load_json(path), "", result);
}

}  // namespace

ModelFile load_model_file(const std::string& argument) {
  const fs::path path = resolve_data(argument, kModels, fs::current_path(), argument, "");
  ModelFile result;
  result.file = path.string();
  const Json document = load_json(path);
  if (is_scenario(document))
    read_scenario_model(document, path.parent_path(), result);
  else
    read_object(document, "", result);
  return result;
}

}  // namespace stepcast
