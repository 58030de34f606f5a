// Rules of the two rank grids, and of what is divided over them: heads, tokens, sequences.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string_view>

#include "layout/rule_list.h"

namespace stepcast {
namespace {

struct Part {
  const char* name;
  const char* option;
  std::int64_t size;
};

// A size that takes its part of the GPUs: fine when it divides what the ones before it left over.
struct Blame {
  Part part;
  std::int64_t left = 1;
};

Blame first_that_does_not_divide(std::int64_t gpus, const std::vector<Part>& parts) {
  Blame blame{parts.back(), gpus};
  for (const Part& part : parts) {
    blame.part = part;
    if (blame.left % part.size != 0) break;
    blame.left /= part.size;
  }
  return blame;
}

std::string as_product(const std::vector<Part>& parts) {
  std::string text;
  for (const Part& part : parts)
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", part.name, part.size);
  return text;
}

// "64 GPUs do not divide by tp 8 x cp 1 x pp 3 = 24"; `shown` in the order people write, `blamed` in the order
// of blame.
void refuse_grid(int rule, const MegatronArguments& a, std::int64_t ranks, std::vector<Part> shown,
                 std::vector<Part> blamed, Part beyond, Violations& violations) {
  if (beyond.size > 1) {
    shown.push_back(beyond);
    blamed.push_back(beyond);
  }
  const Blame blame = first_that_does_not_divide(a.world_size, blamed);
  const bool is_ep = blame.part.name == std::string_view("ep");
  const auto suits = [&](std::int64_t d) { return !is_ep || a.num_experts % d == 0; };
  violations.push_back(
      {rule, blame.part.option,
       fmt::format("{} GPUs do not divide by {} = {}", a.world_size, as_product(shown), ranks),
       fmt::format("{} {}; or {} GPUs", blame.part.name, divisors(blame.left, suits),
                   nearest_multiples(a.world_size, ranks))});
}

// True, and said, when weight shards were given that are no multiple of their TP.
bool refuse_shards(int rule, const std::optional<std::int64_t>& shards, Part tp, const char* option,
                   Violations& violations) {
  if (!shards || *shards % tp.size == 0) return false;
  violations.push_back({rule, option,
                        fmt::format("{} weight shards are no multiple of {} {}", *shards, tp.name, tp.size),
                        nearest_multiples(*shards, tp.size)});
  return true;
}

bool divides_query_groups(const MegatronArguments& a, std::int64_t tp) {
  const std::int64_t groups = a.query_groups();
  return groups % tp == 0 || tp % groups == 0;
}

// The GPUs left for TP beside CP and PP, or all of them where these do not fit; 0 = not known.
std::int64_t left_for_tp(const MegatronArguments& a) {
  const std::int64_t ranks = product({a.context_parallel_size, a.pipeline_model_parallel_size});
  return a.world_size % ranks == 0 ? a.world_size / ranks : a.world_size;
}

// The values of TP that rules 1, 3 and 4 allow.
std::string legal_tp(const MegatronArguments& a) {
  const std::int64_t both = std::gcd(a.num_attention_heads, left_for_tp(a));
  return "tp " + divisors(both, [&](std::int64_t d) { return divides_query_groups(a, d); });
}

}  // namespace

void dense_grid_divides(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const Part tp = {"tp", "tensor_model_parallel_size", a.tp()};
  if (refuse_shards(1, a.tensor_parallel_num_weight_shards, tp, "tensor_parallel_num_weight_shards",
                    violations))
    return;
  const std::int64_t ranks = dense_ranks(a);
  if (a.world_size == 0 || a.world_size % ranks == 0) return;
  const std::vector<Part> parts = {tp,
                                   {"cp", "context_parallel_size", a.context_parallel_size},
                                   {"pp", "pipeline_model_parallel_size", a.pipeline_model_parallel_size}};
  refuse_grid(1, a, ranks, parts, parts,
              {"gtp", "tensor_parallel_num_weight_shards", weight_shards_beyond_tp(a)}, violations);
}

void expert_grid_divides(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const Part etp = {"etp", "expert_tensor_parallel_size", a.etp()};
  if (refuse_shards(2, a.expert_tensor_parallel_num_weight_shards, etp,
                    "expert_tensor_parallel_num_weight_shards", violations))
    return;
  const std::int64_t ranks = expert_ranks(a);
  if (a.world_size == 0 || a.world_size % ranks == 0) return;
  // rule 1 has said it
  const bool no_experts = a.expert_model_parallel_size == 1 && (a.etp() == a.tp() || a.num_experts == 0);
  if (no_experts && !data_parallel_size(a)) return;
  const Part ep = {"ep", "expert_model_parallel_size", a.expert_model_parallel_size};
  const Part pp = {"pp", "pipeline_model_parallel_size", a.pipeline_model_parallel_size};
  refuse_grid(2, a, ranks, {etp, ep, pp}, {pp, etp, ep},
              {"egtp", "expert_tensor_parallel_num_weight_shards", expert_shards_beyond_etp(a)}, violations);
}

void heads_divide(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (a.num_attention_heads % a.tp() == 0) return;
  violations.push_back(
      {3, "tensor_model_parallel_size",
       fmt::format("{} attention heads do not divide by tp {}", a.num_attention_heads, a.tp()), legal_tp(a)});
}

void query_groups_divide(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.group_query_attention || a.num_attention_heads == 0 || divides_query_groups(a, a.tp())) return;
  violations.push_back({4, "tensor_model_parallel_size",
                        fmt::format("{} key/value heads and tp {}: neither is a multiple of the other",
                                    a.query_groups(), a.tp()),
                        legal_tp(a)});
}

void expert_tp_defaults_to_tp(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (a.num_experts == 0 || a.expert_tensor_parallel_size || a.tp() == 1) return;
  violations.push_back({5, "expert_tensor_parallel_size", fmt::format("etp is not given: tp {}", a.tp()),
                        "etp 1 for many small experts", true});
}

void sequence_parallel_needs_tp(const MegatronArguments& arguments, Violations& violations) {
  if (!arguments.sequence_parallel || arguments.tp() > 1) return;
  violations.push_back(
      {7, "sequence_parallel", "sequence parallelism at tp 1 is switched off", "tp above 1", true});
}

void tp_overlap_needs_sp(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.tp_comm_overlap || (a.sequence_parallel && a.tp() > 1)) return;
  if (a.sequence_parallel)
    violations.push_back({9, "tp_comm_overlap",
                          "overlap of TP communication at tp 1, where sequence parallelism is off",
                          "false, or tp above 1"});
  else
    violations.push_back({9, "tp_comm_overlap", "overlap of TP communication without sequence parallelism",
                          "false, or layout.sequence_parallel true"});
}

void sequence_divides_over_cp(const MegatronArguments& arguments, Violations& violations) {
  const std::int64_t cp = arguments.context_parallel_size;
  const std::int64_t tokens = arguments.seq_length;
  const std::int64_t pieces = product({2, cp});
  if (cp == 1 || tokens % pieces == 0) return;
  violations.push_back(
      {10, "context_parallel_size",
       fmt::format("{} tokens a sequence do not divide by 2 x cp {} = {}", tokens, cp, pieces),
       fmt::format("cp {}; or {} tokens", tokens % 2 == 0 ? divisors(tokens / 2) : "1",
                   nearest_multiples(tokens, pieces))});
}

void batch_divides(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const std::optional<std::int64_t> unit = sequences_at_once(a);
  if (!unit || !a.global_batch_size || *a.global_batch_size % *unit == 0) return;
  const std::int64_t batch = *a.global_batch_size;
  const std::int64_t gtp = weight_shards_beyond_tp(a);
  const bool rounded = a.decrease_batch_size_if_needed && batch > *unit;
  violations.push_back(
      {11, "global_batch_size",
       fmt::format("{} sequences do not divide by micro {} x dp {}{} = {}", batch, a.micro_batch_size,
                   data_parallel_size(a).value_or(0), gtp > 1 ? fmt::format(" x gtp {}", gtp) : "", *unit),
       rounded ? fmt::format("{} are taken", batch / *unit * *unit) : nearest_multiples(batch, *unit),
       rounded});
}

void hierarchical_cp_sizes(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const std::vector<std::int64_t>& sizes = a.hierarchical_context_parallel_sizes;
  const bool two_levels =
      std::find(a.cp_comm_type.begin(), a.cp_comm_type.end(), "a2a+p2p") != a.cp_comm_type.end();
  if (sizes.empty()) {
    if (two_levels && a.context_parallel_size > 1)
      violations.push_back({47, "hierarchical_context_parallel_sizes",
                            "a2a+p2p without the sizes of its levels",
                            fmt::format("sizes with the product cp {}", a.context_parallel_size)});
    return;
  }
  std::int64_t all = 1;
  bool positive = true;
  for (const std::int64_t size : sizes) {
    positive = positive && size > 0;
    if (positive) all = product({all, size});
  }
  if (positive && all == a.context_parallel_size) return;
  violations.push_back(
      {47, "hierarchical_context_parallel_sizes",
       fmt::format("levels of {} with cp {}", fmt::join(sizes, " x "), a.context_parallel_size),
       fmt::format("sizes with the product {}", a.context_parallel_size)});
}

void heads_divide_over_cp(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const std::int64_t cp = a.context_parallel_size;
  const bool heads_move =
      std::find(a.cp_comm_type.begin(), a.cp_comm_type.end(), "a2a") != a.cp_comm_type.end();
  if (!heads_move || cp == 1 || a.num_attention_heads % a.tp() != 0) return;
  const std::int64_t heads = a.num_attention_heads / a.tp();
  const std::int64_t groups =
      a.multi_latent_attention ? heads : std::max<std::int64_t>(1, a.query_groups() / a.tp());
  if (heads % cp == 0 && groups % cp == 0) return;
  violations.push_back(
      {48, "context_parallel_size",
       fmt::format("a2a with {} attention and {} key/value heads a TP rank, which do not divide by cp {}",
                   heads, groups, cp),
       fmt::format("cp {}, or cp_comm_type p2p", divisors(std::gcd(heads, groups)))});
}

void hybrid_cp_alone(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.hybrid_context_parallel) return;
  const auto needs = [&](bool met, const char* option, std::string found, const char* allowed) {
    if (!met) violations.push_back({49, option, "hybrid CP with " + std::move(found), allowed});
  };
  needs(a.pipeline_model_parallel_size == 1, "pipeline_model_parallel_size",
        fmt::format("pp {}", a.pipeline_model_parallel_size), "pp 1");
  needs(a.cuda_graph_impl == "none", "cuda_graph_impl", "CUDA graphs", "none");
  needs(!a.use_megatron_fsdp, "use_megatron_fsdp", "Megatron-FSDP", "false");
  needs(a.calculate_per_token_loss, "calculate_per_token_loss", "a loss that is not per token", "true");
}

void optimizer_instances_divide(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const std::int64_t instances = a.num_distributed_optimizer_instances;
  const std::optional<std::int64_t> dp = data_parallel_size(a);
  const std::optional<std::int64_t> edp = expert_data_parallel_size(a);
  if (!dp || !edp) return;
  const std::int64_t shards = product({*dp, a.context_parallel_size});
  if (shards % instances == 0 && *edp % instances == 0) return;
  violations.push_back(
      {50, "num_distributed_optimizer_instances",
       fmt::format("dp x cp {} or edp {} does not divide by {} optimizer instances", shards, *edp, instances),
       divisors(std::gcd(shards, *edp))});
}

void rank_order_with_experts(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const std::optional<std::int64_t> dp = data_parallel_size(a);
  const std::optional<std::int64_t> edp = expert_data_parallel_size(a);
  if (!a.use_tp_pp_dp_mapping || a.pipeline_model_parallel_size == 1 || !dp || !edp || *dp == *edp) return;
  violations.push_back({51, "use_tp_pp_dp_mapping",
                        fmt::format("order tp-cp-ep-pp-dp with dp {} and edp {}", *dp, *edp),
                        "the default order, pp 1, or sizes with dp = edp"});
}

void positions_cover_sequence(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (a.save_params_interval && a.overlap_param_gather)
    violations.push_back(
        {53, "save_params_interval", "save_params_interval with overlap_param_gather", "one of the two"});
  if (a.max_position_embeddings && a.seq_length > *a.max_position_embeddings)
    violations.push_back(
        {53, "max_position_embeddings",
         fmt::format("{} tokens a sequence and {} positions", a.seq_length, *a.max_position_embeddings),
         fmt::format("at least {}", a.seq_length)});
}

void weight_shards_beyond_tp_alone(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (weight_shards_beyond_tp(a) == 1 && expert_shards_beyond_etp(a) == 1) return;
  const auto needs = [&](bool met, const char* option, std::string found, const char* allowed) {
    if (!met) violations.push_back({55, option, "weight shards beyond TP with " + std::move(found), allowed});
  };
  needs(a.ckpt_format == "torch" || a.ckpt_format == "torch_dist", "ckpt_format",
        "checkpoint format " + a.ckpt_format, "torch, torch_dist");
  needs(!a.ddp_average_in_collective, "ddp_average_in_collective", "ddp_average_in_collective", "false");
  needs(a.num_distributed_optimizer_instances == 1, "num_distributed_optimizer_instances",
        fmt::format("{} optimizer instances", a.num_distributed_optimizer_instances), "1");
  const bool mxfp8 = !a.fp8.empty() && a.fp8_recipe == "mxfp8";
  needs(!mxfp8 || a.fp8_param, "fp8_param", "MXFP8 and parameters in 16 bit", "true");
  needs(!mxfp8 || a.reuse_grad_buf_for_mxfp8_param_ag, "reuse_grad_buf_for_mxfp8_param_ag",
        "MXFP8 and a gradient buffer of its own", "true");
  needs(a.fp4.empty() || a.fp4_param, "fp4_param", "FP4 and parameters in 16 bit", "true");
}

}  // namespace stepcast
