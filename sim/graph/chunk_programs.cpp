#include "graph/chunk_programs.h"

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "model/parameters.h"

namespace stepcast {
namespace {

void append(Program& to, const Program& from) { to.insert(to.end(), from.begin(), from.end()); }

void append(Program& to, const LayerPass& pass) {
  for (const Program* piece :
       {&pass.before, &pass.exchange, &pass.experts, &pass.back, &pass.weights, &pass.after})
    append(to, *piece);
}

// The first kernel from `begin` on waits for these too.
void first_kernel_waits(Program& program, std::size_t begin, const std::vector<Arrival>& arrivals) {
  const auto kernel = std::find_if(program.begin() + static_cast<std::ptrdiff_t>(begin), program.end(),
                                   [](const Task& task) { return task.stream == Stream::kCompute; });
  if (kernel == program.end()) return;
  for (const Arrival arrival : arrivals) wait_for(*kernel, arrival);
}

}  // namespace

ChunkPrograms::ChunkPrograms(StepGraph& graph, const Scenario& scenario, const StageSplit& split,
                             const Stack& stack)
    : graph_(graph), s_(scenario), split_(split), stack_(stack), layers_(graph, scenario, stack) {}

HeldParameters ChunkPrograms::ends_held(std::int64_t q) const {
  Stage ends = stage(q);
  ends.layers = 0;
  return held_by_stages(s_, {ends});
}

double ChunkPrograms::shard(const HeldParameters& held) const {
  if (s_.sharding.zero_stage == 0) return held.total();
  return held.dense() / sharding_ranks(s_, false) + held.experts / sharding_ranks(s_, true);
}

// Weights travel in 16 bit, or as they are kept: one byte under FP8, NVFP4 with its scales. MXFP8 is not smaller: the
// gather reuses the BF16 gradient buffer. Norms, embedding and output matrix stay in 16 bit.
double ChunkPrograms::gathered_bytes(const HeldParameters& held, bool experts) const {
  const double plain = shapes_of(s_).activation_bytes;
  double linear = plain;
  const Recipe recipe = s_.precision.recipe;
  if (s_.precision.fp8_params && (recipe == Recipe::kFp8Tensor || recipe == Recipe::kFp8Block)) linear = 1;
  if (s_.precision.fp8_params && recipe == Recipe::kNvfp4) linear = 0.5 + 1.0 / 16;
  return experts ? held.experts * linear : held.linear * linear + held.plain * plain;
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

// --- single tasks

Arrival ChunkPrograms::transfer(Program& program, OpClass cls, const Transfer& t, Stream stream,
                                const char* name, bool after_kernels) {
  Op op;
  op.cls = cls;
  op.communicates = true;
  op.transfer = t;
  op.name = name;
  graph_.ops.push_back(op);
  Task task;
  task.op = static_cast<std::uint32_t>(graph_.ops.size() - 1);
  task.stream = stream;
  task.launches = 1;
  if (after_kernels) task.joins |= bit(Stream::kCompute);
  task.record_event = graph_.events++;
  program.push_back(task);
  return {task.record_event, stream};
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
  task.launches = static_cast<std::uint32_t>(launches);
  program.push_back(task);
}

// A collective that runs beside kernels takes SMs from them: so much of its time is lost to compute.
void ChunkPrograms::contention(Program& program, const Transfer& t) {
  if (stack_.fsdp_contention <= 0) return;
  Op op;
  op.cls = OpClass::kDp;
  op.communicates = true;
  op.contends = true;
  op.transfer = t;
  op.scale = stack_.fsdp_contention;
  op.name = "contention";
  graph_.ops.push_back(op);
  Task task;
  task.op = static_cast<std::uint32_t>(graph_.ops.size() - 1);
  program.push_back(task);
}

// Within a node first when states are sharded over a node only: then gradients are summed across nodes.
void ChunkPrograms::group_transfer(Program& program, Collective collective, Group group, double bytes,
                                   const char* name, bool after_kernels, std::vector<Arrival>* arrivals) {
  Transfer t;
  t.collective = collective;
  t.group = group;
  t.bytes = bytes;
  const bool in_node =
      s_.sharding.node_scope && s_.cluster.nodes() > 1 && collective != Collective::kAllReduce;
  if (in_node) t.part = Transfer::Part::kInNode;
  const Arrival arrival = transfer(program, OpClass::kDp, t, Stream::kDp, name, after_kernels);
  if (arrivals != nullptr) arrivals->push_back(arrival);
  if (!in_node || collective != Collective::kReduceScatter) return;
  t.part = Transfer::Part::kAcrossNodes;
  t.collective = Collective::kAllReduce;
  transfer(program, OpClass::kDp, t, Stream::kDp, "dp_all_reduce_across_nodes", after_kernels);
}

// --- data-parallel transfers

void ChunkPrograms::reduce_gradients(Program& program, const HeldParameters& held) {
  const bool sharded = s_.sharding.zero_stage > 0;
  const Collective collective = sharded ? Collective::kReduceScatter : Collective::kAllReduce;
  const char* name = sharded ? "dp_reduce_scatter_grads" : "dp_all_reduce_grads";
  const double bytes = real(s_.optimizer.grad_bytes);
  if (s_.layout.dp * s_.layout.cp > 1 && held.dense() > 0)
    group_transfer(program, collective, Group::kDpCp, held.dense() * bytes, name, true, nullptr);
  if (s_.layout.edp > 1 && held.experts > 0)
    group_transfer(program, collective, Group::kEdp, held.experts * bytes, name, true, nullptr);
}

std::vector<Arrival> ChunkPrograms::gather_parameters(Program& program, const HeldParameters& held,
                                                      bool after_kernels) {
  std::vector<Arrival> arrivals;
  if (s_.sharding.zero_stage == 0) return arrivals;
  const char* name = "dp_all_gather_params";
  if (s_.layout.dp * s_.layout.cp > 1 && held.dense() > 0)
    group_transfer(program, Collective::kAllGather, Group::kDpCp, gathered_bytes(held, false), name,
                   after_kernels, &arrivals);
  if (s_.layout.edp > 1 && held.experts > 0)
    group_transfer(program, Collective::kAllGather, Group::kEdp, gathered_bytes(held, true), name,
                   after_kernels, &arrivals);
  return arrivals;
}

// ZeRO-3: weights come one layer ahead of their use, not before the layer that runs now has its own.
std::vector<Arrival> ChunkPrograms::gather_ahead(Program& program, const HeldParameters& held) {
  if (!zero3()) return {};
  const std::size_t first = program.size();
  std::vector<Arrival> arrivals = gather_parameters(program, held, true);
  const std::size_t last = program.size();
  for (std::size_t i = first; i < last; ++i) contention(program, graph_.ops[program[i].op].transfer);
  return arrivals;
}

// Megatron buckets only the first chunk of the first rank; every other chunk reduces at once. DeepSpeed and FSDP
// bucket everywhere.
bool ChunkPrograms::bucketed(std::int64_t q) const {
  return q == 0 || s_.sharding.engine != Engine::kMegatron;
}

// Megatron: max(40e6, 1e6 dp) elements; DeepSpeed: reduce_bucket_size 5e8; FSDP: a layer.
double ChunkPrograms::bucket_elements() const {
  switch (s_.sharding.engine) {
    case Engine::kDeepSpeed:
      return 5e8;
    case Engine::kFsdp:
      return 1;
    case Engine::kMegatron:
      break;
  }
  return std::max(40e6, 1e6 * real(s_.layout.dp * s_.layout.cp));
}

// Weights are quantised once a step, when the first micro-batch uses them: read BF16, write both layouts. Weights that
// are kept in FP8 come quantised, but for MXFP8, which is gathered in BF16.
void ChunkPrograms::quantise_weights(Program& program, const HeldParameters& held) {
  if (s_.precision.fp8_params && s_.precision.recipe != Recipe::kMxfp8) return;
  const double per_element = quantise_bytes_per_element(s_.precision.recipe);
  memory(program, OpClass::kMemoryBound, MemoryKind::kQuantise, per_element * (held.linear + held.experts), 8,
         "quantise_weights");
}

// --- passes

void ChunkPrograms::append_forward_ends(Program& program, std::int64_t q, bool before_layers) {
  const Stage& own = stage(q);
  if (before_layers) {
    if (own.embedding) append(program, layers_.embedding_forward());
    return;
  }
  for (std::int64_t i = 0; i < own.mtp; ++i) {
    append(program, layers_.mtp_input_forward());
    append(program, forward_pass(kind_of(s_.model.layers - 1)));
    append(program, layers_.head_forward());
  }
  if (own.head) append(program, layers_.head_forward());
}

void ChunkPrograms::append_backward_ends(Program& program, std::int64_t q, bool before_layers) {
  const Stage& own = stage(q);
  if (!before_layers) {
    if (own.embedding) append(program, layers_.embedding_backward());
    return;
  }
  if (own.head) append(program, layers_.head_backward());
  for (std::int64_t i = own.mtp; i-- > 0;) {
    const LayerKind kind = kind_of(s_.model.layers - 1);
    append(program, layers_.head_backward());
    if (recomputes(own.layers + i)) append(program, forward_pass(kind));
    append(program, backward_pass(kind));
    append(program, layers_.mtp_input_backward());
  }
}

Program ChunkPrograms::forward(std::int64_t q, bool first_microbatch) {
  const Stage& own = stage(q);
  Program program;
  std::vector<Arrival> next = gather_ahead(program, ends_held(q));
  if (own.layers > 0) {
    const std::vector<Arrival> first = gather_ahead(program, held_by_layer(s_, own.first_layer));
    next.insert(next.end(), first.begin(), first.end());
  }
  append_forward_ends(program, q, true);
  const std::vector<Arrival>& early = gathered_[q];  // ZeRO-1 and 2, first micro-batch only
  for (std::int64_t i = 0; i < own.layers; ++i) {
    const std::int64_t layer = own.first_layer + i;
    std::vector<Arrival> weights = std::exchange(next, {});
    if (i + 1 < own.layers) next = gather_ahead(program, held_by_layer(s_, layer + 1));
    if (first_microbatch && !early.empty()) {
      const auto buckets = static_cast<std::int64_t>(early.size());
      const std::int64_t needed = bucketed(q) ? ceil_div((i + 1) * buckets, own.layers) : buckets;
      weights.push_back(early[static_cast<std::size_t>(needed - 1)]);
    }
    const std::size_t begin = program.size();
    if (first_microbatch) quantise_weights(program, held_by_layer(s_, layer));
    append(program, forward_pass(kind_of(layer)));
    first_kernel_waits(program, begin, weights);
  }
  append_forward_ends(program, q, false);
  if (own.layers == 0) {
    if (first_microbatch && !early.empty()) next.push_back(early.back());
    first_kernel_waits(program, 0, next);
  }
  return program;
}

Program ChunkPrograms::backward(std::int64_t q, bool last_microbatch) {
  const Stage& own = stage(q);
  const bool reduces = zero3() || (last_microbatch && s_.overlap.grad_reduce);
  const bool gathers = zero3() && stack_.resharding;
  Program program;
  const auto reduce_when = [&](HeldParameters& waiting, bool now) {
    if (!reduces || !now || waiting.total() <= 0) return;
    reduce_gradients(program, waiting);
    waiting = {};
  };
  // ready first: output matrix and MTP layers; last: the embedding
  Stage tail = own;
  tail.layers = 0;
  tail.embedding = false;
  HeldParameters waiting = held_by_stages(s_, {tail});
  std::vector<Arrival> next;
  if (gathers && own.layers > 0)
    next = gather_ahead(program, held_by_layer(s_, own.first_layer + own.layers - 1));
  append_backward_ends(program, q, true);
  for (std::int64_t i = own.layers; i-- > 0;) {
    const std::int64_t layer = own.first_layer + i;
    const std::vector<Arrival> weights = std::exchange(next, {});
    if (gathers && i > 0) next = gather_ahead(program, held_by_layer(s_, layer - 1));
    const std::size_t begin = program.size();
    if (recomputes(i)) append(program, forward_pass(kind_of(layer)));
    append(program, backward_pass(kind_of(layer)));
    first_kernel_waits(program, begin, weights);
    waiting += held_by_layer(s_, layer);
    reduce_when(waiting, zero3() || (bucketed(q) && waiting.total() >= bucket_elements()));
  }
  append_backward_ends(program, q, false);
  if (own.embedding) {
    Stage table = own;
    table.layers = table.mtp = 0;
    table.head = false;
    waiting += held_by_stages(s_, {table});
  }
  reduce_when(waiting, true);
  return program;
}

Program ChunkPrograms::overlapped(std::int64_t forward_stage, bool first, std::int64_t backward_stage,
                                  bool last) {
  const Stage& f = stage(forward_stage);
  const Stage& b = stage(backward_stage);
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
    for (const Program* piece : {&bp.before, &bp.exchange, &fp.before, &bp.experts, &fp.exchange, &bp.back,
                                 &bp.weights, &fp.experts, &fp.back, &bp.after, &fp.after})
      append(program, *piece);
  }
  append_forward_ends(program, forward_stage, false);
  append_backward_ends(program, backward_stage, false);
  return program;
}

// --- start and end of the step

Program ChunkPrograms::start(std::int64_t rank) {
  Program program;
  const HeldParameters all = held_by_rank(s_, split_, rank);
  memory(program, OpClass::kOptimizer, MemoryKind::kOptimizer,
         real(s_.optimizer.grad_bytes) * (zero3() ? shard(all) : all.total()), 2, "zero_grad_buffer");
  if (!s_.overlap.param_gather || zero3() || s_.sharding.zero_stage == 0) return program;
  for (std::int64_t chunk = 0; chunk < split_.chunks; ++chunk) {
    const std::int64_t q = split_.stage_of(rank, chunk);
    const HeldParameters held = stage_held(q);
    double buckets = std::min(1000.0, std::floor(held.total() / bucket_elements()));
    if (s_.sharding.engine == Engine::kFsdp) buckets = real(stage(q).layers);
    buckets = bucketed(q) ? std::max(1.0, buckets) : 1;
    const HeldParameters bucket = {held.plain / buckets, held.linear / buckets, held.experts / buckets};
    std::vector<Arrival>& arrivals = gathered_[q];
    for (int i = 0; i < static_cast<int>(buckets); ++i) {
      const std::vector<Arrival> some = gather_parameters(program, bucket, false);
      arrivals.insert(arrivals.end(), some.begin(), some.end());
    }
  }
  return program;
}

// In Megatron's order: the data-parallel reduction, then gradients of what TP ranks hold alike, then of the tied table.
Program ChunkPrograms::gradient_sync(std::int64_t rank) {
  Program program;
  const HeldParameters held = held_by_rank(s_, split_, rank);
  if (!s_.overlap.grad_reduce && !zero3()) reduce_gradients(program, held);
  const Model& model = s_.model;
  const double grad_bytes = real(s_.optimizer.grad_bytes);
  if (s_.layout.sequence_parallel) {  // norms, router: each rank saw its part of the sequence
    double replicated = 0;
    for (const Stage& own : stages_of_rank(s_, split_, rank))
      for (std::int64_t i = 0; i < own.layers; ++i)
        replicated += real(decoder_layer_parameters(model, own.first_layer + i).replicated);
    Transfer t;
    t.group = Group::kTp;
    t.bytes = replicated * grad_bytes;
    if (replicated > 0) {
      transfer(program, OpClass::kTp, t, Stream::kTp, "tp_all_reduce_norm_grads", true);
      program.back().joins |= bit(Stream::kDp);
    }
  }
  const bool at_end = rank == 0 || rank == s_.layout.pp - 1;
  if (s_.layout.pp > 1 && at_end && (model.tied_embeddings || model.mtp_layers > 0)) {
    Transfer t;
    t.group = Group::kEmbedding;
    t.bytes = vocab_rows(s_) * real(model.hidden) * grad_bytes;
    transfer(program, OpClass::kPp, t, Stream::kSend, "embedding_all_reduce", true);
    program.back().joins |= bit(Stream::kDp) | bit(Stream::kTp);
  }
  // local sum of squares, for which everything before must be done
  memory(program, OpClass::kOptimizer, MemoryKind::kOptimizer, grad_bytes * shard(held), 4, "grad_norm");
  if (!program.empty()) program.back().joins |= bit(Stream::kDp) | bit(Stream::kTp) | bit(Stream::kSend);
  return program;
}

Program ChunkPrograms::optimizer(std::int64_t rank) {
  Program program;
  const HeldParameters held = held_by_rank(s_, split_, rank);
  const double elements = shard(held);
  const double offloaded = s_.offload.optimizer_fraction;
  Transfer norm;
  norm.group = Group::kWorld;
  norm.bytes = 4;
  if (s_.cluster.gpus > 1) transfer(program, OpClass::kDp, norm, Stream::kDp, "grad_norm_all_reduce", true);
  const std::size_t begin = program.size();
  // clip: read and write the gradient; step: read gradient, master and moments, write master, moments, BF16 weight
  const double grad = real(s_.optimizer.grad_bytes);
  const double moments = (s_.optimizer.kind == OptimizerKind::kSgd ? 1 : 2) * real(s_.optimizer.state_bytes);
  const double per_element = 2 * grad + grad + 2 * 4 + 2 * moments + 2;
  memory(program, OpClass::kOptimizer, MemoryKind::kOptimizer, per_element * elements * (1 - offloaded), 30,
         "optimizer_step");
  // offloaded part: gradient down, updated weight up
  memory(program, OpClass::kOptimizer, MemoryKind::kHostCopy, (4 + 2) * elements * offloaded, 10,
         "optimizer_offload_copies");
  if (begin < program.size()) program[begin].joins |= bit(Stream::kDp);
  if (!s_.overlap.param_gather && !zero3()) gather_parameters(program, held, true);
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
