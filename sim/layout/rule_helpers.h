// What the rules share: arithmetic that neither overflows nor divides by zero, sizes that follow from others,
// and the text of messages. For rules_*.cpp and nearest.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "layout/megatron_arguments.h"
#include "layout/rules.h"

namespace stepcast {

using Violations = std::vector<Violation>;

inline constexpr std::int64_t kMaxRuleSize = 1'000'000'000;  // of anything a rule looks at

// The product, or the largest number when it would overflow.
std::int64_t product(std::initializer_list<std::int64_t> factors);

// The divisors of n > 0 that `suits`, ascending; those below 1e6 and their cofactors.
std::vector<std::int64_t> divisors_of(std::int64_t n);

// The same as text, at most 16 of them: "1, 2, 4, 8".
std::string divisors(std::int64_t n, const std::function<bool(std::int64_t)>& suits = {});

// The multiples of `unit` next to n, none below `unit`: "96 or 128".
std::string nearest_multiples(std::int64_t n, std::int64_t unit);

// GPUs that share one weight beyond TP (GTP); 1 when the number of shards is no multiple of TP (rule 1).
std::int64_t weight_shards_beyond_tp(const MegatronArguments& arguments);
std::int64_t expert_shards_beyond_etp(const MegatronArguments& arguments);

std::int64_t dense_ranks(const MegatronArguments& arguments);   // tp cp pp gtp
std::int64_t expert_ranks(const MegatronArguments& arguments);  // etp ep pp egtp

// Absent when the GPUs are unknown or do not divide.
std::optional<std::int64_t> data_parallel_size(const MegatronArguments& arguments);
std::optional<std::int64_t> expert_data_parallel_size(const MegatronArguments& arguments);
std::optional<std::int64_t> sequences_at_once(const MegatronArguments& arguments);  // b dp gtp
std::optional<std::int64_t> microbatches(const MegatronArguments& arguments);       // absent also by rule 11

// Virtual stages run in Megatron's own interleaved order.
bool megatron_order(const MegatronArguments& arguments);

// The options whose value nobody filled in, as names of fields.
std::vector<std::string> unfilled_fields(const MegatronArguments& arguments);

bool any_fsdp(const MegatronArguments& arguments);

// Layers and what counts as a layer: "62 layers + embedding + loss".
std::int64_t counted_layers(const MegatronArguments& arguments);
std::string counted_layers_text(const MegatronArguments& arguments);

// The option that sets the virtual stages.
std::string virtual_stages_option(const MegatronArguments& arguments);

}  // namespace stepcast
