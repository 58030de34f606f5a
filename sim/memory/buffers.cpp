#include "memory/buffers.h"

#include <algorithm>
#include <string_view>

#include "memory/activations.h"
#include "memory/states.h"

namespace stepcast {
namespace {

double d(std::int64_t value) { return static_cast<double>(value); }

constexpr std::int64_t kDeepEpSms = 20;                      // Megatron's default (token_dispatcher.py)
constexpr std::int64_t kRanksPerNvlink = 8;                  // of DeepEP's hierarchy
constexpr std::string_view kPlaceholders = "2025-06";        // software with Transformer Engine 2.3
constexpr std::string_view kExpertPlaceholders = "2026-01";  // 2.10: of grouped GEMMs too
constexpr double kTpOverlapBuffers = 4;  // GEMMs with a user buffer: QKV, projection, FC1, FC2

// Whether software of `date` (YYYY-MM, YYYY = its December, empty = the newest) is of `month` or later.
bool since(const std::string& date, std::string_view month) {
  return date.empty() || (date.size() == 4 ? date + "-12" : date) >= month;
}

// The largest unit that FSDP gathers: a layer. Embedding and head stay gathered while a micro-batch runs.
struct Units {
  double largest = 0;
  double root = 0;
  double all = 0;
};

Units fsdp_units(const Scenario& s, const StageSplit& split, std::int64_t rank) {
  Units units;
  units.all = held_by_rank(s, split, rank).total();
  double layers = 0;
  for (const Stage& stage : stages_of_rank(s, split, rank)) {
    for (std::int64_t i = stage.first_layer; i < stage.first_layer + stage.layers; ++i) {
      const double layer = held_by_layer(s, i).total();
      units.largest = std::max(units.largest, layer);
      layers += layer;
    }
  }
  units.root = std::max(0.0, units.all - layers);
  return units;
}

}  // namespace

DeepEpBuffers deepep_buffers(std::int64_t ranks, double hidden_bytes, std::int64_t sms) {
  const double channels = d(sms) / 2;
  const double nvlink_chunk = ranks <= kRanksPerNvlink ? 256 : 288;
  constexpr double kTopkBytes = 128 * (8 + 4 + 4);
  constexpr double kRdmaChunk = 128;
  DeepEpBuffers buffers;
  buffers.nvlink =
      channels * d(std::min(ranks, kRanksPerNvlink)) * nvlink_chunk * (hidden_bytes + 8 + kTopkBytes);
  if (ranks > kRanksPerNvlink)
    buffers.rdma =
        2 * channels * d(ranks / kRanksPerNvlink) * kRdmaChunk * (hidden_bytes + 8 + kTopkBytes + 16);
  return buffers;
}

// Two layers' weights (the running one and the one prefetched), the root unit, and one layer's gradients
// before their reduce-scatter. Without resharding all weights and gradients stay.
double gathered_bytes(const Scenario& s, const StageSplit& split, std::int64_t rank, const Stack& stack) {
  if (s.sharding.zero_stage < 3) return 0;
  if (sharding_ranks(s, false) * sharding_ranks(s, true) <= 1) return 0;
  const double weight = s.precision.recipe == Recipe::kFp32 ? 4 : 2;
  const Units units = fsdp_units(s, split, rank);
  if (!stack.resharding) return 2 * weight * units.all;
  const double gradient = std::min(weight, d(s.optimizer.grad_bytes));
  return std::min(2 * units.largest + units.root, units.all) * weight + units.largest * gradient;
}

double dispatcher_bytes(const Scenario& s) {
  const std::int64_t ranks = s.layout.ep * s.layout.etp;
  if (!s.model.moe || ranks <= 1) return 0;
  const double hidden_bytes = 2 * d(s.model.expert_width());
  if (s.moe.dispatcher == Dispatcher::kDeepEp) {
    const DeepEpBuffers buffers = deepep_buffers(ranks, hidden_bytes, kDeepEpSms);
    return buffers.nvlink + buffers.rdma;
  }
  if (s.moe.dispatcher != Dispatcher::kHybridEp && s.moe.dispatcher != Dispatcher::kNcclEp) return 0;
  // Static receive buffers of dispatch and combine for the tokens that fit the budget.
  const double tokens = d(s.tokens_per_microbatch()) / (s.layout.sequence_parallel ? d(s.layout.tp) : 1);
  const double budget = std::max(1.0, s.moe.capacity_factor.value_or(1));
  return 2 * tokens * d(s.model.moe->top_k) * budget * hidden_bytes;
}

double tp_overlap_bytes(const Scenario& s) {
  if (!s.overlap.tp || s.layout.tp <= 1) return 0;
  return kTpOverlapBuffers * d(s.tokens_per_microbatch()) * d(s.model.hidden) * 2;
}

double streamed_expert_bytes(const Scenario& s, const Stack& stack) {
  if (!s.model.moe || s.offload.resident_expert_fraction >= 1) return 0;
  double experts = 0;
  for (std::int64_t layer = 0; layer < s.model.layers; ++layer)
    experts = std::max(experts, held_by_layer(s, layer).experts);
  const StateWidths widths = state_widths(s, stack.fp32_master);
  const double layers = s.offload.prefetch ? 2 : 1;
  const double bytes = layers * linear_weight_bytes(s, widths) + widths.gradient;
  return experts * (1 - s.offload.resident_expert_fraction) * bytes;
}

double cuda_graph_bytes(const Scenario& s, const Stack& stack) {
  if (s.kernels.cuda_graphs == CudaGraphs::kNone) return 0;
  return s.layout.pp > 1 ? stack.cuda_graph_pipeline_bytes : stack.cuda_graph_bytes;
}

double cached_gradient_bytes(const Scenario& s, const StageSplit& split, std::int64_t rank) {
  if (s.sharding.engine != Engine::kMegatron || !since(s.software.date, kPlaceholders)) return 0;
  HeldParameters largest;
  for (const Stage& stage : stages_of_rank(s, split, rank)) {
    for (std::int64_t i = stage.first_layer; i < stage.first_layer + stage.layers; ++i) {
      const HeldParameters held = held_by_layer(s, i);
      largest.linear = std::max(largest.linear, held.linear);
      largest.experts = std::max(largest.experts, held.experts);
    }
  }
  double placeholders = largest.linear;
  if (s.model.moe && since(s.software.date, kExpertPlaceholders))
    placeholders += largest.experts * d(s.layout.ep) / d(s.model.moe->experts);  // of one expert
  return placeholders * (s.precision.recipe == Recipe::kFp32 ? 4 : 2);
}

// Of one rank: TP, CP, DP x CP, PP, embedding, EP, ETP x EP when that is more, expert DP.
std::int64_t communicators(const Scenario& s) {
  const Layout& l = s.layout;
  const bool moe = s.model.moe.has_value();
  std::int64_t count = 0;
  for (const bool used : {l.tp > 1, l.cp > 1, l.dp * l.cp > 1, l.pp > 1, l.pp > 1 && s.model.tied_embeddings,
                          moe && l.ep > 1, moe && l.etp > 1, moe && l.edp > 1})
    count += used;
  return count;
}

double runtime_bytes(const Scenario& s, const Stack& stack) {
  return stack.context_bytes + d(communicators(s)) * stack.nccl_bytes_per_communicator;
}

}  // namespace stepcast
