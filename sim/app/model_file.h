// The model that a command-line argument names: a shipped model (scenarios/models), a contract model object,
// a Hugging Face config.json, or a scenario, whose model it is then.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/model.h"

namespace stepcast {

struct ModelFile {
  Model model;
  std::string file;                       // that holds the model
  std::vector<std::string> unrecognised;  // keys of a Hugging Face config that nobody here knows
  std::optional<Json> scenario;           // when the argument was one
};

// Throws InputError.
ModelFile load_model_file(const std::string& argument);

}  // namespace stepcast
