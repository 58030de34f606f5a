// What a software stack does, as named physical quantities: calib/stacks/NAME.json (schema stepcast/stack/1).
// A file holds entries by date; an entry overrides what it names. A file may build on another (`like`). Every
// constant has value, unit, range and source.
#pragma once

#include <string>
#include <vector>

#include "base/json_fwd.h"

namespace stepcast {

struct Stack {
  std::string name;  // of the file that was used
  std::string kind;  // "megatron" or "fsdp"
  std::string date;  // of the newest entry used

  double launch_s = 0;             // host time to launch one kernel, Python and autograd included
  double kernels_factor = 1;       // launches of a layer's element-wise work against a fused implementation
  double elementwise_traffic = 1;  // bytes of element-wise work against a fused implementation
  double tp_overlap_chunks = 4;    // pieces in which userbuffers pipeline a TP collective with its GEMM
  double fsdp_contention = 0;      // share of a hidden FSDP transfer that still slows the compute beside it
  double fixed_step_s = 0;         // data, logging, host bookkeeping between steps
  double fragmentation = 1;        // reserved / allocated bytes of the caching allocator
  double context_bytes = 0;        // CUDA context, kernels, workspaces
  double nccl_bytes_per_communicator = 0;
  double logits_bytes = 0;  // bytes per logit alive at the loss (all copies and the gradient)
  double layer_graph_launches =
      0.1;  // share of launches left to the host by CUDA graphs of layer pieces: attention,
  double layer_graph_moe_launches = 0.5;  // and the MoE part, whose dropless FFN cannot be captured
  double cuda_graph_bytes = 0;            // static buffers of CUDA graphs
  double cuda_graph_pipeline_bytes = 0;   // the same with pipeline stages, instead
  double offload_min_elements = 0;        // activation offload leaves smaller tensors on the GPU
  double offload_groups_in_flight = 0;    // offloaded groups that are still, or again, on the GPU
  double ep_host_factor = 1;  // launches with expert overlap (two micro-batches interleaved) against without

  // what its code does
  bool vocab_parallel_loss = true;  // a TP rank holds only its share of the logits
  bool fused_activation = true;     // SwiGLU in one kernel: the activated gate alone is not saved
  bool resharding = true;           // ZeRO-3 frees a gathered layer after its forward
  bool fp32_master = true;          // false: weights, gradients and moments are all of 2 bytes
  bool selective_by_op =
      false;  // selective recompute keeps every second matrix product, whatever the modules

  // scenario keys that its recipes set when the scenario does not
  std::string grad_dtype;   // empty = Megatron's rule (FP32 with bf16, FP16 with fp16)
  bool fp8_params = false;  // under FP8 recipes

  std::string attention = "flash2";  // what kernels.attention "auto" stands for; empty = the GPU kind's own
};

// The entry of `stack` that is newest but not after `date` (YYYY or YYYY-MM; empty = newest). An unknown
// stack gets the nearest kind and a line in `assumptions`. Throws InputError when a data file is malformed.
Stack find_stack(const std::string& stack, const std::string& date, bool fsdp_like,
                 std::vector<std::string>& assumptions);

// JSON of the constants in force with their sources, for provenance.
Json stack_json(const Stack& stack);

}  // namespace stepcast
