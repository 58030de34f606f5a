// A scenario <-> Megatron's launch options. What one side cannot say is named, never dropped in silence.
//   scenario -> arguments   for the rules and for `export megatron`
//   arguments -> scenario   for `import megatron`
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "layout/megatron_arguments.h"
#include "layout/scenario.h"

namespace stepcast {

// The launch options behind a scenario. A split that no option but a layout string expresses is left open
// (even_split_required false); `with_split` writes it.
MegatronArguments megatron_arguments(const Scenario& scenario);

// The same with the split over stages said in options, for a launch line. Appends to `problems` (with the
// scenario's pointers) what Megatron has no option for.
MegatronArguments launch_arguments(const Scenario& scenario, std::vector<Problem>& problems);

// The layout string of the split that the options ask for, whichever of them says it; empty for one stage, or
// when the layers do not divide.
std::string split_string(const MegatronArguments& arguments);

// Which layers have experts, as moe_layer_freq says; empty when it is malformed or of another length.
std::vector<bool> moe_pattern(const MegatronArguments& arguments);

struct ImportedScenario {
  Json document;                   // stepcast/scenario/1; unfilled values as text, unknown ones left out
  std::vector<std::string> notes;  // what was assumed, and what the scenario cannot say
};

// Throws InputError when the arguments describe a model that a scenario cannot (a pattern of MoE layers).
ImportedScenario scenario_of(const MegatronArguments& arguments, const std::string& file,
                             const std::string& topology);

// Rows of the vocabulary of a tokenizer by name (scenarios/tokenizers/tokenizers.json); 0 when it is not known.
std::int64_t tokenizer_vocab(const std::string& tokenizer_model);

}  // namespace stepcast
