#include "graph/layer_tasks.h"

#include "model/expert_load.h"

namespace stepcast {

LayerTasks::LayerTasks(StepGraph& graph, const Scenario& scenario, const Stack& stack)
    : s_(scenario), stack_(stack), model_(scenario.model), x_(shapes_of(scenario)), emit_(graph) {
  if (!model_.moe || s_.moe.routing.kind != RoutingKind::kZipf) return;
  const double capacity = s_.moe.capacity_factor.value_or(1e9);
  overload_ = zipf_load_factor(model_.moe->experts, s_.layout.ep, s_.moe.routing.exponent,
                               s_.moe.routing.seed, capacity) -
              1;
}

// Share of a module's launches that stay with the host under CUDA graphs. A full graph launches once an
// iteration; graphs of layer pieces cover attention, router and preprocessing, not the dropless expert FFN
// (domain 6.3).
void LayerTasks::use_launch_share(double share) {
  double factor = stack_.kernels_factor;
  if (s_.kernels.cuda_graphs == CudaGraphs::kFull) factor = 0;
  if (s_.kernels.cuda_graphs == CudaGraphs::kLayer) factor *= share;
  if (s_.overlap.moe_a2a && s_.kernels.cuda_graphs != CudaGraphs::kFull) factor *= stack_.ep_host_factor;
  emit_.set_launch_factor(factor);
}

// --- building blocks
// -------------------------------------------------------------------------------------------------

Kernel LayerTasks::gemm(Role role, double m, double n, double k, Dtype dtype) const {
  Kernel kernel;
  kernel.kind = KernelKind::kGemm;
  kernel.role = role;
  kernel.dtype = dtype;
  kernel.m = m;
  kernel.n = n;
  kernel.k = k;
  kernel.accumulate_fp32 = role == Role::kWeightGrad;
  return kernel;
}

void LayerTasks::emit_gemm(const Kernel& kernel, const char* name) {
  emit_.kernel(OpClass::kGemm, kernel, 3, name);
}

void LayerTasks::elementwise(double bytes, double launches, const char* name, MemoryKind kind) {
  Kernel kernel;
  kernel.memory = kind;
  const bool framework_dependent = kind == MemoryKind::kElementwise || kind == MemoryKind::kNorm;
  kernel.bytes = bytes * (framework_dependent ? stack_.elementwise_traffic : 1);
  emit_.kernel(OpClass::kMemoryBound, kernel, launches, name);
}

void LayerTasks::quantise(double elements, const char* name) {
  const double bytes = quantise_bytes_per_element(s_.precision.recipe);
  if (bytes > 0) elementwise(elements * bytes, 2, name, MemoryKind::kQuantise);
}

Transfer LayerTasks::tp(Collective collective, double rows, double width) const {
  Transfer transfer;
  transfer.collective = collective;
  transfer.group = Group::kTp;
  transfer.bytes = rows * width * x_.activation_bytes;
  return transfer;
}

void LayerTasks::tp_transfer(Collective collective, double rows, double width, const char* name) {
  if (tp_on()) emit_.transfer(OpClass::kTp, tp(collective, rows, width), Stream::kTp, name);
}

Arrival LayerTasks::tp_transfer_async(Collective collective, double rows, double width, const char* name) {
  return emit_.transfer_async(OpClass::kTp, tp(collective, rows, width), Stream::kTp, name);
}

// RMSNorm reads and writes 2 bytes an element forward, about 8 h backward; unfused it is a chain of eight
// eager kernels over BF16 and FP32 copies: 36 bytes an element forward, about twice that backward (derived:
// cast 2+4, square 4+4, mean 4, scale 4+4, cast 4+2, weight 2+2).
void LayerTasks::norm(Role role, double width) {
  const bool forward = role == Role::kForward;
  double per_element = (forward ? 2 : 4) * x_.activation_bytes;
  double launches = 3;
  if (!s_.kernels.fused_norm) {
    per_element = forward ? 36 : 72;
    launches = forward ? 8 : 16;
  }
  elementwise(per_element * width * x_.local_tokens, launches, forward ? "norm" : "norm_bwd",
              MemoryKind::kNorm);
}

// bias-dropout-add: read branch and residual, write sum; backward the gradient is copied once.
void LayerTasks::residual(Role role) {
  const double per_element = (role == Role::kForward ? 3 : 1) * x_.activation_bytes;
  elementwise(per_element * x_.hidden * x_.local_tokens, 3,
              role == Role::kForward ? "residual_add" : "residual_bwd");
}

void LayerTasks::linear(double rows, double n, double k, const char* name) {
  quantise(rows * k, "quantise_input");
  emit_gemm(gemm(Role::kForward, rows, n, k, x_.linear), name);
}

void LayerTasks::linear_grads(double rows, double n, double k, const char* name) {
  quantise(rows * n, "quantise_grad");
  emit_gemm(gemm(Role::kInputGrad, rows, k, n, x_.linear), name);
  emit_gemm(gemm(Role::kWeightGrad, n, k, rows, x_.linear), name);
}

// Input gathered over the sequence (SP), output split over TP. With userbuffers the gather is pipelined with
// the GEMM.
void LayerTasks::column_parallel(double n, double k, const char* name) {
  const bool gathers = tp_on() && x_.sequence_parallel;
  quantise(x_.tokens * k / (gathers ? x_.tp : 1), "quantise_input");
  if (!gathers || !s_.overlap.tp) {
    if (gathers) tp_transfer(Collective::kAllGather, x_.tokens, k, "tp_all_gather");
    emit_gemm(gemm(Role::kForward, x_.tokens, n, k, x_.linear), name);
    return;
  }
  const auto pieces = static_cast<int>(stack_.tp_overlap_chunks);
  std::vector<Arrival> arrived;
  for (int i = 0; i < pieces; ++i)
    arrived.push_back(tp_transfer_async(Collective::kAllGather, x_.tokens / pieces, k, "tp_all_gather"));
  for (const Arrival arrival : arrived) {
    emit_.need(arrival);
    emit_gemm(gemm(Role::kForward, x_.tokens / pieces, n, k, x_.linear), name);
  }
}

// The saved input is gathered again beside the input gradient, and the input gradient is reduced beside the
// weight gradient (both asynchronous with and without userbuffers).
void LayerTasks::column_parallel_grads(double n, double k, const char* name) {
  quantise(x_.tokens * n, "quantise_grad");
  Arrival gathered;
  if (tp_on() && x_.sequence_parallel)
    gathered = tp_transfer_async(Collective::kAllGather, x_.tokens, k, "tp_all_gather");
  emit_gemm(gemm(Role::kInputGrad, x_.tokens, k, n, x_.linear), name);
  Arrival reduced;
  if (tp_on()) {
    const Collective reduction = x_.sequence_parallel ? Collective::kReduceScatter : Collective::kAllReduce;
    reduced = tp_transfer_async(reduction, x_.tokens, k, "tp_reduce");
  }
  if (gathered.event >= 0) emit_.need(gathered);
  emit_gemm(gemm(Role::kWeightGrad, n, k, x_.tokens, x_.linear), name);
  if (reduced.event >= 0) emit_.need(reduced);
}

// Input split over TP, output summed: reduce-scattered (SP) or all-reduced.
void LayerTasks::row_parallel(double n, double k, const char* name) {
  quantise(x_.tokens * k, "quantise_input");
  if (!tp_on() || !x_.sequence_parallel || !s_.overlap.tp) {
    emit_gemm(gemm(Role::kForward, x_.tokens, n, k, x_.linear), name);
    tp_transfer(x_.sequence_parallel ? Collective::kReduceScatter : Collective::kAllReduce, x_.tokens, n,
                "tp_reduce");
    return;
  }
  const auto pieces = static_cast<int>(stack_.tp_overlap_chunks);
  for (int i = 0; i < pieces; ++i) {
    emit_gemm(gemm(Role::kForward, x_.tokens / pieces, n, k, x_.linear), name);
    const Arrival reduced =
        tp_transfer_async(Collective::kReduceScatter, x_.tokens / pieces, n, "tp_reduce_scatter");
    if (i == pieces - 1) emit_.need(reduced);
  }
}

void LayerTasks::row_parallel_grads(double n, double k, const char* name) {
  const bool gathers = tp_on() && x_.sequence_parallel;
  quantise(x_.tokens * n / (gathers ? x_.tp : 1), "quantise_grad");
  if (gathers && s_.overlap.tp) {
    const auto pieces = static_cast<int>(stack_.tp_overlap_chunks);
    std::vector<Arrival> arrived;
    for (int i = 0; i < pieces; ++i)
      arrived.push_back(tp_transfer_async(Collective::kAllGather, x_.tokens / pieces, n, "tp_all_gather"));
    for (const Arrival arrival : arrived) {
      emit_.need(arrival);
      emit_gemm(gemm(Role::kInputGrad, x_.tokens / pieces, k, n, x_.linear), name);
    }
  } else {
    if (gathers) tp_transfer(Collective::kAllGather, x_.tokens, n, "tp_all_gather");
    emit_gemm(gemm(Role::kInputGrad, x_.tokens, k, n, x_.linear), name);
  }
  emit_gemm(gemm(Role::kWeightGrad, n, k, x_.tokens, x_.linear), name);
}

// Gated: read gate and up, write the product (6 f); backward reads both and the gradient, writes two
// gradients (10 f).
void LayerTasks::activation(Role role, double rows, double width) {
  const double gates = model_.gated_ffn ? 2 : 1;
  const double elements = role == Role::kForward ? gates + 1 : 2 * gates + 1;
  elementwise(elements * x_.activation_bytes * width * rows, 3,
              role == Role::kForward ? "activation" : "activation_bwd");
}

// --- dense FFN
// -------------------------------------------------------------------------------------------------------

void LayerTasks::dense_ffn_forward() {
  const auto f = static_cast<double>(model_.ffn_hidden);
  const double gates = model_.gated_ffn ? 2 : 1;
  norm(Role::kForward, x_.hidden);
  column_parallel(gates * f / x_.tp, x_.hidden, "fc1");
  activation(Role::kForward, x_.tokens, f / x_.tp);
  row_parallel(x_.hidden, f / x_.tp, "fc2");
  residual(Role::kForward);
}

void LayerTasks::dense_ffn_backward() {
  const auto f = static_cast<double>(model_.ffn_hidden);
  const double gates = model_.gated_ffn ? 2 : 1;
  if (s_.recompute.has("mlp")) {
    column_parallel(gates * f / x_.tp, x_.hidden, "fc1_recompute");
    activation(Role::kForward, x_.tokens, f / x_.tp);
    row_parallel(x_.hidden, f / x_.tp, "fc2_recompute");
  }
  residual(Role::kInputGrad);
  if (s_.recompute.has("layernorm")) norm(Role::kForward, x_.hidden);
  row_parallel_grads(x_.hidden, f / x_.tp, "fc2_grad");
  activation(Role::kInputGrad, x_.tokens, f / x_.tp);
  column_parallel_grads(gates * f / x_.tp, x_.hidden, "fc1_grad");
  norm(Role::kInputGrad, x_.hidden);
}

// --- passes
// ----------------------------------------------------------------------------------------------------------

LayerPass LayerTasks::forward(LayerKind kind) {
  emit_.start_pass();
  LayerPass pass;
  use_launch_share(0.1);
  attention_forward(kind.windowed);
  if (!kind.moe) {
    pass.before = emit_.take();
    dense_ffn_forward();
    pass.experts = emit_.take();
    return pass;
  }
  use_launch_share(0.5);
  norm(Role::kForward, x_.hidden);
  router(Role::kForward);
  permute(Role::kForward);
  if (!s_.overlap.shared_expert) shared_expert_forward();
  pass.before = emit_.take();
  dispatch(true);
  pass.exchange = emit_.take();
  if (s_.overlap.shared_expert) shared_expert_forward();
  experts_forward();
  pass.experts = emit_.take();
  combine(true);
  pass.back = emit_.take();
  unpermute(Role::kForward);
  residual(Role::kForward);
  pass.after = emit_.take();
  return pass;
}

LayerPass LayerTasks::backward(LayerKind kind) {
  emit_.start_pass();
  LayerPass pass;
  if (!kind.moe) {
    use_launch_share(0.1);
    dense_ffn_backward();
    pass.experts = emit_.take();
    attention_backward(kind.windowed);
    pass.after = emit_.take();
    return pass;
  }
  use_launch_share(0.5);
  if (s_.recompute.has("moe")) {
    router(Role::kForward);
    permute(Role::kForward);
    dispatch(true);
    experts_forward();
    combine(true);
  }
  residual(Role::kInputGrad);
  unpermute(Role::kInputGrad);
  pass.before = emit_.take();
  combine(false);
  pass.exchange = emit_.take();
  experts_backward();
  pass.experts = emit_.take();
  dispatch(false);
  pass.back = emit_.take();
  permute(Role::kInputGrad);
  shared_expert_backward();
  router(Role::kInputGrad);
  if (s_.recompute.has("layernorm")) norm(Role::kForward, x_.hidden);
  norm(Role::kInputGrad, x_.hidden);
  use_launch_share(0.1);
  attention_backward(kind.windowed);
  pass.after = emit_.take();
  return pass;
}

// --- ends of the model
// -----------------------------------------------------------------------------------------------

Program LayerTasks::embedding_forward() {
  emit_.start_pass();
  use_launch_share(1);
  elementwise(2 * x_.activation_bytes * x_.hidden * x_.tokens, 4, "embedding");
  tp_transfer(x_.sequence_parallel ? Collective::kReduceScatter : Collective::kAllReduce, x_.tokens,
              x_.hidden, "tp_reduce");
  return emit_.take();
}

Program LayerTasks::embedding_backward() {
  emit_.start_pass();
  use_launch_share(1);
  if (x_.sequence_parallel) tp_transfer(Collective::kAllGather, x_.tokens, x_.hidden, "tp_all_gather");
  elementwise(2 * x_.activation_bytes * x_.hidden * x_.tokens, 4, "embedding_bwd");
  return emit_.take();
}

// The loss in FP32: cast (2 + 4), max (4), exponentials and their sum (4 + 4) forward; softmax minus target
// (4 + 2) backward: 24 bytes a logit in all.
Program LayerTasks::head_forward() {
  emit_.start_pass();
  use_launch_share(1);
  norm(Role::kForward, x_.hidden);
  if (x_.sequence_parallel) tp_transfer(Collective::kAllGather, x_.tokens, x_.hidden, "tp_all_gather");
  emit_gemm(gemm(Role::kForward, x_.tokens, x_.vocab_rows, x_.hidden, x_.plain), "lm_head");
  elementwise(18 * x_.tokens * x_.vocab_rows, 8, "cross_entropy");
  for (int i = 0; i < 3; ++i)
    tp_transfer(Collective::kAllReduce, x_.tokens, 4 / x_.activation_bytes, "tp_loss");
  return emit_.take();
}

Program LayerTasks::head_backward() {
  emit_.start_pass();
  use_launch_share(1);
  elementwise(6 * x_.tokens * x_.vocab_rows, 4, "cross_entropy_bwd");
  emit_gemm(gemm(Role::kInputGrad, x_.tokens, x_.hidden, x_.vocab_rows, x_.plain), "lm_head_grad");
  Arrival reduced;
  if (tp_on())
    reduced = tp_transfer_async(x_.sequence_parallel ? Collective::kReduceScatter : Collective::kAllReduce,
                                x_.tokens, x_.hidden, "tp_reduce");
  emit_gemm(gemm(Role::kWeightGrad, x_.vocab_rows, x_.hidden, x_.tokens, x_.plain), "lm_head_grad");
  if (reduced.event >= 0) emit_.need(reduced);
  norm(Role::kInputGrad, x_.hidden);
  return emit_.take();
}

Program LayerTasks::mtp_input_forward() {
  emit_.start_pass();
  use_launch_share(1);
  elementwise(2 * x_.activation_bytes * x_.hidden * x_.tokens, 4, "mtp_embedding");
  norm(Role::kForward, x_.hidden);
  norm(Role::kForward, x_.hidden);
  column_parallel(x_.hidden / x_.tp, 2 * x_.hidden, "eh_proj");
  return emit_.take();
}

Program LayerTasks::mtp_input_backward() {
  emit_.start_pass();
  use_launch_share(1);
  column_parallel_grads(x_.hidden / x_.tp, 2 * x_.hidden, "eh_proj_grad");
  norm(Role::kInputGrad, x_.hidden);
  norm(Role::kInputGrad, x_.hidden);
  return emit_.take();
}

}  // namespace stepcast
