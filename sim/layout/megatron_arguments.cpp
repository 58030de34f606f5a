#include "layout/megatron_arguments.h"

#include <algorithm>

#include "layout/stage_split.h"

namespace stepcast {
namespace {

std::int64_t stages_of_string(const std::string& layout) {
  std::vector<Problem> problems;
  return static_cast<std::int64_t>(expand_layout_string(layout, "", "", problems).size());
}

}  // namespace

bool MegatronArguments::recomputes(const std::string& module) const {
  if (recompute_granularity != "selective") return false;
  if (recompute_modules.empty()) return module == "core_attn";
  return std::find(recompute_modules.begin(), recompute_modules.end(), module) != recompute_modules.end();
}

std::int64_t virtual_stages(const MegatronArguments& arguments) {
  const MegatronArguments& a = arguments;
  const std::int64_t pp = std::max<std::int64_t>(1, a.pipeline_model_parallel_size);
  if (!a.pipeline_model_parallel_layout.empty())
    return std::max<std::int64_t>(1, stages_of_string(a.pipeline_model_parallel_layout) / pp);
  if (a.num_virtual_stages_per_pipeline_rank)
    return std::max<std::int64_t>(1, *a.num_virtual_stages_per_pipeline_rank);
  const std::int64_t layers = a.num_layers_per_virtual_pipeline_stage.value_or(0);
  if (layers < 1) return 1;
  const std::int64_t counted =
      (a.account_for_embedding_in_pipeline_split ? 1 : 0) + (a.account_for_loss_in_pipeline_split ? 1 : 0);
  constexpr std::int64_t kMost = 1'000'000'000'000;  // keeps the sum in range
  return std::max<std::int64_t>(1, (std::min(a.num_layers, kMost) + counted) / pp / layers);
}

}  // namespace stepcast
