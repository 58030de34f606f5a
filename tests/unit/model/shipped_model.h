// Models of scenarios/models, for the tests of sim/model.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/model.h"

namespace stepcast::testing {

inline std::filesystem::path source_folder() { return STEPCAST_SOURCE_DIR; }

inline Model model_of(const Json& object) {
  std::vector<Problem> problems;
  Model model = read_model(object, "test", "", problems);
  throw_if_any(problems);
  return model;
}

inline Json shipped_json(const std::string& name) {
  return load_json(source_folder() / "scenarios" / "models" / (name + ".json"));
}

inline Model shipped_model(const std::string& name) { return model_of(shipped_json(name)); }

}  // namespace stepcast::testing
