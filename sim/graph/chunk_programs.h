// The programs of a pipeline stage: forward and backward of its layers, with the data-parallel transfers that
// belong to the first and last micro-batch, and the programs that open and close a step.
#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "graph/layer_tasks.h"
#include "model/parameters.h"

namespace stepcast {

class ChunkPrograms {
 public:
  ChunkPrograms(StepGraph& graph, const Scenario& scenario, const StageSplit& split, const Stack& stack);

  Program forward(std::int64_t stage, bool first_microbatch);
  Program backward(std::int64_t stage, bool last_microbatch);
  // Forward of one micro-batch with the backward of another, layer by layer, so that the expert all-to-all of
  // each runs beside the other's compute (Megatron's combined 1F1B, domain 5.8).
  Program overlapped(std::int64_t forward_stage, bool first, std::int64_t backward_stage, bool last);

  Program start(std::int64_t rank);          // zero the gradient buffers; gather parameters early
  Program gradient_sync(std::int64_t rank);  // what of the reduction is left, embedding and norm gradients
  Program optimizer(std::int64_t rank);      // after the gradient norm

 private:
  struct Held {  // parameters of some layers that one rank holds
    double dense = 0;
    double experts = 0;
    Held& operator+=(const Held& o) {
      dense += o.dense;
      experts += o.experts;
      return *this;
    }
  };

  Held held(const Parameters& parameters) const;
  Held layer_held(std::int64_t layer) const;
  Held stage_held(std::int64_t stage) const;
  Held rank_held(std::int64_t rank) const;
  Held ends_held(std::int64_t stage) const;  // embedding, MTP, head of the stage
  LayerKind kind_of(std::int64_t layer) const;
  const LayerPass& forward_pass(LayerKind kind);
  const LayerPass& backward_pass(LayerKind kind);
  bool recomputes(std::int64_t layer_in_stage) const;

  std::int32_t transfer(Program& program, OpClass cls, Transfer t, Stream stream, const char* name,
                        bool after_kernels, double scale = 1);
  void memory(Program& program, OpClass cls, MemoryKind kind, double bytes, double launches,
              const char* name);
  void reduce_gradients(Program& program, const Held& held, bool after_kernels);
  void gather_parameters(Program& program, const Held& held, std::vector<std::int32_t>* events,
                         bool after_kernels);
  std::int32_t gather_layer(Program& program, const Held& held);  // ZeRO-3
  void scatter_layer(Program& program, const Held& held);
  void group_transfer(Program& program, Collective collective, Group group, double bytes, const char* name,
                      bool after_kernels, std::vector<std::int32_t>* events);
  void quantise_weights(Program& program, const Held& held);
  void append_forward_ends(Program& program, std::int64_t stage, bool before_layers);
  void append_backward_ends(Program& program, std::int64_t stage, bool before_layers);
  bool bucketed(std::int64_t stage) const;
  double bucket_elements() const;
  double shard(const Held& held) const;  // elements whose optimizer state this rank keeps
  bool zero3() const { return s_.sharding.zero_stage == 3; }
  bool data_parallel() const { return s_.layout.dp * s_.layout.cp > 1; }

  StepGraph& graph_;
  const Scenario& s_;
  const StageSplit& split_;
  const Stack& stack_;
  LayerTasks layers_;
  std::deque<std::pair<LayerKind, LayerPass>> forward_memo_;
  std::deque<std::pair<LayerKind, LayerPass>> backward_memo_;
  std::map<std::int64_t, std::vector<std::int32_t>> gathered_;  // events of a stage's parameter gathers
};

}  // namespace stepcast
