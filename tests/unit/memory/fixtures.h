// Models and scenarios for the memory tests, built without files so that each test sees what it depends on.
#pragma once

#include <cstdint>

#include "layout/scenario.h"
#include "memory/ledger.h"

namespace stepcast::memory_test {

inline Model llama70b(std::int64_t layers = 80) {
  Model m;
  m.name = "Llama-3-70B";
  m.layers = layers;
  m.hidden = 8192;
  m.vocab = 128256;
  m.ffn_hidden = 28672;
  m.attention.kind = AttentionKind::kGqa;
  m.attention.heads = 64;
  m.attention.kv_heads = 8;
  m.attention.head_dim = 128;
  return m;
}

// GPT-3 175B's layer: h 12288, 96 heads, f = 4 h, LayerNorm, learned positions, biases, tied embeddings.
inline Model gpt175b(std::int64_t layers = 96) {
  Model m;
  m.layers = layers;
  m.hidden = 12288;
  m.vocab = 50257;
  m.ffn_hidden = 4 * m.hidden;
  m.gated_ffn = false;
  m.norm = Norm::kLayer;
  m.position = Position::kLearned;
  m.max_positions = 2048;
  m.bias = true;
  m.tied_embeddings = true;
  m.attention.heads = 96;
  m.attention.kv_heads = 96;
  m.attention.head_dim = 128;
  return m;
}

inline Model deepseek_v3() {
  Model m;
  m.name = "DeepSeek-V3";
  m.layers = 61;
  m.hidden = 7168;
  m.vocab = 129280;
  m.ffn_hidden = 18432;
  m.mtp_layers = 1;
  m.attention.kind = AttentionKind::kMla;
  m.attention.heads = 128;
  m.attention.kv_heads = 128;
  m.attention.q_lora_rank = 1536;
  m.attention.kv_lora_rank = 512;
  m.attention.qk_nope_head_dim = 128;
  m.attention.qk_rope_head_dim = 64;
  m.attention.v_head_dim = 128;
  Moe moe;
  moe.experts = 256;
  moe.top_k = 8;
  moe.ffn_hidden = 2048;
  moe.shared_ffn_hidden = 2048;
  moe.dense_layers = 3;
  m.moe = moe;
  return m;
}

// Mixtral 8x22B's layer: GQA, experts in every layer, none of them shared.
inline Model mixtral() {
  Model m;
  m.name = "Mixtral-8x22B";
  m.layers = 56;
  m.hidden = 6144;
  m.vocab = 32000;
  m.attention.kind = AttentionKind::kGqa;
  m.attention.heads = 48;
  m.attention.kv_heads = 8;
  m.attention.head_dim = 128;
  Moe moe;
  moe.experts = 8;
  moe.top_k = 2;
  moe.ffn_hidden = 16384;
  m.moe = moe;
  return m;
}

// Layout sizes from tp, cp, pp, ep, etp and the GPUs.
inline void settle(Scenario& s) {
  Layout& l = s.layout;
  l.dp = s.cluster.gpus / (l.tp * l.cp * l.pp);
  l.edp = s.cluster.gpus / (l.etp * l.ep * l.pp);
  l.schedule = l.schedule.empty() ? (l.vpp > 1 ? "interleaved" : "1f1b") : l.schedule;
  if (l.microbatch_group == 0) l.microbatch_group = l.pp;
}

// On 80 GB Hopper nodes of 8, bf16, distributed optimizer; one sequence a micro-batch, 16 micro-batches a
// rank.
inline Scenario scenario(Model model, std::int64_t gpus, const Layout& layout = {},
                         std::int64_t seq_len = 4096) {
  Scenario s;
  s.model = std::move(model);
  s.cluster.gpu.hbm_bytes = 85'045'280'768;  // 79.2 GiB
  s.cluster.gpu.compute_capability = 9.0;
  s.cluster.gpus = gpus;
  s.cluster.gpus_per_node = 8;
  s.cluster.gpus_per_domain = 8;
  s.layout = layout;
  settle(s);
  s.batch.seq_len = seq_len;
  s.batch.micro = 1;
  s.batch.global = 16 * s.layout.dp;
  return s;
}

inline Layout layout(std::int64_t tp, std::int64_t cp, std::int64_t pp, std::int64_t vpp = 1) {
  Layout l;
  l.tp = tp;
  l.cp = cp;
  l.pp = pp;
  l.vpp = vpp;
  l.sequence_parallel = tp > 1;
  return l;
}

inline Layout with_experts(Layout l, std::int64_t ep, std::int64_t etp = 1) {
  l.ep = ep;
  l.etp = etp;
  return l;
}

inline Stack megatron_stack(double logits_bytes = 8) {
  Stack stack;
  stack.name = "megatron-lm";
  stack.kind = "megatron";
  stack.fragmentation = 1.05;
  stack.context_bytes = 0.9e9;
  stack.nccl_bytes_per_communicator = 0.3e9;
  stack.logits_bytes = logits_bytes;
  stack.cuda_graph_bytes = 2e9;
  stack.cuda_graph_pipeline_bytes = 10e9;
  stack.offload_min_elements = 1024 * 1024;
  stack.offload_groups_in_flight = 2;
  return stack;
}

inline MemoryReport report_of(const Scenario& s, const Stack& stack = megatron_stack()) {
  return memory_report(s, split_of(s), stack);
}

}  // namespace stepcast::memory_test
