#include "layout/rule_helpers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>

namespace stepcast {
namespace {

constexpr std::int64_t kMaxDivisor = 1'000'000;  // bounds the search for divisors

// shards / size where that is whole.
std::int64_t beyond(const std::optional<std::int64_t>& shards, std::int64_t size) {
  if (!shards || size < 1 || *shards < size || *shards % size != 0) return 1;
  return *shards / size;
}

// "--tensor-model-parallel-size" and "tensor_model_parallel_size" -> the latter; flags whose field has another
// name -> the field.
std::string field_of(const std::string& flag) {
  std::string field = flag.substr(std::min(flag.size(), flag.find_first_not_of('-')));
  std::replace(field.begin(), field.end(), '-', '_');
  static const std::map<std::string, std::string> renamed = {
      {"microbatch_group_size_per_virtual_pipeline_stage", "microbatch_group_size_per_vp_stage"},
      {"fp8_format", "fp8"},
      {"fp4_format", "fp4"},
      {"fp8_param_gather", "fp8_param"},
      {"fp4_param_gather", "fp4_param"},
      {"moe_router_load_balancing", "moe_router_load_balancing_type"}};
  const auto other = renamed.find(field);
  return other == renamed.end() ? field : other->second;
}

std::optional<std::int64_t> quotient(std::int64_t gpus, std::int64_t ranks) {
  if (gpus < 1 || ranks < 1 || gpus % ranks != 0) return std::nullopt;
  return gpus / ranks;
}

}  // namespace

std::int64_t product(std::initializer_list<std::int64_t> factors) {
  std::int64_t result = 1;
  for (const std::int64_t factor : factors)
    if (__builtin_mul_overflow(result, factor, &result)) return std::numeric_limits<std::int64_t>::max();
  return result;
}

std::vector<std::int64_t> divisors_of(std::int64_t n) {
  std::vector<std::int64_t> small;
  std::vector<std::int64_t> large;
  for (std::int64_t d = 1; d <= std::min(n / d, kMaxDivisor); ++d) {
    if (n % d != 0) continue;
    small.push_back(d);
    if (d != n / d) large.push_back(n / d);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

std::string divisors(std::int64_t n, const std::function<bool(std::int64_t)>& suits) {
  std::vector<std::int64_t> shown = divisors_of(n);
  if (suits) std::erase_if(shown, [&](std::int64_t d) { return !suits(d); });
  constexpr std::size_t kShown = 16;
  const bool cut = shown.size() > kShown;
  if (cut) shown.resize(kShown);
  return fmt::format("{}{}", fmt::join(shown, ", "), cut ? ", ..." : "");
}

std::string nearest_multiples(std::int64_t n, std::int64_t unit) {
  const std::int64_t below = n / unit * unit;
  if (below == 0) return fmt::format("{}", unit);
  return fmt::format("{} or {}", below, below + unit);
}

std::int64_t weight_shards_beyond_tp(const MegatronArguments& arguments) {
  return beyond(arguments.tensor_parallel_num_weight_shards, arguments.tp());
}

std::int64_t expert_shards_beyond_etp(const MegatronArguments& arguments) {
  return beyond(arguments.expert_tensor_parallel_num_weight_shards, arguments.etp());
}

std::int64_t dense_ranks(const MegatronArguments& arguments) {
  return product({arguments.tp(), arguments.context_parallel_size, arguments.pipeline_model_parallel_size,
                  weight_shards_beyond_tp(arguments)});
}

std::int64_t expert_ranks(const MegatronArguments& arguments) {
  return product({arguments.etp(), arguments.expert_model_parallel_size,
                  arguments.pipeline_model_parallel_size, expert_shards_beyond_etp(arguments)});
}

std::optional<std::int64_t> data_parallel_size(const MegatronArguments& arguments) {
  return quotient(arguments.world_size, dense_ranks(arguments));
}

std::optional<std::int64_t> expert_data_parallel_size(const MegatronArguments& arguments) {
  return quotient(arguments.world_size, expert_ranks(arguments));
}

std::optional<std::int64_t> sequences_at_once(const MegatronArguments& arguments) {
  const std::optional<std::int64_t> dp = data_parallel_size(arguments);
  if (!dp || arguments.micro_batch_size < 1) return std::nullopt;
  return product({arguments.micro_batch_size, *dp, weight_shards_beyond_tp(arguments)});
}

std::optional<std::int64_t> microbatches(const MegatronArguments& arguments) {
  const std::optional<std::int64_t> unit = sequences_at_once(arguments);
  if (!unit) return std::nullopt;
  const std::int64_t batch = arguments.global_batch_size.value_or(*unit);
  if (batch < *unit) return std::nullopt;
  if (batch % *unit != 0 && !arguments.decrease_batch_size_if_needed) return std::nullopt;
  return batch / *unit;
}

bool megatron_order(const MegatronArguments& arguments) {
  const std::string& schedule = arguments.schedule;
  if (arguments.enable_zero_bubble && arguments.zero_bubble_v_schedule) return false;
  return schedule.empty() || schedule == "interleaved" || schedule == "1f1b";
}

std::vector<std::string> unfilled_fields(const MegatronArguments& arguments) {
  std::vector<std::string> fields;
  for (const auto& entry : arguments.unfilled) fields.push_back(field_of(entry.first));
  return fields;
}

bool any_fsdp(const MegatronArguments& arguments) {
  return arguments.use_megatron_fsdp || arguments.use_torch_fsdp2;
}

std::int64_t counted_layers(const MegatronArguments& arguments) {
  return arguments.num_layers + (arguments.account_for_embedding_in_pipeline_split ? 1 : 0) +
         (arguments.account_for_loss_in_pipeline_split ? 1 : 0);
}

std::string counted_layers_text(const MegatronArguments& arguments) {
  return fmt::format("{} layers{}{}", arguments.num_layers,
                     arguments.account_for_embedding_in_pipeline_split ? " + embedding" : "",
                     arguments.account_for_loss_in_pipeline_split ? " + loss" : "");
}

std::string virtual_stages_option(const MegatronArguments& arguments) {
  if (!arguments.pipeline_model_parallel_layout.empty()) return "pipeline_model_parallel_layout";
  if (!arguments.num_virtual_stages_per_pipeline_rank && arguments.num_layers_per_virtual_pipeline_stage)
    return "num_layers_per_virtual_pipeline_stage";
  return "num_virtual_stages_per_pipeline_rank";
}

}  // namespace stepcast
