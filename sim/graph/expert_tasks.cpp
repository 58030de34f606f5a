// Mixture of experts of one layer: router, permutation, dispatch and combine, routed and shared experts.
#include <utility>

#include "base/units.h"
#include "graph/layer_tasks.h"

namespace stepcast {

// Logits in FP32 (write, read), top-k, softmax or sigmoid, probabilities, map: about 16 bytes an expert and token
// forward, 8 backward, in a dozen small kernels.
void LayerTasks::router(Role role) {
  const double experts = real(model_.moe->experts);
  const double rows = x_.local_tokens;
  const Dtype dtype = s_.precision.router_fp32 ? Dtype::kFp32 : x_.plain;
  if (role == Role::kForward) {
    emit_gemm(gemm(Role::kForward, rows, experts, x_.hidden, dtype), "router");
    elementwise(16 * experts * rows, 12, "router_top_k", MemoryKind::kPermute);
    return;
  }
  elementwise(8 * experts * rows, 8, "router_bwd", MemoryKind::kPermute);
  emit_gemm(gemm(Role::kInputGrad, rows, x_.hidden, experts, dtype), "router_grad");
  emit_gemm(gemm(Role::kWeightGrad, experts, x_.hidden, rows, dtype), "router_grad");
}

// Latent experts: down to their width before the tokens travel, up again after they are back.
void LayerTasks::latent(Role role, bool down) {
  const double width = real(model_.moe->latent);
  if (width <= 0) return;
  const double n = down ? width : x_.hidden;
  const double k = down ? x_.hidden : width;
  if (role == Role::kForward)
    linear(x_.local_tokens, n, k, down ? "latent_down" : "latent_up");
  else
    linear_grads(x_.local_tokens, n, k, down ? "latent_down_grad" : "latent_up_grad");
}

// Each token and its k copies are read or written once, in either direction.
void LayerTasks::permute(const char* name) {
  const double copies = 1 + real(model_.moe->top_k);
  elementwise(copies * x_.activation_bytes * real(model_.expert_width()) * x_.local_tokens, 6, name,
              MemoryKind::kPermute);
}

// --- transfers

// alltoall exchanges over EP and then gathers over ETP; the other dispatchers treat ETP x EP as one group.
void LayerTasks::token_transfer(Collective collective, const char* name) {
  const bool one_group = s_.moe.dispatcher != Dispatcher::kAllToAll;
  if (x_.ep * (one_group ? x_.etp : 1) <= 1) return;
  Transfer transfer;
  transfer.collective = collective;
  transfer.group = one_group ? Group::kEtpEp : Group::kEp;
  transfer.tokens = x_.local_tokens * rows_factor_;
  transfer.token_bytes = real(model_.expert_width()) * x_.activation_bytes;
  // the reduce-scatter of `allgather` sums in the probabilities' format
  if (s_.moe.dispatcher == Dispatcher::kAllGather && collective == Collective::kCombine &&
      s_.precision.router_fp32)
    transfer.token_bytes = real(model_.expert_width()) * 4;
  transfer.bytes = transfer.tokens * transfer.token_bytes * real(model_.moe->top_k);
  emit_.transfer(OpClass::kEp, transfer, Stream::kEp, name);
  if (overload_ > 0)
    emit_.transfer(OpClass::kImbalance, transfer, Stream::kEp, "wait_for_loaded_rank", overload_);
}

void LayerTasks::etp_transfer(Collective collective, double bytes_per_element, const char* name) {
  if (x_.etp <= 1 || s_.moe.dispatcher != Dispatcher::kAllToAll) return;
  Transfer transfer;
  transfer.collective = collective;
  transfer.group = Group::kEtp;
  transfer.bytes = expert_rows() * real(model_.expert_width()) * bytes_per_element;
  emit_.transfer(OpClass::kTp, transfer, Stream::kEp, name);
}

// Forward: tokens to their experts. The backward of dispatch is a combine of input gradients.
void LayerTasks::dispatch(bool forward_direction) {
  if (!forward_direction) {
    etp_transfer(Collective::kReduceScatter, x_.activation_bytes, "etp_reduce_scatter");
    token_transfer(Collective::kCombine, "ep_dispatch_bwd");
    return;
  }
  // dropless routing: the host needs the token counts before it can launch what follows
  const bool static_shapes = s_.moe.pad_to_capacity || s_.kernels.cuda_graphs == CudaGraphs::kFull;
  if (!static_shapes) emit_.host_sync();
  token_transfer(Collective::kDispatch, "ep_dispatch");
  etp_transfer(Collective::kAllGather, x_.activation_bytes, "etp_all_gather");
}

// The sum over ETP, and so its gradient, runs in the probabilities' format.
void LayerTasks::combine(bool forward_direction) {
  const double sum_bytes = s_.precision.router_fp32 ? 4 : x_.activation_bytes;
  if (forward_direction) {
    etp_transfer(Collective::kReduceScatter, sum_bytes, "etp_reduce_scatter");
    token_transfer(Collective::kCombine, "ep_combine");
  } else {
    token_transfer(Collective::kDispatch, "ep_combine_bwd");
    etp_transfer(Collective::kAllGather, sum_bytes, "etp_all_gather");
  }
}

// --- experts

// A balanced router sends each rank as many copies as it sends away.
double LayerTasks::expert_rows() const {
  return x_.etp * x_.local_tokens * real(model_.moe->top_k) * rows_factor_;
}

// Received tokens are sorted by local expert; dispatchers that de-duplicate do it in their one permutation.
void LayerTasks::sort_tokens(const char* name) {
  if (s_.moe.dedup || x_.ep <= 1 || real(model_.moe->experts) / x_.ep <= 1) return;
  elementwise(2 * x_.activation_bytes * real(model_.expert_width()) * expert_rows(), 4, name,
              MemoryKind::kPermute);
}

void LayerTasks::expert_linear(Role role, double n, double k, const char* name) {
  const double experts = real(model_.moe->experts) / x_.ep;
  const auto grouped = [&](double rows) {
    Kernel kernel = gemm(role, rows, n, k, x_.linear);
    if (role == Role::kInputGrad) std::swap(kernel.n, kernel.k);
    if (role == Role::kWeightGrad) kernel = gemm(role, n, k, rows, x_.linear);
    kernel.kind = KernelKind::kGroupedGemm;
    kernel.groups = experts;
    return kernel;
  };
  const double rows = expert_rows() / experts;
  // one launch an expert: there is no grouped GEMM for every format
  emit_.kernel(OpClass::kGemm, grouped(rows), 2 + experts, name);
  // the group goes on when its most loaded rank has done its rows
  if (overload_ > 0) emit_.kernel(OpClass::kImbalance, grouped(rows * overload_), 0, "wait_for_loaded_rank");
}

void LayerTasks::experts_forward() {
  const double f = real(model_.moe->ffn_hidden) / x_.etp;
  const double width = real(model_.expert_width());
  sort_tokens("sort_tokens");
  quantise(expert_rows() * width, "quantise_input");
  expert_linear(Role::kForward, gates() * f, width, "expert_fc1");
  activation(Role::kForward, expert_rows(), f);
  quantise(expert_rows() * f, "quantise_input");
  expert_linear(Role::kForward, width, f, "expert_fc2");
  sort_tokens("unsort_tokens");
}

void LayerTasks::experts_backward() {
  const double f = real(model_.moe->ffn_hidden) / x_.etp;
  const double width = real(model_.expert_width());
  sort_tokens("sort_tokens");
  quantise(expert_rows() * width, "quantise_grad");
  expert_linear(Role::kInputGrad, width, f, "expert_fc2_grad");
  if (s_.recompute.has("moe_act")) activation(Role::kForward, expert_rows(), f);
  activation(Role::kInputGrad, expert_rows(), f);
  quantise(expert_rows() * gates() * f, "quantise_grad");
  expert_linear(Role::kInputGrad, gates() * f, width, "expert_fc1_grad");
  sort_tokens("unsort_tokens");
}

void LayerTasks::expert_weight_gradients() {
  const double f = real(model_.moe->ffn_hidden) / x_.etp;
  const double width = real(model_.expert_width());
  expert_linear(Role::kWeightGrad, width, f, "expert_fc2_grad");
  expert_linear(Role::kWeightGrad, gates() * f, width, "expert_fc1_grad");
}

void LayerTasks::shared_expert_forward() {
  const double f = real(model_.moe->shared_ffn_hidden);
  if (f <= 0) return;
  column_parallel(gates() * f / x_.tp, x_.hidden, "shared_fc1", x_.linear);
  activation(Role::kForward, x_.tokens, f / x_.tp);
  row_parallel(x_.hidden, f / x_.tp, "shared_fc2");
}

void LayerTasks::shared_expert_backward() {
  const double f = real(model_.moe->shared_ffn_hidden);
  if (f <= 0) return;
  if (s_.recompute.has("shared_experts") && !s_.recompute.has("moe")) shared_expert_forward();
  row_parallel_grads(x_.hidden, f / x_.tp, "shared_fc2_grad");
  activation(Role::kInputGrad, x_.tokens, f / x_.tp);
  column_parallel_grads(gates() * f / x_.tp, x_.hidden, "shared_fc1_grad", x_.linear);
}

}  // namespace stepcast
