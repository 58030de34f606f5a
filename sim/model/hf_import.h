// Hugging Face config.json -> Model, by `model_type`: llama, mistral, qwen2, qwen3, mixtral, qwen2_moe,
// qwen3_moe, deepseek_v2, deepseek_v3, kimi_k2, gpt_oss, glm4_moe, olmoe, dbrx, grok-1. A table of keys for
// each, and a function for what a table cannot say. Refuses other types (listing these), and reports what it
// used and what it ignored.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "model/model.h"

namespace stepcast {

struct HfImport {
  Json model;                             // a contract model object
  std::vector<std::string> understood;    // "num_hidden_layers 61 -> layers 61"
  std::vector<std::string> ignored;       // keys that were not used; "text_config.x" when nested
  std::vector<std::string> unrecognised;  // those of them that may change parameters or FLOPs
};

// True for an object that looks like a Hugging Face config (it has model_type or architectures).
bool is_hf_config(const Json& document);

// Throws InputError with every problem found. A language model nested as `text_config` is taken from there.
// `prefix` is put before every pointer.
HfImport import_hf(const Json& config, const std::string& file, const std::string& prefix = "");

std::vector<std::string> supported_model_types();

}  // namespace stepcast
