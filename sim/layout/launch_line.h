// Launch arguments of Megatron as people keep them -> MegatronArguments: a shell line or script
// (torchrun ... pretrain_gpt.py --flag value), YAML (ENV_VARS and ARGS or MODEL_ARGS, or flags alone), or the
// dump of all arguments that Megatron prints into its log ("  num_layers ........ 61").
//
// Nothing is executed. ${VAR}, $VAR and ${VAR:-default} are filled in from `environment`, then from assignments
// in the file; what nobody fills in is kept as text (MegatronArguments::unfilled). A value that is false or
// empty after filling in counts as not given, as in the launchers that use such files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "layout/megatron_arguments.h"

namespace stepcast {

using Environment = std::map<std::string, std::string>;

struct LaunchLine {
  MegatronArguments arguments;
  std::vector<std::string> understood;      // "--num-layers 61"
  std::vector<std::string> without_effect;  // known, and without effect on a forecast
  std::vector<std::string> unrecognised;    // unknown, or known and not expressible: the forecast may be off
  std::vector<std::string> unfilled;        // "${TP} (--tensor-model-parallel-size)"
  std::size_t dumped = 0;                   // lines of a dump that say nothing of these
};

// Throws InputError with every problem: a file that cannot be read, holds no arguments or is no YAML; a value
// of the wrong kind.
LaunchLine read_launch_line(const std::filesystem::path& file, const Environment& environment = {});

// The same for text that stands for a file called `name`.
LaunchLine parse_launch_line(const std::string& text, const std::string& name,
                             const Environment& environment = {});

// Adds NAME=VALUE, or the assignments of a file of them (comments and `export` allowed), to `environment`.
// Throws InputError.
void add_environment(const std::string& file_or_assignment, Environment& environment);

// The arguments as flags and their words, in the table's order, those at Megatron's defaults left out.
struct FlagWords {
  std::string flag;  // "--num-layers"
  std::vector<std::string> words;
};
std::vector<FlagWords> launch_flags(const MegatronArguments& arguments);

// Variables the run should be started with, and why they matter is in docs/megatron.md.
Environment launch_environment(const MegatronArguments& arguments);

// A line to paste: variables, torchrun and the flags; `gpus_per_node` for torchrun.
std::string shell_line(const MegatronArguments& arguments, std::int64_t gpus_per_node);

// The same as a YAML file with ENV_VARS and ARGS.
std::string yaml_file(const MegatronArguments& arguments);

}  // namespace stepcast
