// The table of Megatron's flags behind MegatronArguments (domain: argparse names of megatron/training/arguments.py
// and those generated from configuration fields; `foo_bar` <-> `--foo-bar`). Setting a field from the text of a
// flag, and back: `set_flag` restores what `flag_words` gives.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "layout/megatron_arguments.h"

namespace stepcast {

using FlagField =
    std::variant<std::int64_t MegatronArguments::*, std::optional<std::int64_t> MegatronArguments::*,
                 double MegatronArguments::*, std::optional<double> MegatronArguments::*,
                 bool MegatronArguments::*, std::string MegatronArguments::*,
                 std::vector<std::string> MegatronArguments::*,
                 std::vector<std::int64_t> MegatronArguments::*>;

struct Flag {
  std::string_view
      name;  // without the dashes; "no-..." and "disable-..." clear a field that is on by default
  std::string_view field;  // Megatron's name of the argument, as in the dump of a log
  FlagField member;
};

std::span<const Flag> megatron_flags();

// By name or field, with dashes or underscores; older and deprecated spellings too. Null when there is none.
const Flag* find_flag(std::string_view name);

// True when the flag stands alone (its presence is its value).
bool is_switch(const Flag& flag);
// True for a switch that clears its field, such as --disable-bias-linear.
bool is_negative(const Flag& flag);

// Sets the field from the words that follow the flag (none: a bare switch). Empty on success, else what would
// be right, "a whole number".
std::string set_flag(MegatronArguments& arguments, const Flag& flag, const std::vector<std::string>& words);

// Whether the field has Megatron's default.
bool at_default(const MegatronArguments& arguments, const Flag& flag);

// The words that set the field to its value: none for a bare switch. The field must have a value.
std::vector<std::string> flag_words(const MegatronArguments& arguments, const Flag& flag);

// Known options that change neither memory, nor time, nor whether a layout is legal (learning rate, logging,
// data, checkpoints).
bool has_no_effect(std::string_view name);

}  // namespace stepcast
