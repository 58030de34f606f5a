#include "graph/layer_tasks.h"

#include "base/units.h"
#include "memory/activations.h"

namespace stepcast {

LayerTasks::LayerTasks(StepGraph& graph, const Scenario& scenario, const Stack& stack)
    : s_(scenario), stack_(stack), model_(scenario.model), x_(shapes_of(scenario)), emit_(graph) {
  if (!model_.moe) return;
  const double imbalance = expert_imbalance(scenario);
  if (s_.moe.pad_to_capacity || imbalance < 1)
    rows_factor_ = imbalance;  // every rank computes the padding, or drops what is over
  else
    overload_ = imbalance - 1;
}

// Under CUDA graphs the host launches a full graph once an iteration; graphs of layer pieces cover attention, router
// and preprocessing (`graphed`), not the dropless expert FFN.
void LayerTasks::use_launches(bool graphed) {
  double factor = stack_.kernels_factor;
  if (s_.overlap.moe_a2a) factor *= stack_.ep_host_factor;
  if (s_.kernels.cuda_graphs == CudaGraphs::kLayer)
    factor *= graphed ? stack_.layer_graph_launches : stack_.layer_graph_moe_launches;
  if (s_.kernels.cuda_graphs == CudaGraphs::kFull) factor = 0;
  emit_.set_launch_factor(factor);
}

// --- building blocks

// A weight gradient is added to its buffer (read and written); FSDP writes it anew for each micro-batch.
Kernel LayerTasks::gemm(Role role, double m, double n, double k, Dtype dtype) const {
  Kernel kernel;
  kernel.kind = KernelKind::kGemm;
  kernel.role = role;
  kernel.dtype = dtype;
  kernel.m = m;
  kernel.n = n;
  kernel.k = k;
  const bool accumulates = s_.sharding.engine != Engine::kFsdp;
  if (role == Role::kWeightGrad)
    kernel.result_bytes = accumulates ? 2 * real(s_.optimizer.grad_bytes) : x_.activation_bytes;
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

// Sum over TP of a row-parallel output: scattered over the sequence under SP.
Collective LayerTasks::tp_sum() const {
  return x_.sequence_parallel ? Collective::kReduceScatter : Collective::kAllReduce;
}

// RMSNorm reads and writes 2 bytes an element forward, about 8 h backward. Unfused it is a chain of eight eager kernels
// over BF16 and FP32 copies: 36 bytes an element forward (cast 2+4, square 4+4, mean 4, scale 4+4, cast 4+2, weight
// 2+2), about twice that backward; that count is complete, so the stack's element-wise factor does not apply.
void LayerTasks::norm(Role role, double width) {
  const bool forward = role == Role::kForward;
  const char* name = forward ? "norm" : "norm_bwd";
  const double elements = width * x_.local_tokens;
  if (s_.kernels.fused_norm) {
    elementwise((forward ? 2 : 4) * x_.activation_bytes * elements, 3, name, MemoryKind::kNorm);
    return;
  }
  elementwise((forward ? 36 : 72) / stack_.elementwise_traffic * elements, forward ? 8 : 16, name,
              MemoryKind::kNorm);
}

// Layers with four norms (Grok-1) have one more after attention and after the FFN.
void LayerTasks::post_norm(Role role) {
  if (model_.norms_per_layer > 2) norm(role, x_.hidden);
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

// GEMM pieces that each wait for the part of the gathered input that they read (userbuffers).
void LayerTasks::gathered_gemm(double width, const Kernel& whole, const char* name) {
  const auto pieces = static_cast<int>(stack_.tp_overlap_chunks);
  std::vector<Arrival> arrived;
  for (int i = 0; i < pieces; ++i)
    arrived.push_back(tp_transfer_async(Collective::kAllGather, x_.tokens / pieces, width, "tp_all_gather"));
  Kernel piece = whole;
  piece.m = whole.m / pieces;
  for (const Arrival arrival : arrived) {
    emit_.need(arrival);
    emit_gemm(piece, name);
  }
}

// Input gathered over the sequence (SP), output split over TP.
void LayerTasks::column_parallel(double n, double k, const char* name, Dtype dtype) {
  const bool gathers = tp_on() && x_.sequence_parallel;
  const Kernel whole = gemm(Role::kForward, x_.tokens, n, k, dtype);
  if (dtype == x_.linear) quantise(x_.tokens * k / (gathers ? x_.tp : 1), "quantise_input");
  if (gathers && s_.overlap.tp) {
    gathered_gemm(k, whole, name);
    return;
  }
  if (gathers) tp_transfer(Collective::kAllGather, x_.tokens, k, "tp_all_gather");
  emit_gemm(whole, name);
}

// The saved input is gathered again beside the input gradient, and the input gradient is reduced beside the weight
// gradient (both asynchronous with and without userbuffers).
void LayerTasks::column_parallel_grads(double n, double k, const char* name, Dtype dtype) {
  if (dtype == x_.linear) quantise(x_.tokens * n, "quantise_grad");
  Arrival gathered;
  if (tp_on() && x_.sequence_parallel)
    gathered = tp_transfer_async(Collective::kAllGather, x_.tokens, k, "tp_all_gather");
  emit_gemm(gemm(Role::kInputGrad, x_.tokens, k, n, dtype), name);
  Arrival reduced;
  if (tp_on()) reduced = tp_transfer_async(tp_sum(), x_.tokens, k, "tp_reduce");
  if (gathered.event >= 0) emit_.need(gathered);
  emit_gemm(gemm(Role::kWeightGrad, n, k, x_.tokens, dtype), name);
  if (reduced.event >= 0) emit_.need(reduced);
}

// Input split over TP, output summed: reduce-scattered (SP) or all-reduced.
void LayerTasks::row_parallel(double n, double k, const char* name) {
  quantise(x_.tokens * k, "quantise_input");
  const Kernel whole = gemm(Role::kForward, x_.tokens, n, k, x_.linear);
  if (!tp_on() || !x_.sequence_parallel || !s_.overlap.tp) {
    emit_gemm(whole, name);
    tp_transfer(tp_sum(), x_.tokens, n, "tp_reduce");
    return;
  }
  const auto pieces = static_cast<int>(stack_.tp_overlap_chunks);
  Kernel piece = whole;
  piece.m = whole.m / pieces;
  for (int i = 0; i < pieces; ++i) {
    emit_gemm(piece, name);
    const Arrival reduced = tp_transfer_async(tp_sum(), x_.tokens / pieces, n, "tp_reduce");
    if (i == pieces - 1) emit_.need(reduced);
  }
}

void LayerTasks::row_parallel_grads(double n, double k, const char* name) {
  const bool gathers = tp_on() && x_.sequence_parallel;
  quantise(x_.tokens * n / (gathers ? x_.tp : 1), "quantise_grad");
  const Kernel input_grad = gemm(Role::kInputGrad, x_.tokens, k, n, x_.linear);
  if (gathers && s_.overlap.tp) {
    gathered_gemm(n, input_grad, name);
  } else {
    if (gathers) tp_transfer(Collective::kAllGather, x_.tokens, n, "tp_all_gather");
    emit_gemm(input_grad, name);
  }
  emit_gemm(gemm(Role::kWeightGrad, n, k, x_.tokens, x_.linear), name);
}

// Gated: read gate and up, write the product (6 f); backward reads both and the gradient, writes two gradients (10 f).
void LayerTasks::activation(Role role, double rows, double width) {
  const double elements = role == Role::kForward ? gates() + 1 : 2 * gates() + 1;
  elementwise(elements * x_.activation_bytes * width * rows, 3,
              role == Role::kForward ? "activation" : "activation_bwd");
}

// --- dense FFN

void LayerTasks::dense_ffn_forward() {
  const double f = real(model_.ffn_hidden);
  norm(Role::kForward, x_.hidden);
  column_parallel(gates() * f / x_.tp, x_.hidden, "fc1", x_.linear);
  activation(Role::kForward, x_.tokens, f / x_.tp);
  row_parallel(x_.hidden, f / x_.tp, "fc2");
  post_norm(Role::kForward);
  residual(Role::kForward);
}

void LayerTasks::dense_ffn_backward() {
  const double f = real(model_.ffn_hidden);
  if (s_.recompute.has("mlp") || recomputes_by_op()) {
    column_parallel(gates() * f / x_.tp, x_.hidden, "fc1_recompute", x_.linear);
    activation(Role::kForward, x_.tokens, f / x_.tp);
    if (!recomputes_by_op()) row_parallel(x_.hidden, f / x_.tp, "fc2_recompute");
  }
  residual(Role::kInputGrad);
  post_norm(Role::kInputGrad);
  row_parallel_grads(x_.hidden, f / x_.tp, "fc2_grad");
  activation(Role::kInputGrad, x_.tokens, f / x_.tp);
  if (s_.recompute.has("layernorm") || recomputes_by_op()) norm(Role::kForward, x_.hidden);
  column_parallel_grads(gates() * f / x_.tp, x_.hidden, "fc1_grad", x_.linear);
  norm(Role::kInputGrad, x_.hidden);
}

// --- passes

LayerPass LayerTasks::forward(LayerKind kind) {
  LayerPass pass;
  use_launches(true);
  attention_forward(kind.windowed);
  if (!kind.moe) {
    pass.before = emit_.take();
    dense_ffn_forward();
    pass.experts = emit_.finish();
    return pass;
  }
  use_launches(false);
  norm(Role::kForward, x_.hidden);
  router(Role::kForward);
  latent(Role::kForward, true);
  permute("permute");
  if (!s_.overlap.shared_expert) shared_expert_forward();
  pass.before = emit_.take();
  dispatch(true);
  if (s_.overlap.shared_expert) beside_transfers([&] { shared_expert_forward(); });
  pass.exchange = emit_.take();
  experts_forward();
  pass.experts = emit_.take();
  combine(true);
  pass.back = emit_.take();
  permute("unpermute");
  latent(Role::kForward, false);
  post_norm(Role::kForward);
  residual(Role::kForward);
  pass.after = emit_.finish();
  return pass;
}

void LayerTasks::recompute_moe() {
  if (!s_.recompute.has("moe")) return;
  router(Role::kForward);
  latent(Role::kForward, true);
  permute("permute");
  shared_expert_forward();
  dispatch(true);
  experts_forward();
  combine(true);
}

LayerPass LayerTasks::backward(LayerKind kind) {
  LayerPass pass;
  if (!kind.moe) {
    use_launches(true);
    dense_ffn_backward();
    pass.experts = emit_.take();
    attention_backward(kind.windowed);
    pass.after = emit_.finish();
    return pass;
  }
  use_launches(false);
  recompute_moe();
  residual(Role::kInputGrad);
  post_norm(Role::kInputGrad);
  latent(Role::kInputGrad, false);
  permute("unpermute_bwd");
  pass.before = emit_.take();
  combine(false);
  if (s_.overlap.shared_expert) beside_transfers([&] { shared_expert_backward(); });
  pass.exchange = emit_.take();
  experts_backward();
  if (!s_.overlap.delay_wgrad) expert_weight_gradients();
  pass.experts = emit_.take();
  dispatch(false);
  pass.back = emit_.take();
  if (s_.overlap.delay_wgrad) beside_transfers([&] { expert_weight_gradients(); });
  pass.weights = emit_.take();
  permute("permute_bwd");
  latent(Role::kInputGrad, true);
  if (!s_.overlap.shared_expert) shared_expert_backward();
  router(Role::kInputGrad);
  if (s_.recompute.has("layernorm")) norm(Role::kForward, x_.hidden);
  norm(Role::kInputGrad, x_.hidden);
  use_launches(true);
  attention_backward(kind.windowed);
  pass.after = emit_.finish();
  return pass;
}

// --- ends of the model

Program LayerTasks::embedding_forward() {
  use_launches(true);
  elementwise(2 * x_.activation_bytes * x_.hidden * x_.tokens, 4, "embedding");
  tp_transfer(tp_sum(), x_.tokens, x_.hidden, "tp_reduce");
  return emit_.finish();
}

Program LayerTasks::embedding_backward() {
  use_launches(true);
  if (x_.sequence_parallel) tp_transfer(Collective::kAllGather, x_.tokens, x_.hidden, "tp_all_gather");
  elementwise(2 * x_.activation_bytes * x_.hidden * x_.tokens, 4, "embedding_bwd");
  return emit_.finish();
}

// The loss in FP32: cast (2 + 4), max (4), exponentials and their sum (4 + 4) forward; softmax minus target (4 + 2)
// backward: 24 bytes a logit in all.
Program LayerTasks::head_forward() {
  use_launches(true);
  norm(Role::kForward, x_.hidden);
  column_parallel(x_.vocab_rows, x_.hidden, "lm_head", x_.plain);
  elementwise(18 * x_.tokens * x_.vocab_rows, 8, "cross_entropy");
  for (int i = 0; i < 3; ++i)
    tp_transfer(Collective::kAllReduce, x_.tokens, 4 / x_.activation_bytes, "tp_loss");
  return emit_.finish();
}

Program LayerTasks::head_backward() {
  use_launches(true);
  elementwise(6 * x_.tokens * x_.vocab_rows, 4, "cross_entropy_bwd");
  column_parallel_grads(x_.vocab_rows, x_.hidden, "lm_head_grad", x_.plain);
  norm(Role::kInputGrad, x_.hidden);
  return emit_.finish();
}

Program LayerTasks::mtp_input_forward() {
  use_launches(true);
  elementwise(2 * x_.activation_bytes * x_.hidden * x_.tokens, 4, "mtp_embedding");
  norm(Role::kForward, x_.hidden);
  norm(Role::kForward, x_.hidden);
  column_parallel(x_.hidden / x_.tp, 2 * x_.hidden, "eh_proj", x_.linear);
  return emit_.finish();
}

Program LayerTasks::mtp_input_backward() {
  use_launches(true);
  column_parallel_grads(x_.hidden / x_.tp, 2 * x_.hidden, "eh_proj_grad", x_.linear);
  norm(Role::kInputGrad, x_.hidden);
  norm(Role::kInputGrad, x_.hidden);
  return emit_.finish();
}

}  // namespace stepcast
