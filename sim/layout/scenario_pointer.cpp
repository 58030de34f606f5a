#include "layout/scenario_pointer.h"

#include <map>

namespace stepcast {
namespace {

const std::map<std::string, std::string>& pointers() {
  static const std::map<std::string, std::string> table = {
      {"world_size", "/cluster/gpus"},
      {"compute_capability", "/cluster/topology"},
      {"schedule", "/layout/schedule"},
      {"zero_stage", "/sharding/zero_stage"},
      {"onebit_adam", "/optimizer/compression"},
      // model
      {"num_layers", "/model/layers"},
      {"hidden_size", "/model/hidden"},
      {"ffn_hidden_size", "/model/ffn_hidden"},
      {"num_attention_heads", "/model/attention/heads"},
      {"group_query_attention", "/model/attention/kv_heads"},
      {"num_query_groups", "/model/attention/kv_heads"},
      {"kv_channels", "/model/attention/head_dim"},
      {"max_position_embeddings", "/model/max_positions"},
      {"position_embedding_type", "/model/position"},
      {"normalization", "/model/norm"},
      {"add_bias_linear", "/model/bias"},
      {"multi_latent_attention", "/model/attention/kind"},
      {"untie_embeddings_and_output_weights", "/model/tied_embeddings"},
      {"num_experts", "/model/moe/experts"},
      {"moe_ffn_hidden_size", "/model/moe/ffn_hidden"},
      {"moe_shared_expert_intermediate_size", "/model/moe/shared_ffn_hidden"},
      {"moe_router_topk", "/model/moe/top_k"},
      {"moe_router_num_groups", "/model/moe/groups"},
      {"moe_router_group_topk", "/model/moe/group_top_k"},
      {"moe_router_enable_expert_bias", "/model/moe/correction_bias"},
      {"moe_router_score_function", "/model/moe/correction_bias"},
      {"mtp_num_layers", "/model/mtp_layers"},
      // batch
      {"seq_length", "/batch/seq_len"},
      {"micro_batch_size", "/batch/micro"},
      {"global_batch_size", "/batch/global"},
      {"variable_seq_lengths", "/batch/lengths"},
      // layout
      {"tensor_model_parallel_size", "/layout/tp"},
      {"sequence_parallel", "/layout/sequence_parallel"},
      {"context_parallel_size", "/layout/cp"},
      {"cp_comm_type", "/layout/cp_comm"},
      {"hierarchical_context_parallel_sizes", "/layout/cp_comm"},
      {"pipeline_model_parallel_size", "/layout/pp"},
      {"num_virtual_stages_per_pipeline_rank", "/layout/vpp"},
      {"num_layers_per_virtual_pipeline_stage", "/layout/vpp"},
      {"pipeline_model_parallel_layout", "/layout/stages"},
      {"microbatch_group_size_per_vp_stage", "/layout/microbatch_group"},
      {"expert_model_parallel_size", "/layout/ep"},
      {"expert_tensor_parallel_size", "/layout/etp"},
      // sharding, optimizer
      {"use_distributed_optimizer", "/sharding/zero_stage"},
      {"data_parallel_sharding_strategy", "/sharding/zero_stage"},
      {"num_distributed_optimizer_instances", "/sharding/instances"},
      {"use_megatron_fsdp", "/sharding/engine"},
      {"use_torch_fsdp2", "/sharding/engine"},
      {"optimizer", "/optimizer/kind"},
      {"optimizer_cpu_offload", "/offload/optimizer_fraction"},
      {"optimizer_offload_fraction", "/offload/optimizer_fraction"},
      // overlap
      {"tp_comm_overlap", "/overlap/tp"},
      {"overlap_grad_reduce", "/overlap/grad_reduce"},
      {"overlap_param_gather", "/overlap/param_gather"},
      {"overlap_p2p_communication", "/overlap/p2p"},
      {"overlap_moe_expert_parallel_comm", "/overlap/moe_a2a"},
      {"delay_wgrad_compute", "/overlap/delay_wgrad"},
      {"moe_shared_expert_overlap", "/overlap/shared_expert"},
      // experts
      {"moe_token_dispatcher_type", "/moe/dispatcher"},
      {"moe_flex_dispatcher_backend", "/moe/dispatcher"},
      {"moe_expert_capacity_factor", "/moe/capacity_factor"},
      {"moe_pad_expert_input_to_capacity", "/moe/pad_to_capacity"},
      // precision
      {"bf16", "/precision/recipe"},
      {"fp16", "/precision/recipe"},
      {"fp8", "/precision/recipe"},
      {"fp8_recipe", "/precision/recipe"},
      {"fp4", "/precision/recipe"},
      {"fp8_param", "/precision/fp8_params"},
      // recompute, offload, kernels
      {"recompute_granularity", "/recompute/granularity"},
      {"recompute_method", "/recompute/granularity"},
      {"recompute_num_layers", "/recompute/layers"},
      {"recompute_modules", "/recompute/modules"},
      {"fine_grained_activation_offloading", "/offload/activations"},
      {"offload_modules", "/offload/activations"},
      {"cuda_graph_impl", "/kernels/cuda_graphs"},
  };
  return table;
}

}  // namespace

std::string scenario_pointer(const std::string& option) {
  const auto entry = pointers().find(option);
  return entry == pointers().end() ? "" : entry->second;
}

}  // namespace stepcast
