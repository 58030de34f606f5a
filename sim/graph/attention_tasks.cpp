// Attention of one layer: projections, rotary embedding, the core (fused or not), context parallelism.
#include <algorithm>

#include "base/units.h"
#include "graph/layer_tasks.h"
#include "model/flops.h"

namespace stepcast {
// Read and write the heads that rotate; QK-norm reads and writes them once more.
void LayerTasks::rope(Role role) {
  const Attention& a = model_.attention;
  const double heads = (a.mla() ? 2 * real(a.heads) : real(a.heads + a.kv_heads)) / x_.tp;
  const double width = a.mla() ? real(a.qk_dim()) : real(a.head_dim);  // MLA copies the whole of q and k
  const double bytes = 2 * x_.activation_bytes * heads * width * x_.tokens;
  if (model_.position == Position::kRope) elementwise(bytes, 6, role == Role::kForward ? "rope" : "rope_bwd");
  if (a.qk_norm != QkNorm::kNone)
    elementwise(bytes * (role == Role::kForward ? 1 : 2), 6, "qk_norm", MemoryKind::kNorm);
}

void LayerTasks::qkv_forward() {
  const Attention& a = model_.attention;
  column_parallel(real((a.heads + 2 * a.kv_heads) * a.head_dim) / x_.tp, x_.hidden, "qkv", x_.linear);
  // more TP ranks than KV heads: the mixed output is gathered, each rank keeps its head (domain 3.1)
  if (x_.tp > real(a.kv_heads))
    tp_transfer(Collective::kAllGather, x_.tokens, real((a.heads + 2 * a.kv_heads) * a.head_dim),
                "tp_all_gather_qkv");
}

void LayerTasks::qkv_backward() {
  const Attention& a = model_.attention;
  if (x_.tp > real(a.kv_heads))
    tp_transfer(Collective::kReduceScatter, x_.tokens, real((a.heads + 2 * a.kv_heads) * a.head_dim),
                "tp_reduce_qkv");
  column_parallel_grads(real((a.heads + 2 * a.kv_heads) * a.head_dim) / x_.tp, x_.hidden, "qkv_grad",
                        x_.linear);
}

// MLA: the down-projections are replicated and run on the sequence shard; their latents are gathered.
void LayerTasks::mla_down_forward() {
  const Attention& a = model_.attention;
  if (a.q_lora_rank > 0) {
    linear(x_.local_tokens, real(a.q_lora_rank), x_.hidden, "q_down");
    norm(Role::kForward, real(a.q_lora_rank));
  }
  linear(x_.local_tokens, real(a.kv_lora_rank + a.qk_rope_head_dim), x_.hidden, "kv_down");
  norm(Role::kForward, real(a.kv_lora_rank));
  if (x_.sequence_parallel)
    tp_transfer(Collective::kAllGather, x_.tokens, mla_latent_width(), "tp_all_gather");
}

// What the up-projections read; without a q rank that is the hidden state itself.
double LayerTasks::mla_latent_width() const {
  const Attention& a = model_.attention;
  return (a.q_lora_rank > 0 ? real(a.q_lora_rank) : x_.hidden) + real(a.kv_lora_rank + a.qk_rope_head_dim);
}

void LayerTasks::mla_up_forward() {
  const Attention& a = model_.attention;
  const double q_input = a.q_lora_rank > 0 ? real(a.q_lora_rank) : x_.hidden;
  linear(x_.tokens, real(a.heads * a.qk_dim()) / x_.tp, q_input, "q_up");
  linear(x_.tokens, real(a.heads * (a.qk_nope_head_dim + a.v_head_dim)) / x_.tp, real(a.kv_lora_rank),
         "kv_up");
}

void LayerTasks::mla_backward() {
  const Attention& a = model_.attention;
  const double q_input = a.q_lora_rank > 0 ? real(a.q_lora_rank) : x_.hidden;
  linear_grads(x_.tokens, real(a.heads * (a.qk_nope_head_dim + a.v_head_dim)) / x_.tp, real(a.kv_lora_rank),
               "kv_up_grad");
  linear_grads(x_.tokens, real(a.heads * a.qk_dim()) / x_.tp, q_input, "q_up_grad");
  tp_transfer(tp_sum(), x_.tokens, mla_latent_width(),
              "tp_reduce");  // each rank has the gradient of its heads
  norm(Role::kInputGrad, real(a.kv_lora_rank));
  linear_grads(x_.local_tokens, real(a.kv_lora_rank + a.qk_rope_head_dim), x_.hidden, "kv_down_grad");
  if (a.q_lora_rank > 0) {
    norm(Role::kInputGrad, real(a.q_lora_rank));
    linear_grads(x_.local_tokens, real(a.q_lora_rank), x_.hidden, "q_down_grad");
  }
}

namespace {

AttentionVariant variant_of(AttentionKernel kernel, const std::string& stack_default) {
  switch (kernel) {
    case AttentionKernel::kFlash2:
      return AttentionVariant::kFlash2;
    case AttentionKernel::kFlash3:
      return AttentionVariant::kFlash3;
    case AttentionKernel::kCudnn:
      return AttentionVariant::kCudnn;
    case AttentionKernel::kAuto:
    case AttentionKernel::kUnfused:
      break;
  }
  if (stack_default == "flash1") return AttentionVariant::kFlash1;
  if (stack_default == "flash2") return AttentionVariant::kFlash2;
  if (stack_default == "flash3") return AttentionVariant::kFlash3;
  if (stack_default == "cudnn") return AttentionVariant::kCudnn;
  return AttentionVariant::kAuto;
}

}  // namespace

// Unfused attention computes the full s x s scores (causality saves nothing): two batched GEMMs, and over the
// scores scale-mask-softmax (read 2, write 2) and dropout (read 2, write 2 + a mask of 1); backward two GEMMs
// each, the softmax gradient (read 2 + 2, write 2) and the dropout gradient (read 2 + 1, write 2).
void LayerTasks::unfused_attention(Role role, double keys) {
  const Attention& a = model_.attention;
  Kernel scores;
  scores.kind = KernelKind::kGroupedGemm;
  scores.role = role;
  scores.dtype = x_.plain;
  scores.groups = real(a.heads) / x_.tp * x_.batch;
  scores.m = x_.seq;
  scores.n = keys;
  scores.k = real(a.qk_dim());
  Kernel context = scores;
  context.n = real(a.v_dim());
  context.k = keys;
  const double elements = scores.groups * x_.seq * keys;
  if (role == Role::kForward) {
    emit_.kernel(OpClass::kAttention, scores, 3, "attention_scores");
    elementwise(9 / stack_.elementwise_traffic * elements, 4, "softmax_dropout");
    emit_.kernel(OpClass::kAttention, context, 3, "attention_context");
    return;
  }
  for (int i = 0; i < 2; ++i) emit_.kernel(OpClass::kAttention, context, 2, "attention_context_grad");
  elementwise(11 / stack_.elementwise_traffic * elements, 4, "softmax_dropout_bwd");
  for (int i = 0; i < 2; ++i) emit_.kernel(OpClass::kAttention, scores, 2, "attention_scores_grad");
}

void LayerTasks::attention_core(Role role, bool windowed) {
  const Attention& a = model_.attention;
  if (s_.kernels.attention == AttentionKernel::kUnfused) {
    unfused_attention(role, x_.full_seq);
    return;
  }
  Kernel core;
  core.kind = KernelKind::kAttention;
  core.role = role;
  core.dtype = x_.plain;
  core.heads = real(a.heads) / x_.tp;
  core.batch = x_.batch;
  core.seq = x_.seq;
  core.keys = attended_keys(s_.batch.seq_len, windowed ? a.window : 0);
  core.qk_dim = real(a.qk_dim());
  core.v_dim = real(a.v_dim());
  core.variant = variant_of(s_.kernels.attention, stack_.attention);
  if (x_.cp > 1)
    context_parallel_attention(core);
  else
    emit_.kernel(OpClass::kAttention, core, 4, role == Role::kForward ? "attention" : "attention_bwd");
}

// p2p: KV chunks go round the ring beside the attention of the chunk that is here; backward carries dKV too.
// a2a: heads are exchanged for sequence before and after. allgather: the whole KV first, dKV reduced after.
void LayerTasks::context_parallel_attention(const Kernel& core) {
  const Attention& a = model_.attention;
  const bool forward = core.role == Role::kForward;
  const double kv_heads = std::max(1.0, real(a.mla() ? a.heads : a.kv_heads) / x_.tp);
  const double kv = x_.tokens * kv_heads * (core.qk_dim + core.v_dim) * x_.activation_bytes;
  const char* name = forward ? "attention" : "attention_bwd";
  Transfer transfer;
  transfer.group = Group::kCp;
  if (s_.layout.cp_comm == CpComm::kAllGather) {
    transfer.collective = Collective::kAllGather;
    transfer.bytes = kv * x_.cp;
    emit_.transfer(OpClass::kCp, transfer, Stream::kCp, "cp_all_gather_kv");
    emit_.kernel(OpClass::kAttention, core, 4, name);
    if (forward) return;
    transfer.collective = Collective::kReduceScatter;
    emit_.transfer(OpClass::kCp, transfer, Stream::kCp, "cp_reduce_dkv");
    return;
  }
  if (s_.layout.cp_comm == CpComm::kAllToAll) {
    transfer.collective = Collective::kAllToAll;
    const double q = x_.tokens * core.heads * core.qk_dim * x_.activation_bytes;
    const double out = x_.tokens * core.heads * core.v_dim * x_.activation_bytes;
    transfer.bytes = forward ? q + kv : out;
    emit_.transfer(OpClass::kCp, transfer, Stream::kCp, "cp_all_to_all");
    emit_.kernel(OpClass::kAttention, core, 4, name);
    transfer.bytes = forward ? out : q + kv;
    emit_.transfer(OpClass::kCp, transfer, Stream::kCp, "cp_all_to_all");
    return;
  }
  transfer.collective = Collective::kSendRecv;
  transfer.bytes = forward ? kv : 2 * kv;
  Kernel step = core;
  step.keys = core.keys / x_.cp;
  const auto steps = static_cast<int>(x_.cp);
  for (int i = 0; i < steps; ++i) {
    Arrival next;
    if (i + 1 < steps) next = emit_.transfer_async(OpClass::kCp, transfer, Stream::kCp, "cp_ring_kv");
    emit_.kernel(OpClass::kAttention, step, 4, name);
    if (next.event >= 0) emit_.need(next);
  }
  if (forward) return;
  transfer.bytes = kv;  // the last step brings each rank its own dKV: (c - 1) KV + c dKV in all
  emit_.transfer(OpClass::kCp, transfer, Stream::kCp, "cp_ring_dkv");
}

void LayerTasks::attention_forward(bool windowed) {
  const Attention& a = model_.attention;
  norm(Role::kForward, x_.hidden);
  if (a.mla()) {
    mla_down_forward();
    mla_up_forward();
  } else {
    qkv_forward();
  }
  rope(Role::kForward);
  attention_core(Role::kForward, windowed);
  row_parallel(x_.hidden, real(a.heads * a.v_dim()) / x_.tp, "out_proj");
  post_norm(Role::kForward);
  residual(Role::kForward);
}

void LayerTasks::attention_backward(bool windowed) {
  const Attention& a = model_.attention;
  residual(Role::kInputGrad);
  post_norm(Role::kInputGrad);
  row_parallel_grads(x_.hidden, real(a.heads * a.v_dim()) / x_.tp, "out_proj_grad");
  if (a.mla() && s_.recompute.has("mla_up_proj")) {
    mla_up_forward();
    rope(Role::kForward);
  }
  if (recomputes_by_op() && !a.mla()) qkv_forward();
  if (s_.recompute.has("core_attn") && !recomputes_by_op()) attention_core(Role::kForward, windowed);
  attention_core(Role::kInputGrad, windowed);
  rope(Role::kInputGrad);
  if (s_.recompute.has("layernorm") || recomputes_by_op()) norm(Role::kForward, x_.hidden);
  if (a.mla())
    mla_backward();
  else
    qkv_backward();
  norm(Role::kInputGrad, x_.hidden);
}

}  // namespace stepcast
