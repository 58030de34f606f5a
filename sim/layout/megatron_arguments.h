// The launch options that Megatron's validity rules speak of: a scenario fills this, the rules read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace stepcast {

struct MegatronArguments {
  std::int64_t world_size = 1;
  std::int64_t tensor_model_parallel_size = 1;
  std::int64_t context_parallel_size = 1;
  std::int64_t pipeline_model_parallel_size = 1;
  std::int64_t expert_model_parallel_size = 1;
  std::optional<std::int64_t> expert_tensor_parallel_size;  // absent = TP (rule 5)
  bool sequence_parallel = false;
  std::int64_t virtual_pipeline_model_parallel_size = 1;
  std::optional<std::int64_t> microbatch_group_size_per_vp_stage;  // absent = PP
  bool interleaved_schedule = true;            // false: virtual stages run in another order than Megatron's
  std::string pipeline_model_parallel_layout;  // empty = none
  bool even_split_required = false;            // Megatron without a layout; a scenario may split unevenly
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  bool overlap_p2p_communication = true;
  bool tp_comm_overlap = false;
  bool overlap_moe_expert_parallel_comm = false;
  bool delay_wgrad_compute = false;
  bool moe_shared_expert_overlap = false;
  bool allgather_dispatcher = false;
  bool recompute_full = false;
  bool recompute_moe = false;
  bool recompute_shared_experts = false;
  std::int64_t num_layers = 1;
  std::int64_t mtp_num_layers = 0;
  std::int64_t num_attention_heads = 1;
  std::int64_t num_query_groups = 1;
  std::int64_t num_experts = 0;  // 0 = dense
  std::int64_t seq_length = 1;
  std::int64_t micro_batch_size = 1;
  std::int64_t global_batch_size = 1;
};

}  // namespace stepcast
