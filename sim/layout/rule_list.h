// One function a rule; each appends what is broken. They are called on sizes that passed rule 0 (1 to 1e9, or 0
// where that means unknown). For rules.cpp, which lists them.
#pragma once

#include "layout/rule_helpers.h"

namespace stepcast {

// rules_grid.cpp: ranks, heads, tokens, batch
void dense_grid_divides(const MegatronArguments& arguments, Violations& violations);             // 1
void expert_grid_divides(const MegatronArguments& arguments, Violations& violations);            // 2
void heads_divide(const MegatronArguments& arguments, Violations& violations);                   // 3
void query_groups_divide(const MegatronArguments& arguments, Violations& violations);            // 4
void expert_tp_defaults_to_tp(const MegatronArguments& arguments, Violations& violations);       // 5
void sequence_parallel_needs_tp(const MegatronArguments& arguments, Violations& violations);     // 7
void tp_overlap_needs_sp(const MegatronArguments& arguments, Violations& violations);            // 9
void sequence_divides_over_cp(const MegatronArguments& arguments, Violations& violations);       // 10
void batch_divides(const MegatronArguments& arguments, Violations& violations);                  // 11
void hierarchical_cp_sizes(const MegatronArguments& arguments, Violations& violations);          // 47
void heads_divide_over_cp(const MegatronArguments& arguments, Violations& violations);           // 48
void hybrid_cp_alone(const MegatronArguments& arguments, Violations& violations);                // 49
void optimizer_instances_divide(const MegatronArguments& arguments, Violations& violations);     // 50
void rank_order_with_experts(const MegatronArguments& arguments, Violations& violations);        // 51
void positions_cover_sequence(const MegatronArguments& arguments, Violations& violations);       // 53
void weight_shards_beyond_tp_alone(const MegatronArguments& arguments, Violations& violations);  // 55

// rules_pipeline.cpp: layers over stages, interleaving, schedules
void layers_divide_over_pp(const MegatronArguments& arguments, Violations& violations);        // 12
void layers_divide_over_chunks(const MegatronArguments& arguments, Violations& violations);    // 13
void one_way_to_give_chunks(const MegatronArguments& arguments, Violations& violations);       // 14
void interleaving_needs_pp(const MegatronArguments& arguments, Violations& violations);        // 15
void uneven_split(const MegatronArguments& arguments, Violations& violations);                 // 16
void layout_string_fits(const MegatronArguments& arguments, Violations& violations);           // 17
void microbatch_group_fits(const MegatronArguments& arguments, Violations& violations);        // 18
void warmup_flush_overlap(const MegatronArguments& arguments, Violations& violations);         // 19
void deferred_embedding_gradient(const MegatronArguments& arguments, Violations& violations);  // 22
void mtp_with(const MegatronArguments& arguments, Violations& violations);                     // 54
void dualpipe_microbatches(const MegatronArguments& arguments, Violations& violations);        // 101
void zero_bubble_v(const MegatronArguments& arguments, Violations& violations);                // 104

// rules_experts.cpp
void experts_divide(const MegatronArguments& arguments, Violations& violations);             // 6
void experts_need_sp(const MegatronArguments& arguments, Violations& violations);            // 8
void expert_overlap(const MegatronArguments& arguments, Violations& violations);             // 23
void delayed_weight_gradients(const MegatronArguments& arguments, Violations& violations);   // 24
void dispatch_backward_overlap(const MegatronArguments& arguments, Violations& violations);  // 25
void shared_expert_overlap(const MegatronArguments& arguments, Violations& violations);      // 26
void capacity_factor(const MegatronArguments& arguments, Violations& violations);            // 27
void rank_capacity_factor(const MegatronArguments& arguments, Violations& violations);       // 28
void flex_needs_expert_ranks(const MegatronArguments& arguments, Violations& violations);    // 30
void top_1_softmax(const MegatronArguments& arguments, Violations& violations);              // 31
void router_groups(const MegatronArguments& arguments, Violations& violations);              // 32
void expert_bias_score(const MegatronArguments& arguments, Violations& violations);          // 33
void expert_linear_bias(const MegatronArguments& arguments, Violations& violations);         // 34
void shared_experts_shape(const MegatronArguments& arguments, Violations& violations);       // 35
void router_padding(const MegatronArguments& arguments, Violations& violations);             // 36
void allgather_fixed_lengths(const MegatronArguments& arguments, Violations& violations);    // 37

// rules_training.cpp: optimizer, precision, recompute, offload, CUDA connections
void param_gather_overlap(const MegatronArguments& arguments, Violations& violations);      // 20
void param_gather_with_step(const MegatronArguments& arguments, Violations& violations);    // 21
void recompute_options(const MegatronArguments& arguments, Violations& violations);         // 38
void distributed_activations(const MegatronArguments& arguments, Violations& violations);   // 39
void activation_offload(const MegatronArguments& arguments, Violations& violations);        // 40
void mla_without_groups(const MegatronArguments& arguments, Violations& violations);        // 41
void low_precision(const MegatronArguments& arguments, Violations& violations);             // 42
void optimizer_offload(const MegatronArguments& arguments, Violations& violations);         // 43
void torch_fsdp2_alone(const MegatronArguments& arguments, Violations& violations);         // 44
void megatron_fsdp_needs(const MegatronArguments& arguments, Violations& violations);       // 45
void connections_of_tp_and_cp(const MegatronArguments& arguments, Violations& violations);  // 46
void ucc_connections(const MegatronArguments& arguments, Violations& violations);           // 56
void onebit_without_zero(const MegatronArguments& arguments, Violations& violations);       // 102

}  // namespace stepcast
