// The kernels and transfers of one transformer layer on one rank, forward and backward, in the order in which
// Megatron launches them (GEMM shapes, bytes and collectives: domain 3 and 6; shapes.h has the symbols).
#pragma once

#include <array>

#include "cost/stack.h"
#include "graph/emitter.h"
#include "graph/shapes.h"

namespace stepcast {

// A pass of a layer in pieces, so that the expert all-to-all of one micro-batch can run beside another's
// compute. Dense layers have empty transfer pieces.
struct LayerPass {
  Program before;    // forward: attention, router, permute;  backward: (nothing)
  Program exchange;  // forward: dispatch;                    backward: combine's gradient
  Program experts;   // forward: experts or dense FFN;        backward: their gradients
  Program back;      // forward: combine;                     backward: dispatch's gradient
  Program after;     // forward: unpermute, residual;         backward: permute, router, attention
};

struct LayerKind {
  bool moe = false;
  bool windowed = false;
  bool operator==(const LayerKind&) const = default;
};

class LayerTasks {
 public:
  LayerTasks(StepGraph& graph, const Scenario& scenario, const Stack& stack);

  LayerPass forward(LayerKind kind);
  LayerPass backward(LayerKind kind);  // with the recompute that the scenario asks for

  Program embedding_forward();
  Program embedding_backward();
  Program head_forward();  // final norm, output matrix, loss
  Program head_backward();
  Program mtp_input_forward();  // norms and eh_proj of one MTP depth
  Program mtp_input_backward();

 private:
  // Pieces of the layer; a pass is a sequence of them.
  void norm(Role role, double width);
  void residual(Role role);
  void linear(double rows, double n, double k, const char* name);
  void linear_grads(double rows, double n, double k, const char* name);
  void column_parallel(double n, double k, const char* name);
  void column_parallel_grads(double n, double k, const char* name);
  void row_parallel(double n, double k, const char* name);
  void row_parallel_grads(double n, double k, const char* name);
  void qkv_forward();
  void qkv_backward();
  void mla_down_forward();
  void mla_up_forward();
  void mla_backward();
  void rope(Role role);
  void attention_core(Role role, bool windowed);
  void unfused_attention(Role role, double keys);
  void context_parallel_attention(const Kernel& core);
  void attention_forward(bool windowed);
  void attention_backward(bool windowed);
  void activation(Role role, double rows, double width);
  void dense_ffn_forward();
  void dense_ffn_backward();
  void shared_expert_forward();
  void shared_expert_backward();
  void router(Role role);
  void permute(Role role);
  void unpermute(Role role);
  void dispatch(bool forward_direction);
  void combine(bool forward_direction);
  void experts_forward();
  void experts_backward();
  void expert_linear(Role role, double n, double k, const char* name);

  Kernel gemm(Role role, double m, double n, double k, Dtype dtype) const;
  void emit_gemm(const Kernel& kernel, const char* name);
  void elementwise(double bytes, double launches, const char* name,
                   MemoryKind kind = MemoryKind::kElementwise);
  void quantise(double elements, const char* name);
  void tp_transfer(Collective collective, double rows, double width, const char* name);
  Arrival tp_transfer_async(Collective collective, double rows, double width, const char* name);
  Transfer tp(Collective collective, double rows, double width) const;
  bool tp_on() const { return x_.tp > 1; }
  void use_launch_share(double share);  // of CUDA graphs in force

  const Scenario& s_;
  const Stack& stack_;
  const Model& model_;
  Shapes x_;
  Emitter emit_;
  double overload_ = 0;  // rows of the most loaded expert rank over the mean, minus 1
};

}  // namespace stepcast
