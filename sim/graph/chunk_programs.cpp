#include "graph/chunk_programs.h"

#include <algorithm>
#include <cmath>

#include "model/parameters.h"

namespace stepcast {
namespace {

void append(Program& to, const Program& from) { to.insert(to.end(), from.begin(), from.end()); }

void append(Program& to, const LayerPass& pass) {
  for (const Program* piece : {&pass.before, &pass.exchange, &pass.experts, &pass.back, &pass.after})
    append(to, *piece);
}

double d(std::int64_t value) { return static_cast<double>(value); }

// The first kernel from `begin` on waits for `event` too.
void wait_for(Program& program, std::size_t begin, std::int32_t event) {
  for (std::size_t i = begin; i < program.size(); ++i) {
    Task& task = program[i];
    if (task.stream != Stream::kCompute) continue;
    if (task.wait_event < 0)
      task.wait_event = event;
    else
      task.joins |= bit(Stream::kDp);
    return;
  }
}

}  // namespace

ChunkPrograms::ChunkPrograms(StepGraph& graph, const Scenario& scenario, const StageSplit& split,
                             const Stack& stack)
    : graph_(graph), s_(scenario), split_(split), stack_(stack), layers_(graph, scenario, stack) {}

// --- what a rank holds
// -----------------------------------------------------------------------------------------------

ChunkPrograms::Held ChunkPrograms::held(const Parameters& p) const {
  return {d(p.tp_sharded) / d(s_.layout.tp) + d(p.replicated),
          d(p.experts) / d(s_.layout.ep * s_.layout.etp)};
}

ChunkPrograms::Held ChunkPrograms::layer_held(std::int64_t layer) const {
  return held(decoder_layer_parameters(s_.model, layer));
}

ChunkPrograms::Held ChunkPrograms::ends_held(std::int64_t q) const {
  const Stage& stage = split_.stages[static_cast<std::size_t>(q)];
  const std::int64_t rows = padded_vocab(s_.model.vocab, s_.model.vocab_divisor, s_.layout.tp);
  Held sum;
  if (stage.embedding) sum += held(embedding_parameters(s_.model, rows));
  for (std::int64_t i = 0; i < stage.mtp; ++i) sum += held(mtp_layer_parameters(s_.model));
  if (stage.head) {
    sum += held(final_norm_parameters(s_.model));
    const bool own_copy = s_.model.tied_embeddings && s_.layout.pp > 1;
    sum += held(own_copy ? embedding_parameters(s_.model, rows) : head_parameters(s_.model, rows));
  }
  return sum;
}

ChunkPrograms::Held ChunkPrograms::stage_held(std::int64_t q) const {
  const Stage& stage = split_.stages[static_cast<std::size_t>(q)];
  Held sum = ends_held(q);
  for (std::int64_t i = 0; i < stage.layers; ++i) sum += layer_held(stage.first_layer + i);
  return sum;
}

ChunkPrograms::Held ChunkPrograms::rank_held(std::int64_t rank) const {
  Held sum;
  for (std::int64_t chunk = 0; chunk < split_.chunks; ++chunk)
    sum += stage_held(split_.stage_of(rank, chunk));
  return sum;
}

double ChunkPrograms::shard(const Held& h) const {
  if (s_.sharding.zero_stage == 0) return h.dense + h.experts;
  double dense = d(s_.layout.dp * s_.layout.cp);
  double experts = d(s_.layout.edp);
  if (s_.sharding.node_scope) {
    dense = std::min(dense, std::max(1.0, d(s_.cluster.gpus_per_node) / d(s_.layout.tp)));
    experts = std::min(experts, std::max(1.0, d(s_.cluster.gpus_per_node) / d(s_.layout.ep * s_.layout.etp)));
  }
  const double instances = d(s_.sharding.instances);
  return h.dense / std::max(1.0, dense / instances) + h.experts / std::max(1.0, experts / instances);
}

LayerKind ChunkPrograms::kind_of(std::int64_t layer) const {
  return {s_.model.is_moe(layer), s_.model.attention.windowed(layer)};
}

const LayerPass& ChunkPrograms::forward_pass(LayerKind kind) {
  for (const auto& [known, pass] : forward_memo_)
    if (known == kind) return pass;
  return forward_memo_.emplace_back(kind, layers_.forward(kind)).second;
}

const LayerPass& ChunkPrograms::backward_pass(LayerKind kind) {
  for (const auto& [known, pass] : backward_memo_)
    if (known == kind) return pass;
  return backward_memo_.emplace_back(kind, layers_.backward(kind)).second;
}

// Full recompute of all layers, or of the first so many of each chunk (Megatron's block method).
bool ChunkPrograms::recomputes(std::int64_t layer_in_stage) const {
  return s_.recompute.granularity == Granularity::kFull &&
         (!s_.recompute.layers || layer_in_stage < *s_.recompute.layers);
}

// --- data-parallel transfers
// -----------------------------------------------------------------------------------------

std::int32_t ChunkPrograms::transfer(Program& program, OpClass cls, Transfer t, Stream stream,
                                     const char* name, bool after_kernels, double scale) {
  Op op;
  op.cls = cls;
  op.communicates = true;
  op.transfer = t;
  op.scale = scale;
  op.name = name;
  graph_.ops.push_back(op);
  Task task;
  task.op = static_cast<std::uint32_t>(graph_.ops.size() - 1);
  task.stream = stream;
  task.launches = 1;
  if (after_kernels) task.joins |= bit(Stream::kCompute);
  task.record_event = graph_.events++;
  program.push_back(task);
  return task.record_event;
}

void ChunkPrograms::memory(Program& program, OpClass cls, MemoryKind kind, double bytes, double launches,
                           const char* name) {
  if (bytes <= 0) return;
  Op op;
  op.cls = cls;
  op.kernel.memory = kind;
  op.kernel.bytes = bytes;
  op.name = name;
  graph_.ops.push_back(op);
  Task task;
  task.op = static_cast<std::uint32_t>(graph_.ops.size() - 1);
  task.launches = static_cast<std::uint16_t>(launches);
  program.push_back(task);
}

// Within a node first when states are sharded over a node only: then gradients are summed across nodes.
void ChunkPrograms::group_transfer(Program& program, Collective collective, Group group, double bytes,
                                   const char* name, bool after_kernels, std::vector<std::int32_t>* events) {
  Transfer t;
  t.collective = collective;
  t.group = group;
  t.bytes = bytes;
  std::vector<std::int32_t> own;
  if (s_.sharding.node_scope && s_.cluster.nodes() > 1 && collective != Collective::kAllReduce) {
    t.part = Transfer::Part::kInNode;
    own.push_back(transfer(program, OpClass::kDp, t, Stream::kDp, name, after_kernels));
    if (collective == Collective::kReduceScatter) {
      t.part = Transfer::Part::kAcrossNodes;
      t.collective = Collective::kAllReduce;
      const double ranks_in_node = std::max(1.0, d(s_.cluster.gpus_per_node) / d(s_.layout.tp));
      t.bytes = bytes / ranks_in_node;
      own.push_back(
          transfer(program, OpClass::kDp, t, Stream::kDp, "dp_all_reduce_across_nodes", after_kernels));
    }
  } else {
    own.push_back(transfer(program, OpClass::kDp, t, Stream::kDp, name, after_kernels));
  }
  if (events != nullptr) events->insert(events->end(), own.begin(), own.end());
}

void ChunkPrograms::reduce_gradients(Program& program, const Held& h, bool after_kernels) {
  const bool sharded = s_.sharding.zero_stage > 0;
  const Collective collective = sharded ? Collective::kReduceScatter : Collective::kAllReduce;
  const char* name = sharded ? "dp_reduce_scatter_grads" : "dp_all_reduce_grads";
  const double bytes = d(s_.optimizer.grad_bytes);
  if (data_parallel() && h.dense > 0)
    group_transfer(program, collective, Group::kDpCp, h.dense * bytes, name, after_kernels, nullptr);
  if (s_.layout.edp > 1 && h.experts > 0)
    group_transfer(program, collective, Group::kEdp, h.experts * bytes, name, after_kernels, nullptr);
}

void ChunkPrograms::gather_parameters(Program& program, const Held& h, std::vector<std::int32_t>* events,
                                      bool after_kernels) {
  if (s_.sharding.zero_stage == 0) return;
  const double bytes = s_.precision.fp8_params ? 1 : shapes_of(s_).activation_bytes;
  if (data_parallel() && h.dense > 0)
    group_transfer(program, Collective::kAllGather, Group::kDpCp, h.dense * bytes, "dp_all_gather_params",
                   after_kernels, events);
  if (s_.layout.edp > 1 && h.experts > 0)
    group_transfer(program, Collective::kAllGather, Group::kEdp, h.experts * bytes, "dp_all_gather_params",
                   after_kernels, events);
}

// ZeRO-3: a layer's weights come one layer ahead of their use; while the gather runs beside compute it takes
// SMs.
std::int32_t ChunkPrograms::gather_layer(Program& program, const Held& h) {
  std::vector<std::int32_t> events;
  const std::size_t first = program.size();
  gather_parameters(program, h, &events, false);
  if (events.empty()) return kNone;
  if (stack_.fsdp_contention > 0) {
    const std::size_t last = program.size();
    for (std::size_t i = first; i < last; ++i) {
      const Transfer t = graph_.ops[program[i].op].transfer;
      transfer(program, OpClass::kDp, t, Stream::kCompute, "contention", false, stack_.fsdp_contention);
    }
  }
  return events.back();
}

void ChunkPrograms::scatter_layer(Program& program, const Held& h) { reduce_gradients(program, h, true); }

// Megatron buckets only the first chunk of the first rank; every other chunk reduces at once (domain 3.5).
bool ChunkPrograms::bucketed(std::int64_t stage) const {
  return stage == 0 || s_.sharding.engine != Engine::kMegatron;
}

double ChunkPrograms::bucket_elements() const { return std::max(40e6, 1e6 * d(s_.layout.dp * s_.layout.cp)); }

// Weights are quantised once a step, when the first micro-batch uses them: read BF16, write both layouts.
void ChunkPrograms::quantise_weights(Program& program, const Held& h) {
  if (s_.precision.fp8_params) return;
  const double per_element = quantise_bytes_per_element(s_.precision.recipe);
  memory(program, OpClass::kMemoryBound, MemoryKind::kQuantise, per_element * (h.dense + h.experts), 8,
         "quantise_weights");
}

// --- passes
// ----------------------------------------------------------------------------------------------------------

void ChunkPrograms::append_forward_ends(Program& program, std::int64_t q, bool before_layers) {
  const Stage& stage = split_.stages[static_cast<std::size_t>(q)];
  if (before_layers) {
    if (stage.embedding) append(program, layers_.embedding_forward());
    return;
  }
  for (std::int64_t i = 0; i < stage.mtp; ++i) {
    append(program, layers_.mtp_input_forward());
    append(program, forward_pass(kind_of(s_.model.layers - 1)));
    append(program, layers_.head_forward());
  }
  if (stage.head) append(program, layers_.head_forward());
}

void ChunkPrograms::append_backward_ends(Program& program, std::int64_t q, bool before_layers) {
  const Stage& stage = split_.stages[static_cast<std::size_t>(q)];
  if (!before_layers) {
    if (stage.embedding) append(program, layers_.embedding_backward());
    return;
  }
  if (stage.head) append(program, layers_.head_backward());
  for (std::int64_t i = 0; i < stage.mtp; ++i) {
    const LayerKind kind = kind_of(s_.model.layers - 1);
    append(program, layers_.head_backward());
    if (s_.recompute.granularity == Granularity::kFull) append(program, forward_pass(kind));
    append(program, backward_pass(kind));
    append(program, layers_.mtp_input_backward());
  }
}

Program ChunkPrograms::forward(std::int64_t q, bool first_microbatch) {
  const Stage& stage = split_.stages[static_cast<std::size_t>(q)];
  Program program;
  const std::vector<std::int32_t>& arrived = gathered_[q];
  std::int32_t next =
      zero3() && stage.layers > 0 ? gather_layer(program, layer_held(stage.first_layer)) : kNone;
  append_forward_ends(program, q, true);
  for (std::int64_t i = 0; i < stage.layers; ++i) {
    const std::int64_t layer = stage.first_layer + i;
    const std::int32_t weights = next;
    next = zero3() && i + 1 < stage.layers ? gather_layer(program, layer_held(layer + 1)) : kNone;
    if (first_microbatch) quantise_weights(program, layer_held(layer));
    const std::size_t begin = program.size();
    append(program, forward_pass(kind_of(layer)));
    if (weights != kNone) wait_for(program, begin, weights);
    if (first_microbatch && !arrived.empty()) {
      const auto buckets = static_cast<std::int64_t>(arrived.size());
      const std::int64_t bucket = bucketed(q) ? (i + 1) * buckets / stage.layers - 1 : buckets - 1;
      if (bucket >= 0)
        wait_for(program, begin, arrived[static_cast<std::size_t>(std::max<std::int64_t>(0, bucket))]);
    }
  }
  append_forward_ends(program, q, false);
  if (stage.layers == 0 && first_microbatch && !arrived.empty()) wait_for(program, 0, arrived.back());
  return program;
}

Program ChunkPrograms::backward(std::int64_t q, bool last_microbatch) {
  const Stage& stage = split_.stages[static_cast<std::size_t>(q)];
  const bool reduces = last_microbatch && !zero3() && s_.overlap.grad_reduce;
  Program program;
  Held waiting;  // gradients that are ready and not yet on their way
  std::int32_t next = zero3() && stage.layers > 0
                          ? gather_layer(program, layer_held(stage.first_layer + stage.layers - 1))
                          : kNone;
  append_backward_ends(program, q, true);
  for (std::int64_t i = stage.layers; i-- > 0;) {
    const std::int64_t layer = stage.first_layer + i;
    const std::int32_t weights = next;
    next = zero3() && i > 0 ? gather_layer(program, layer_held(layer - 1)) : kNone;
    const std::size_t begin = program.size();
    if (recomputes(i)) append(program, forward_pass(kind_of(layer)));
    append(program, backward_pass(kind_of(layer)));
    if (weights != kNone) wait_for(program, begin, weights);
    if (zero3()) scatter_layer(program, layer_held(layer));
    waiting += layer_held(layer);
    if (reduces && bucketed(q) && waiting.dense + waiting.experts >= bucket_elements()) {
      reduce_gradients(program, waiting, true);
      waiting = {};
    }
  }
  append_backward_ends(program, q, false);
  waiting += ends_held(q);
  if (reduces) reduce_gradients(program, waiting, true);
  if (zero3()) scatter_layer(program, ends_held(q));
  return program;
}

Program ChunkPrograms::overlapped(std::int64_t forward_stage, bool first, std::int64_t backward_stage,
                                  bool last) {
  const Stage& f = split_.stages[static_cast<std::size_t>(forward_stage)];
  const Stage& b = split_.stages[static_cast<std::size_t>(backward_stage)];
  // Where the passes carry data-parallel work, or weights come layer by layer, they run one after the other.
  if (zero3() || first || last) {
    Program program = forward(forward_stage, first);
    append(program, backward(backward_stage, last));
    return program;
  }
  Program program;
  append_forward_ends(program, forward_stage, true);
  append_backward_ends(program, backward_stage, true);
  for (std::int64_t i = 0; i < std::max(f.layers, b.layers); ++i) {
    static const LayerPass kNothing;
    const LayerPass& fp = i < f.layers ? forward_pass(kind_of(f.first_layer + i)) : kNothing;
    const std::int64_t j = b.layers - 1 - i;
    const LayerPass& bp = j >= 0 ? backward_pass(kind_of(b.first_layer + j)) : kNothing;
    if (j >= 0 && recomputes(j)) append(program, forward_pass(kind_of(b.first_layer + j)));
    for (const Program* piece : {&bp.before, &bp.exchange, &fp.before, &bp.experts, &fp.exchange, &bp.back,
                                 &fp.experts, &fp.back, &bp.after, &fp.after})
      append(program, *piece);
  }
  append_forward_ends(program, forward_stage, false);
  append_backward_ends(program, backward_stage, false);
  return program;
}

// --- start and end of the step
// ---------------------------------------------------------------------------------------

Program ChunkPrograms::start(std::int64_t rank) {
  Program program;
  const Held all = rank_held(rank);
  const double held_grads = zero3() ? shard(all) : all.dense + all.experts;
  memory(program, OpClass::kOptimizer, MemoryKind::kOptimizer, d(s_.optimizer.grad_bytes) * held_grads, 2,
         "zero_grad_buffer");
  if (!s_.overlap.param_gather || zero3() || s_.sharding.zero_stage == 0) return program;
  for (std::int64_t chunk = 0; chunk < split_.chunks; ++chunk) {
    const std::int64_t q = split_.stage_of(rank, chunk);
    const Held h = stage_held(q);
    const double elements = h.dense + h.experts;
    const double buckets = bucketed(q) ? std::max(1.0, std::floor(elements / bucket_elements())) : 1;
    std::vector<std::int32_t>& events = gathered_[q];
    for (int i = 0; i < static_cast<int>(std::min(buckets, 1000.0)); ++i)
      gather_parameters(program, {h.dense / buckets, h.experts / buckets}, &events, false);
  }
  return program;
}

Program ChunkPrograms::gradient_sync(std::int64_t rank) {
  Program program;
  if (!s_.overlap.grad_reduce && !zero3()) reduce_gradients(program, rank_held(rank), true);
  const Model& model = s_.model;
  const double grad_bytes = d(s_.optimizer.grad_bytes);
  if (s_.layout
          .sequence_parallel) {  // norms, router: replicated over TP, each rank saw its part of the sequence
    double replicated = 0;
    for (std::int64_t chunk = 0; chunk < split_.chunks; ++chunk) {
      const Stage& stage = split_.stages[static_cast<std::size_t>(split_.stage_of(rank, chunk))];
      for (std::int64_t i = 0; i < stage.layers; ++i)
        replicated += d(decoder_layer_parameters(model, stage.first_layer + i).replicated);
    }
    Transfer t;
    t.group = Group::kTp;
    t.bytes = replicated * grad_bytes;
    if (replicated > 0) transfer(program, OpClass::kTp, t, Stream::kTp, "tp_all_reduce_norm_grads", true);
  }
  const bool at_end = rank == 0 || rank == s_.layout.pp - 1;
  if (s_.layout.pp > 1 && at_end && (model.tied_embeddings || model.mtp_layers > 0)) {
    Transfer t;
    t.group = Group::kEmbedding;
    t.bytes = shapes_of(s_).vocab_rows * d(model.hidden) * grad_bytes;
    transfer(program, OpClass::kPp, t, Stream::kSend, "embedding_all_reduce", true);
  }
  // local sum of squares, which everything before must have finished for
  memory(program, OpClass::kOptimizer, MemoryKind::kOptimizer, grad_bytes * shard(rank_held(rank)), 4,
         "grad_norm");
  if (!program.empty()) program.back().joins |= bit(Stream::kDp) | bit(Stream::kTp) | bit(Stream::kSend);
  return program;
}

Program ChunkPrograms::optimizer(std::int64_t rank) {
  Program program;
  const double elements = shard(rank_held(rank));
  const double offloaded = s_.offload.optimizer_fraction;
  const double state = d(s_.optimizer.state_bytes);
  const double moments = s_.optimizer.kind == OptimizerKind::kSgd ? 1 : 2;
  Transfer norm;
  norm.group = Group::kWorld;
  norm.bytes = 4;
  if (s_.cluster.gpus > 1) transfer(program, OpClass::kDp, norm, Stream::kDp, "grad_norm_all_reduce", true);
  // clip: read and write the gradient; step: read gradient, master and moments, write master, moments, BF16
  // weight
  const double grad = d(s_.optimizer.grad_bytes);
  const double per_element = 2 * grad + grad + 2 * 4 + 2 * moments * state + 2;
  memory(program, OpClass::kOptimizer, MemoryKind::kOptimizer, per_element * elements * (1 - offloaded), 30,
         "optimizer_step");
  if (!program.empty()) program.back().joins |= bit(Stream::kDp);
  // offloaded part: gradient down, updated weight up
  memory(program, OpClass::kOptimizer, MemoryKind::kHostCopy, (4 + 2) * elements * offloaded, 10,
         "optimizer_offload_copies");
  if (!s_.overlap.param_gather && !zero3()) gather_parameters(program, rank_held(rank), nullptr, true);
  Op other;
  other.cls = OpClass::kOther;
  other.fixed_s = stack_.fixed_step_s;
  other.name = "step_overhead";
  graph_.ops.push_back(other);
  Task task;
  task.op = static_cast<std::uint32_t>(graph_.ops.size() - 1);
  task.joins = bit(Stream::kDp);
  program.push_back(task);
  return program;
}

}  // namespace stepcast
