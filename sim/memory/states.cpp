#include "memory/states.h"

#include <algorithm>

#include "layout/groups.h"
#include "model/parameters.h"

namespace stepcast {
namespace {

double d(std::int64_t value) { return static_cast<double>(value); }

HeldParameters layer_on_rank(const Parameters& p, const Layout& l) {
  return {d(p.replicated), d(p.tp_sharded) / d(l.tp), d(p.experts) / d(l.ep * l.etp)};
}

HeldParameters plain_on_rank(const Parameters& p, const Layout& l) {
  return {d(p.replicated) + d(p.tp_sharded) / d(l.tp), 0, 0};
}

// Megatron keeps the fp32 master of a bf16 weight as the 16 bits that the weight lacks when the moments are
// below fp32 (store_param_remainders).
bool master_is_remainder(const Scenario& s) {
  return s.sharding.engine == Engine::kMegatron && s.optimizer.state_bytes < 4 &&
         s.precision.recipe != Recipe::kFp16 && !s.precision.fp8_params;
}

// fp16 training, and DeepSpeed always, hand the optimizer 2-byte gradients as an fp32 copy.
bool copies_gradients(const Scenario& s) {
  const bool does = s.precision.recipe == Recipe::kFp16 || s.sharding.engine == Engine::kDeepSpeed;
  return does && s.optimizer.grad_bytes < 4;
}

double moments(const Scenario& s, bool matrix) {
  switch (s.optimizer.kind) {
    case OptimizerKind::kSgd:
      return 1;
    case OptimizerKind::kMuon:
      return matrix ? 1 : 2;  // vectors and vocabulary matrices stay with Adam
    default:
      return 2;
  }
}

StateBytes bytes_of(const Scenario& s, const StateWidths& widths, double parameters, bool linear,
                    bool experts) {
  const double ranks = sharding_ranks(s, experts);
  const double weight = linear ? linear_weight_bytes(s, widths) : widths.weight;
  const double optimizer = widths.master + widths.gradient_copy + moments(s, linear) * widths.moment;
  const int stage = s.sharding.zero_stage;
  StateBytes bytes;
  bytes.parameters = parameters * weight / (stage >= 3 ? ranks : 1);
  bytes.gradients = parameters * widths.gradient / (stage >= 2 ? ranks : 1);
  bytes.optimizer = parameters * optimizer / (stage >= 1 ? ranks : 1);
  // 1-bit Adam keeps the compression error of the whole gradient and of the rank's share of the average.
  if (s.optimizer.onebit) bytes.optimizer += parameters * 4 * (1 + 1 / ranks);
  return bytes;
}

void add(StateBytes& to, const StateBytes& bytes, double resident) {
  to.parameters += bytes.parameters * resident;
  to.gradients += bytes.gradients * resident;
  to.optimizer += bytes.optimizer * resident;
  to.host += bytes.on_gpu() * (1 - resident);
}

}  // namespace

HeldParameters& HeldParameters::operator+=(const HeldParameters& other) {
  plain += other.plain;
  linear += other.linear;
  experts += other.experts;
  return *this;
}

std::vector<Stage> stages_of_rank(const Scenario& scenario, const StageSplit& split, std::int64_t rank) {
  std::vector<Stage> stages;
  for (std::int64_t chunk = 0; chunk < split.chunks; ++chunk)
    stages.push_back(split.stages[static_cast<std::size_t>(split.stage_of(rank, chunk))]);
  if (scenario.layout.schedule == "dualpipe")
    stages.push_back(split.stages[static_cast<std::size_t>(split.pp - 1 - rank)]);
  return stages;
}

double vocab_rows(const Scenario& s) {
  return d(padded_vocab(s.model.vocab, s.model.vocab_divisor, s.layout.tp)) / d(s.layout.tp);
}

HeldParameters held_by_layer(const Scenario& scenario, std::int64_t layer) {
  return layer_on_rank(decoder_layer_parameters(scenario.model, layer), scenario.layout);
}

// Tied embeddings: the last stage keeps a copy of the table. An MTP layer needs the table and the output
// matrix on its rank.
HeldParameters held_by_rank(const Scenario& scenario, const StageSplit& split, std::int64_t rank) {
  return held_by_stages(scenario, stages_of_rank(scenario, split, rank));
}

HeldParameters held_by_stages(const Scenario& scenario, const std::vector<Stage>& stages) {
  const Model& m = scenario.model;
  const Layout& l = scenario.layout;
  const std::int64_t vocab = padded_vocab(m.vocab, m.vocab_divisor, l.tp);
  HeldParameters held;
  bool first = false;
  bool table = false;
  bool head = false;
  for (const Stage& stage : stages) {
    for (std::int64_t layer = stage.first_layer; layer < stage.first_layer + stage.layers; ++layer)
      held += held_by_layer(scenario, layer);
    for (std::int64_t depth = 0; depth < stage.mtp; ++depth)
      held += layer_on_rank(mtp_layer_parameters(m), l);
    if (stage.head) held += plain_on_rank(final_norm_parameters(m), l);
    first = first || stage.embedding;
    table = table || stage.embedding || stage.mtp > 0 || (stage.head && m.tied_embeddings);
    head = head || stage.head || stage.mtp > 0;
  }
  if (first) held += plain_on_rank(embedding_parameters(m, vocab), l);
  if (first) held += plain_on_rank(vision_parameters(m), l);
  if (table && !first) held.plain += d(vocab * m.hidden) / d(l.tp);
  if (head) held += plain_on_rank(head_parameters(m, vocab), l);
  return held;
}

double sharding_ranks(const Scenario& s, bool experts) {
  const Layout& l = s.layout;
  const Group group = experts ? Group::kEdp : Group::kDpCp;
  std::int64_t ranks = experts ? l.edp : l.dp * l.cp;
  if (s.sharding.node_scope && ranks > 1) ranks = span_of(grid_of(l), group, 0, s.cluster).ranks_per_node;
  return d(std::max<std::int64_t>(1, ranks / std::max<std::int64_t>(1, s.sharding.instances)));
}

// Row-wise and column-wise copies, but for per-tensor FP8 on Blackwell, where one serves both. FP8 block
// scales of weights (128 x 128) weigh nothing; MXFP8 has one byte a 32 elements, NVFP4 one a 16. FSDP
// quantises a layer when it is gathered and caches nothing.
double quantised_weight_bytes(const Scenario& s) {
  if (s.sharding.engine != Engine::kMegatron) return 0;
  const bool blackwell = s.cluster.gpu.compute_capability >= 10;
  constexpr double kMxfp8 = 1 + 1.0 / 32;
  constexpr double kNvfp4 = 0.5 + 1.0 / 16;
  switch (s.precision.recipe) {
    case Recipe::kFp8Tensor:
      return blackwell ? 1 : 2;
    case Recipe::kFp8Block:
      return blackwell ? 2 * kMxfp8 : 2;
    case Recipe::kMxfp8:
      return 2 * kMxfp8;
    case Recipe::kNvfp4:
      return 2 * kNvfp4;
    case Recipe::kNvfp4Weights:
      return kNvfp4;
    default:
      return 0;
  }
}

double linear_weight_bytes(const Scenario& s, const StateWidths& widths) {
  const double cache = quantised_weight_bytes(s);
  return cache > 0 && s.precision.fp8_params ? cache : widths.weight + cache;
}

StateWidths state_widths(const Scenario& s, bool fp32_master) {
  const bool fp32 = s.precision.recipe == Recipe::kFp32;
  StateWidths widths;
  widths.weight = fp32 ? 4 : 2;
  widths.gradient = d(s.optimizer.grad_bytes);
  widths.moment = d(s.optimizer.state_bytes);
  if (!fp32 && !fp32_master) {
    widths.gradient = std::min(widths.gradient, 2.0);
    widths.moment = std::min(widths.moment, 2.0);
    return widths;
  }
  if (fp32) return widths;
  widths.master = master_is_remainder(s) ? 2 : 4;
  widths.gradient_copy = copies_gradients(s) ? 4 : 0;
  if (s.sharding.engine == Engine::kFsdp && s.sharding.zero_stage >= 3) {
    widths.weight = widths.master;
    widths.master = 0;
  }
  return widths;
}

StateBytes state_bytes(const Scenario& s, const HeldParameters& held, bool fp32_master) {
  const StateWidths widths = state_widths(s, fp32_master);
  StateBytes sum;
  add(sum, bytes_of(s, widths, held.plain, false, false), 1);
  add(sum, bytes_of(s, widths, held.linear, true, false), 1);
  add(sum, bytes_of(s, widths, held.experts, true, true), s.offload.resident_expert_fraction);
  const double moved = sum.optimizer * s.offload.optimizer_fraction;
  sum.optimizer -= moved;
  sum.host += moved;
  return sum;
}

}  // namespace stepcast
