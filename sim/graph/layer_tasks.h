// The kernels and transfers of one transformer layer on one rank, forward and backward, in the order in which Megatron
// launches them (shapes.h has the symbols; GEMM shapes, bytes and collectives beside each function).
#pragma once

#include "cost/stack.h"
#include "graph/emitter.h"
#include "graph/shapes.h"

namespace stepcast {

// A pass of a layer in pieces, so that the expert all-to-all of one micro-batch can run beside another's compute.
// Dense layers have empty transfer pieces.
struct LayerPass {
  Program before;    // forward: attention, router, permute;  backward: what comes before combine's gradient
  Program exchange;  // forward: dispatch;                    backward: combine's gradient
  Program experts;   // forward: experts or dense FFN;        backward: their gradients
  Program back;      // forward: combine;                     backward: dispatch's gradient
  Program weights;   // backward: the experts' weight gradients when they are delayed
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
  LayerPass backward(LayerKind kind);  // with the selective recompute that the scenario asks for

  Program embedding_forward();
  Program embedding_backward();
  Program head_forward();  // final norm, output matrix, loss
  Program head_backward();
  Program mtp_input_forward();  // norms and eh_proj of one MTP depth
  Program mtp_input_backward();

 private:
  // Building blocks.
  void use_launches(bool graphed);
  Kernel gemm(Role role, double m, double n, double k, Dtype dtype) const;
  void emit_gemm(const Kernel& kernel, const char* name);
  void elementwise(double bytes, double launches, const char* name,
                   MemoryKind kind = MemoryKind::kElementwise);
  void quantise(double elements, const char* name);
  bool tp_on() const { return x_.tp > 1; }
  Transfer tp(Collective collective, double rows, double width) const;
  Collective tp_sum() const;
  void tp_transfer(Collective collective, double rows, double width, const char* name);
  Arrival tp_transfer_async(Collective collective, double rows, double width, const char* name);
  template <typename Work>
  void beside_transfers(Work work) {  // kernels that do not wait for the transfers under way
    const std::vector<Arrival> needs = emit_.take_needs();
    work();
    for (const Arrival arrival : needs) emit_.need(arrival);
  }

  void norm(Role role, double width);
  void post_norm(Role role);
  void residual(Role role);
  void activation(Role role, double rows, double width);
  void linear(double rows, double n, double k, const char* name);
  void linear_grads(double rows, double n, double k, const char* name);
  void gathered_gemm(double width, const Kernel& whole, const char* name);
  void column_parallel(double n, double k, const char* name, Dtype dtype);
  void column_parallel_grads(double n, double k, const char* name, Dtype dtype);
  void row_parallel(double n, double k, const char* name);
  void row_parallel_grads(double n, double k, const char* name);
  void dense_ffn_forward();
  void dense_ffn_backward();
  double gates() const { return model_.gated_ffn ? 2 : 1; }  // matrices of the first linear layer
  bool recomputes_by_op() const {
    return stack_.selective_by_op && s_.recompute.granularity == Granularity::kSelective;
  }

  // attention_tasks.cpp
  void attention_forward(bool windowed);
  void attention_backward(bool windowed);
  void qkv_forward();
  void qkv_backward();
  void mla_down_forward();
  void mla_up_forward();
  void mla_backward();
  double mla_latent_width() const;
  void rope(Role role);
  void attention_core(Role role, bool windowed);
  void unfused_attention(Role role, double keys);
  void context_parallel_attention(const Kernel& core);

  // expert_tasks.cpp
  void router(Role role);
  void latent(Role role, bool down);
  void permute(const char* name);
  void token_transfer(Collective collective, const char* name);
  void etp_transfer(Collective collective, double bytes_per_element, const char* name);
  void dispatch(bool forward_direction);
  void combine(bool forward_direction);
  void recompute_moe();
  void sort_tokens(const char* name);
  void expert_linear(Role role, double n, double k, const char* name);
  void experts_forward();
  void experts_backward();  // input gradients
  void expert_weight_gradients();
  void shared_expert_forward();
  void shared_expert_backward();
  double expert_rows() const;  // of all local experts together

  const Scenario& s_;
  const Stack& stack_;
  const Model& model_;
  Shapes x_;
  Emitter emit_;
  double rows_factor_ = 1;  // rows of every rank over the mean (padding to capacity)
  double overload_ = 0;     // rows of the most loaded expert rank over the mean, minus 1
};

}  // namespace stepcast
