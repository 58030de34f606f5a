// Mixture of experts of one layer: router, permutation, dispatch and combine, routed and shared experts.
#include <utility>

#include "graph/layer_tasks.h"

namespace stepcast {
namespace {

double d(std::int64_t value) { return static_cast<double>(value); }

}  // namespace

// Logits in FP32 (write, read), top-k, softmax or sigmoid, probabilities, map: about 16 bytes an expert and
// token forward, 8 backward, in a dozen small kernels (domain 6.3).
void LayerTasks::router(Role role) {
  const double experts = d(model_.moe->experts);
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

// Read each token once, write k copies; backward sums them. Dispatchers that de-duplicate permute after the
// transfer.
void LayerTasks::permute(Role /*role*/) {
  const double k = d(model_.moe->top_k);
  elementwise((1 + k) * x_.activation_bytes * x_.hidden * x_.local_tokens, 6, "permute",
              MemoryKind::kPermute);
}

void LayerTasks::unpermute(Role /*role*/) {
  const double k = d(model_.moe->top_k);
  elementwise((1 + k) * x_.activation_bytes * x_.hidden * x_.local_tokens, 6, "unpermute",
              MemoryKind::kPermute);
}

namespace {

Transfer token_transfer(const Scenario& s, const Shapes& x, Collective collective) {
  Transfer transfer;
  transfer.collective = collective;
  transfer.group = Group::kEp;
  transfer.tokens = x.local_tokens;
  transfer.token_bytes = d(s.model.expert_width()) * x.activation_bytes;
  transfer.bytes = transfer.tokens * transfer.token_bytes * d(s.model.moe->top_k);
  return transfer;
}

}  // namespace

// Forward: tokens to their experts. The backward of dispatch is a combine of input gradients.
void LayerTasks::dispatch(bool forward_direction) {
  const bool exchanges = x_.ep > 1;
  // Dropless routing: the host needs the token counts before it can launch what follows (domain 3.2, step 1).
  const bool static_shapes = s_.moe.pad_to_capacity || s_.kernels.cuda_graphs == CudaGraphs::kFull;
  if (forward_direction && !static_shapes) emit_.host_sync();
  Transfer gather;
  gather.collective = Collective::kAllGather;
  gather.group = Group::kEtp;
  gather.bytes =
      x_.etp * x_.local_tokens * d(model_.moe->top_k * model_.expert_width()) * x_.activation_bytes;
  if (forward_direction) {
    if (exchanges)
      emit_.transfer(OpClass::kEp, token_transfer(s_, x_, Collective::kDispatch), Stream::kEp, "ep_dispatch");
    if (x_.etp > 1) emit_.transfer(OpClass::kTp, gather, Stream::kEp, "etp_all_gather");
    return;
  }
  gather.collective = Collective::kReduceScatter;
  if (x_.etp > 1) emit_.transfer(OpClass::kTp, gather, Stream::kEp, "etp_reduce_scatter");
  if (exchanges)
    emit_.transfer(OpClass::kEp, token_transfer(s_, x_, Collective::kCombine), Stream::kEp,
                   "ep_dispatch_bwd");
}

void LayerTasks::combine(bool forward_direction) {
  const bool exchanges = x_.ep > 1;
  Transfer reduce;
  reduce.group = Group::kEtp;
  // the sum over ETP runs in the probabilities' format
  const double sum_bytes = s_.precision.router_fp32 ? 4 : x_.activation_bytes;
  reduce.bytes = x_.etp * x_.local_tokens * d(model_.moe->top_k * model_.expert_width()) *
                 (forward_direction ? sum_bytes : x_.activation_bytes);
  if (forward_direction) {
    reduce.collective = Collective::kReduceScatter;
    if (x_.etp > 1) emit_.transfer(OpClass::kTp, reduce, Stream::kEp, "etp_reduce_scatter");
    if (exchanges)
      emit_.transfer(OpClass::kEp, token_transfer(s_, x_, Collective::kCombine), Stream::kEp, "ep_combine");
    return;
  }
  reduce.collective = Collective::kAllGather;
  if (exchanges)
    emit_.transfer(OpClass::kEp, token_transfer(s_, x_, Collective::kDispatch), Stream::kEp,
                   "ep_combine_bwd");
  if (x_.etp > 1) emit_.transfer(OpClass::kTp, reduce, Stream::kEp, "etp_all_gather");
}

// Rows of all local experts together: a balanced router sends each rank as many copies as it sends away.
void LayerTasks::expert_linear(Role role, double n, double k, const char* name) {
  const double experts = d(model_.moe->experts) / x_.ep;
  const double rows = x_.etp * x_.local_tokens * d(model_.moe->top_k) / experts;
  const auto grouped = [&](double rows_of_one) {
    Kernel kernel = gemm(role, rows_of_one, n, k, x_.linear);
    if (role == Role::kInputGrad) std::swap(kernel.n, kernel.k);
    if (role == Role::kWeightGrad) kernel = gemm(role, n, k, rows_of_one, x_.linear);
    kernel.kind = KernelKind::kGroupedGemm;
    kernel.groups = experts;
    return kernel;
  };
  // one launch an expert: there is no grouped GEMM for every format
  emit_.kernel(OpClass::kGemm, grouped(rows), 2 + experts, name);
  // the group goes on when its most loaded rank has done its rows
  if (overload_ > 0)
    emit_.kernel(OpClass::kImbalance, grouped(rows * overload_), 0, "wait_for_loaded_expert");
}

void LayerTasks::experts_forward() {
  const Moe& moe = *model_.moe;
  const double gates = model_.gated_ffn ? 2 : 1;
  const double rows = x_.etp * x_.local_tokens * d(moe.top_k);
  const double width = d(model_.expert_width());
  const double f = d(moe.ffn_hidden) / x_.etp;
  const bool sorts = d(moe.experts) / x_.ep > 1 && x_.ep > 1;  // received tokens, by local expert
  if (moe.latent > 0) linear(x_.local_tokens, width, x_.hidden, "latent_down");
  if (sorts) elementwise(2 * x_.activation_bytes * width * rows, 4, "sort_tokens", MemoryKind::kPermute);
  quantise(rows * width, "quantise_input");
  expert_linear(Role::kForward, gates * f, width, "expert_fc1");
  activation(Role::kForward, rows, f);
  quantise(rows * f, "quantise_input");
  expert_linear(Role::kForward, width, f, "expert_fc2");
  if (sorts) elementwise(2 * x_.activation_bytes * width * rows, 4, "unsort_tokens", MemoryKind::kPermute);
  if (moe.latent > 0) linear(x_.local_tokens, x_.hidden, width, "latent_up");
}

void LayerTasks::experts_backward() {
  const Moe& moe = *model_.moe;
  const double gates = model_.gated_ffn ? 2 : 1;
  const double rows = x_.etp * x_.local_tokens * d(moe.top_k);
  const double width = d(model_.expert_width());
  const double f = d(moe.ffn_hidden) / x_.etp;
  const bool sorts = d(moe.experts) / x_.ep > 1 && x_.ep > 1;
  if (moe.latent > 0) linear_grads(x_.local_tokens, x_.hidden, width, "latent_up_grad");
  if (sorts) elementwise(2 * x_.activation_bytes * width * rows, 4, "sort_tokens", MemoryKind::kPermute);
  quantise(rows * width, "quantise_grad");
  expert_linear(Role::kInputGrad, width, f, "expert_fc2_grad");
  if (s_.recompute.has("moe_act")) activation(Role::kForward, rows, f);
  expert_linear(Role::kWeightGrad, width, f, "expert_fc2_grad");
  activation(Role::kInputGrad, rows, f);
  quantise(rows * gates * f, "quantise_grad");
  expert_linear(Role::kInputGrad, gates * f, width, "expert_fc1_grad");
  expert_linear(Role::kWeightGrad, gates * f, width, "expert_fc1_grad");
  if (sorts) elementwise(2 * x_.activation_bytes * width * rows, 4, "unsort_tokens", MemoryKind::kPermute);
  if (moe.latent > 0) linear_grads(x_.local_tokens, width, x_.hidden, "latent_down_grad");
}

void LayerTasks::shared_expert_forward() {
  const double f = d(model_.moe->shared_ffn_hidden);
  if (f <= 0) return;
  const double gates = model_.gated_ffn ? 2 : 1;
  column_parallel(gates * f / x_.tp, x_.hidden, "shared_fc1");
  activation(Role::kForward, x_.tokens, f / x_.tp);
  row_parallel(x_.hidden, f / x_.tp, "shared_fc2");
}

void LayerTasks::shared_expert_backward() {
  const double f = d(model_.moe->shared_ffn_hidden);
  if (f <= 0) return;
  const double gates = model_.gated_ffn ? 2 : 1;
  if (s_.recompute.has("shared_experts")) shared_expert_forward();
  row_parallel_grads(x_.hidden, f / x_.tp, "shared_fc2_grad");
  activation(Role::kInputGrad, x_.tokens, f / x_.tp);
  column_parallel_grads(gates * f / x_.tp, x_.hidden, "shared_fc1_grad");
}

}  // namespace stepcast
