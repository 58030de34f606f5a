#include "memory/ledger.h"

#include <fmt/format.h>

#include <algorithm>

#include "memory/activations.h"
#include "memory/buffers.h"
#include "memory/in_flight.h"
#include "memory/states.h"

namespace stepcast {
namespace {

struct Chunk {
  double saved = 0;     // of one micro-batch
  double host = 0;      // of one micro-batch, offloaded
  double logits = 0;    // of one micro-batch whose loss has been computed and whose backward has not begun
  double loss = 0;      // all copies of logits while the loss of one micro-batch runs
  double in_layer = 0;  // a recomputed layer and gradients while the backward runs
};

Chunk chunk_of(const Activations& activations, const Stage& stage) {
  return {activations.stage(stage), activations.offloaded(stage), activations.saved_logits(stage),
          activations.loss_peak(stage), activations.backward(stage)};
}

// The last stage's backward follows its forward at once, so one micro-batch has logits; not where all
// forwards run first.
double logits_waiting(const Scenario& scenario) {
  const bool forwards_first = scenario.layout.schedule == "gpipe" || scenario.layout.schedule == "bfs";
  return forwards_first ? static_cast<double>(scenario.microbatches()) - 1 : 0;
}

void add_activations(const Scenario& scenario, const StageSplit& split, const Activations& activations,
                     StageMemory& memory) {
  std::vector<Chunk> chunks;
  std::vector<ChunkBytes> bytes;
  for (const Stage& stage : stages_of_rank(scenario, split, memory.rank)) {
    chunks.push_back(chunk_of(activations, stage));
    memory.buffers += chunks.back().logits * logits_waiting(scenario);
    bytes.push_back({chunks.back().saved, std::max(chunks.back().loss, chunks.back().in_layer)});
  }
  const PeakMoment peak = fullest_moment(scenario, memory.rank, bytes);
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    memory.activations += peak.alive[c] * chunks[c].saved;
    memory.host += peak.alive[c] * chunks[c].host;
  }
  const Chunk& running = chunks[peak.chunk];
  const bool loss = running.loss > running.in_layer;
  (loss ? memory.buffers : memory.activations) += loss ? running.loss : running.in_layer;
  memory.peak_moment =
      fmt::format("micro-batch {}, {} of chunk {}", peak.microbatch, loss ? "loss" : "backward", peak.chunk);
}

StageMemory stage_memory(const Scenario& scenario, const StageSplit& split, const Stack& stack,
                         const Activations& activations, std::int64_t rank) {
  StageMemory memory;
  memory.rank = rank;
  const StateBytes states = state_bytes(scenario, held_by_rank(scenario, split, rank), stack.fp32_master);
  memory.parameters = states.parameters;
  memory.gradients = states.gradients;
  memory.optimizer = states.optimizer;
  memory.host = states.host;
  memory.buffers = gathered_bytes(scenario, split, rank, stack) + dispatcher_bytes(scenario) +
                   tp_overlap_bytes(scenario) + streamed_expert_bytes(scenario, stack) +
                   cached_gradient_bytes(scenario, split, rank) + cuda_graph_bytes(scenario, stack);
  add_activations(scenario, split, activations, memory);
  memory.runtime = runtime_bytes(scenario, stack);
  memory.allocated = states.on_gpu() + memory.activations + memory.buffers;
  memory.reserved = memory.allocated * stack.fragmentation;
  memory.device = memory.reserved + memory.runtime;
  return memory;
}

void refuse_unknown(const Scenario& s, const StageSplit& split) {
  const auto stages = static_cast<std::int64_t>(split.stages.size());
  if (stages > kMostStages)
    throw NotSimulated({s.file, s.prefix + "/layout/pp", fmt::format("{} pipeline stages", stages),
                        fmt::format("at most {}", kMostStages)});
  if (s.training.lora)
    throw NotSimulated(
        {s.file, s.prefix + "/training/kind", "the memory of lora is not simulated yet", "pretrain"});
}

}  // namespace

MemoryReport memory_report(const Scenario& scenario, const StageSplit& split, const Stack& stack) {
  refuse_unknown(scenario, split);
  const Activations activations(scenario, stack);
  MemoryReport report;
  report.capacity = static_cast<double>(scenario.cluster.gpu.hbm_bytes);
  report.stack = stack;
  for (std::int64_t rank = 0; rank < split.pp; ++rank) {
    report.stages.push_back(stage_memory(scenario, split, stack, activations, rank));
    if (report.stages.back().device > report.peak().device) report.worst = report.stages.size() - 1;
  }
  return report;
}

}  // namespace stepcast
