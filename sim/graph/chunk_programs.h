// The programs of a pipeline stage: forward and backward of its layers, with the data-parallel transfers that belong
// to the first and last micro-batch, and the programs that open and close a step.
#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "graph/layer_tasks.h"
#include "memory/states.h"

namespace stepcast {

class ChunkPrograms {
 public:
  ChunkPrograms(StepGraph& graph, const Scenario& scenario, const StageSplit& split, const Stack& stack);

  // q: the stage in model order
  Program forward(std::int64_t q, bool first_microbatch);
  Program backward(std::int64_t q, bool last_microbatch);
  // Forward of one micro-batch with the backward of another, layer by layer, so that the expert all-to-all of each
  // runs beside the other's compute (Megatron's combined 1F1B).
  Program overlapped(std::int64_t forward_stage, bool first, std::int64_t backward_stage, bool last);

  // `start` of every rank comes before the first `forward`: it issues the gathers that forwards wait for.
  Program start(std::int64_t rank);          // zero the gradient buffers; gather parameters early
  Program gradient_sync(std::int64_t rank);  // what of the reduction is left, embedding and norm gradients
  Program optimizer(std::int64_t rank);      // after the gradient norm

 private:
  const Stage& stage(std::int64_t q) const { return split_.stages[static_cast<std::size_t>(q)]; }
  HeldParameters ends_held(std::int64_t q) const;  // embedding, MTP, head
  HeldParameters stage_held(std::int64_t q) const { return held_by_stages(s_, {stage(q)}); }
  double shard(const HeldParameters& held) const;  // elements whose optimizer state this rank keeps
  double gathered_bytes(const HeldParameters& held, bool experts) const;
  LayerKind kind_of(std::int64_t layer) const;
  const LayerPass& forward_pass(LayerKind kind);
  const LayerPass& backward_pass(LayerKind kind);
  bool recomputes(std::int64_t layer_in_stage) const;

  Arrival transfer(Program& program, OpClass cls, const Transfer& t, Stream stream, const char* name,
                   bool after_kernels);
  void memory(Program& program, OpClass cls, MemoryKind kind, double bytes, double launches,
              const char* name);
  void contention(Program& program, const Transfer& t);
  void group_transfer(Program& program, Collective collective, Group group, double bytes, const char* name,
                      bool after_kernels, std::vector<Arrival>* arrivals);
  void reduce_gradients(Program& program, const HeldParameters& held);
  std::vector<Arrival> gather_parameters(Program& program, const HeldParameters& held, bool after_kernels);
  std::vector<Arrival> gather_ahead(Program& program, const HeldParameters& held);  // ZeRO-3
  void quantise_weights(Program& program, const HeldParameters& held);
  void append_forward_ends(Program& program, std::int64_t q, bool before_layers);
  void append_backward_ends(Program& program, std::int64_t q, bool before_layers);
  bool bucketed(std::int64_t q) const;
  double bucket_elements() const;
  bool zero3() const { return s_.sharding.zero_stage == 3; }

  StepGraph& graph_;
  const Scenario& s_;
  const StageSplit& split_;
  const Stack& stack_;
  LayerTasks layers_;
  std::deque<std::pair<LayerKind, LayerPass>> forward_memo_;
  std::deque<std::pair<LayerKind, LayerPass>> backward_memo_;
  std::map<std::int64_t, std::vector<Arrival>>
      gathered_;  // of a stage's parameters, in the order of its layers
};

}  // namespace stepcast
