#include "layout/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <string_view>

#include "base/problem.h"
#include "layout/stage_split.h"

namespace stepcast {
namespace {

constexpr std::int64_t kMaxSize = 1'000'000'000;  // of anything a rule looks at
constexpr std::int64_t kMaxDivisor = 1'000'000;   // bounds the search for legal values

// The product, or the largest number when it would overflow.
std::int64_t product(std::initializer_list<std::int64_t> factors) {
  std::int64_t result = 1;
  for (const std::int64_t factor : factors)
    if (__builtin_mul_overflow(result, factor, &result)) return std::numeric_limits<std::int64_t>::max();
  return result;
}

// The divisors of n that `suits`, ascending, as text: "1, 2, 4, 8".
std::string divisors(std::int64_t n, const std::function<bool(std::int64_t)>& suits) {
  std::vector<std::int64_t> small;
  std::vector<std::int64_t> large;
  for (std::int64_t d = 1; d <= std::min(n / d, kMaxDivisor); ++d) {
    if (n % d != 0) continue;
    if (suits(d)) small.push_back(d);
    if (d != n / d && suits(n / d)) large.push_back(n / d);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  constexpr std::size_t kShown = 16;
  const bool cut = small.size() > kShown;
  if (cut) small.resize(kShown);
  return fmt::format("{}{}", fmt::join(small, ", "), cut ? ", ..." : "");
}

std::string divisors(std::int64_t n) {
  return divisors(n, [](std::int64_t) { return true; });
}

// The multiples of `unit` next to n, none below `unit`: "96 or 128".
std::string nearest_multiples(std::int64_t n, std::int64_t unit) {
  const std::int64_t below = n / unit * unit;
  if (below == 0) return fmt::format("{}", unit);
  return fmt::format("{} or {}", below, below + unit);
}

struct Size {
  const char* name;
  const char* pointer;
  std::int64_t value;
};

// A size that takes its part of the GPUs: fine when it divides what the ones before it left over.
struct Blame {
  Size size;
  std::int64_t left = 1;
};

Blame first_that_does_not_divide(std::int64_t gpus, std::initializer_list<Size> sizes) {
  Blame blame{*(sizes.end() - 1), gpus};
  for (const Size& size : sizes) {
    blame.size = size;
    if (blame.left % size.value != 0) break;
    blame.left /= size.value;
  }
  return blame;
}

class RuleCheck {
 public:
  explicit RuleCheck(const MegatronArguments& arguments) : a_(arguments) {}

  std::vector<Violation> run() {
    if (!sizes_are_sane()) return std::move(violations_);
    dense_grid();
    expert_grid();
    heads();
    query_groups();
    experts();
    sequence_parallelism();
    context_parallelism();
    batch();
    even_split();
    interleaving_needs_a_pipeline();
    layout_string();
    microbatch_group();
    expert_overlap();
    delayed_weight_gradients();
    shared_expert_overlap();
    return std::move(violations_);
  }

 private:
  void refuse(int rule, std::string pointer, std::string found, std::string allowed) {
    violations_.push_back({rule, std::move(pointer), std::move(found), std::move(allowed)});
  }

  bool sizes_are_sane() {
    for (const Size& size :
         {Size{"gpus", "/cluster/gpus", a_.world_size}, Size{"tp", "/layout/tp", tp_},
          Size{"cp", "/layout/cp", cp_}, Size{"pp", "/layout/pp", pp_}, Size{"vpp", "/layout/vpp", vpp_},
          Size{"ep", "/layout/ep", ep_}, Size{"etp", "/layout/etp", etp_},
          Size{"micro-batch group", kGroup, group_}, Size{"layers", "/model/layers", a_.num_layers},
          Size{"heads", "/model/attention/heads", a_.num_attention_heads},
          Size{"kv_heads", "/model/attention/kv_heads", a_.num_query_groups},
          Size{"seq_len", "/batch/seq_len", a_.seq_length},
          Size{"micro-batch", "/batch/micro", a_.micro_batch_size},
          Size{"global batch", "/batch/global", a_.global_batch_size}}) {
      if (size.value < 1 || size.value > kMaxSize)
        refuse(0, size.pointer, fmt::format("{} {}", size.name, size.value),
               fmt::format("1 to {}", kMaxSize));
    }
    return violations_.empty();
  }

  bool dense_grid_fits() const { return a_.world_size % product({tp_, cp_, pp_}) == 0; }

  void dense_grid() {
    if (dense_grid_fits()) return;
    const std::int64_t ranks = product({tp_, cp_, pp_});
    const Blame blame = first_that_does_not_divide(
        a_.world_size, {{"tp", "/layout/tp", tp_}, {"cp", "/layout/cp", cp_}, {"pp", "/layout/pp", pp_}});
    refuse(1, blame.size.pointer,
           fmt::format("{} GPUs do not divide by tp {} x cp {} x pp {} = {}", a_.world_size, tp_, cp_, pp_,
                       ranks),
           fmt::format("{} {}; or {} GPUs", blame.size.name, divisors(blame.left),
                       nearest_multiples(a_.world_size, ranks)));
  }

  void expert_grid() {
    const std::int64_t ranks = product({etp_, ep_, pp_});
    if (a_.world_size % ranks == 0) return;
    const bool same_as_dense = ep_ == 1 && etp_ == tp_ && !dense_grid_fits();
    if (same_as_dense) return;
    const Blame blame = first_that_does_not_divide(
        a_.world_size, {{"pp", "/layout/pp", pp_}, {"etp", "/layout/etp", etp_}, {"ep", "/layout/ep", ep_}});
    const bool is_ep = blame.size.name == std::string_view("ep");
    const auto suits = [&](std::int64_t d) { return !is_ep || a_.num_experts % d == 0; };
    refuse(2, blame.size.pointer,
           fmt::format("{} GPUs do not divide by etp {} x ep {} x pp {} = {}", a_.world_size, etp_, ep_, pp_,
                       ranks),
           fmt::format("{} {}; or {} GPUs", blame.size.name, divisors(blame.left, suits),
                       nearest_multiples(a_.world_size, ranks)));
  }

  bool divides_query_groups(std::int64_t tp) const {
    return a_.num_query_groups % tp == 0 || tp % a_.num_query_groups == 0;
  }

  // The GPUs left for one axis beside others, or all of them where the others do not fit.
  std::int64_t left_beside(std::initializer_list<std::int64_t> others) const {
    const std::int64_t ranks = product(others);
    return a_.world_size % ranks == 0 ? a_.world_size / ranks : a_.world_size;
  }

  // The values of TP that rules 1, 3 and 4 allow.
  std::string legal_tp() const {
    const std::int64_t both = std::gcd(a_.num_attention_heads, left_beside({cp_, pp_}));
    return "tp " + divisors(both, [&](std::int64_t d) { return divides_query_groups(d); });
  }

  void heads() {
    if (a_.num_attention_heads % tp_ == 0) return;
    refuse(3, "/layout/tp",
           fmt::format("{} attention heads do not divide by tp {}", a_.num_attention_heads, tp_), legal_tp());
  }

  void query_groups() {
    if (divides_query_groups(tp_)) return;
    refuse(4, "/layout/tp",
           fmt::format("{} key/value heads and tp {}: neither is a multiple of the other",
                       a_.num_query_groups, tp_),
           legal_tp());
  }

  void experts() {
    if (a_.num_experts <= 0) {
      if (ep_ > 1)
        refuse(6, "/layout/ep", fmt::format("ep {} without experts", ep_), "ep 1 for a dense model");
      return;
    }
    if (a_.num_experts % ep_ == 0) return;
    refuse(6, "/layout/ep", fmt::format("{} experts do not divide by ep {}", a_.num_experts, ep_),
           "ep " + divisors(std::gcd(a_.num_experts, left_beside({etp_, pp_}))));
  }

  void sequence_parallelism() {
    if (a_.num_experts > 0 && tp_ > 1 && !a_.sequence_parallel)
      refuse(8, "/layout/sequence_parallel",
             fmt::format("experts with tp {} and no sequence parallelism", tp_), "true, or tp 1");
    if (a_.tp_comm_overlap && !a_.sequence_parallel)
      refuse(9, "/overlap/tp", "overlap of TP communication without sequence parallelism",
             "false, or layout.sequence_parallel true");
  }

  void context_parallelism() {
    const std::int64_t pieces = product({2, cp_});
    if (cp_ == 1 || a_.seq_length % pieces == 0) return;
    const std::string halves = a_.seq_length % 2 == 0 ? divisors(a_.seq_length / 2) : "1";
    refuse(10, "/layout/cp",
           fmt::format("{} tokens a sequence do not divide by 2 x cp {} = {}", a_.seq_length, cp_, pieces),
           fmt::format("cp {}; or {} tokens", halves, nearest_multiples(a_.seq_length, pieces)));
  }

  std::int64_t dp() const { return a_.world_size / product({tp_, cp_, pp_}); }
  std::int64_t sequences_at_once() const { return product({a_.micro_batch_size, dp()}); }

  void batch() {
    if (!dense_grid_fits() || a_.global_batch_size % sequences_at_once() == 0) return;
    refuse(11, "/batch/global",
           fmt::format("{} sequences do not divide by micro {} x dp {} = {}", a_.global_batch_size,
                       a_.micro_batch_size, dp(), sequences_at_once()),
           nearest_multiples(a_.global_batch_size, sequences_at_once()));
  }

  // Rules 12 and 13.
  void even_split() {
    const bool embedding = a_.account_for_embedding_in_pipeline_split;
    const bool loss = a_.account_for_loss_in_pipeline_split;
    if (!a_.pipeline_model_parallel_layout.empty()) return;
    if (!embedding && !loss && !a_.even_split_required) return;
    const std::int64_t places = a_.num_layers + (embedding ? 1 : 0) + (loss ? 1 : 0);
    const std::string counted =
        fmt::format("{} layers{}{}", a_.num_layers, embedding ? " + embedding" : "", loss ? " + loss" : "");
    if (places % pp_ != 0) {
      refuse(12, "/layout/pp", fmt::format("{} do not divide by pp {}", counted, pp_),
             "pp " + divisors(places));
    } else if (places / pp_ % vpp_ != 0) {
      refuse(13, "/layout/vpp",
             fmt::format("{} over pp {} are {} a rank and do not divide by vpp {}", counted, pp_,
                         places / pp_, vpp_),
             "vpp " + divisors(places / pp_));
    }
  }

  bool interleaved() const { return vpp_ > 1 && a_.interleaved_schedule; }

  void interleaving_needs_a_pipeline() {
    const std::int64_t least = a_.overlap_p2p_communication ? 2 : 3;
    if (!interleaved() || pp_ >= least) return;
    refuse(15, "/layout/vpp",
           fmt::format("vpp {} with pp {}{}", vpp_, pp_,
                       least == 3 ? " and no overlap of p2p communication" : ""),
           fmt::format("vpp 1, or pp {} or more{}", least,
                       least == 3 && pp_ == 2 ? ", or overlap.p2p true" : ""));
  }

  void layout_string() {
    if (a_.pipeline_model_parallel_layout.empty()) return;
    std::vector<Problem> problems;
    const auto stages =
        expand_layout_string(a_.pipeline_model_parallel_layout, "", "/layout/stages", problems);
    if (problems.empty())
      check_layout_stages(stages, a_.num_layers, a_.mtp_num_layers, pp_, vpp_, "", "/layout/stages",
                          problems);
    for (const Problem& problem : problems) refuse(17, problem.pointer, problem.found, problem.allowed);
  }

  void microbatch_group() {
    if (!interleaved() || pp_ == 1 || !dense_grid_fits()) return;
    if (a_.global_batch_size % sequences_at_once() != 0) return;  // rule 11
    const std::int64_t m = a_.global_batch_size / sequences_at_once();
    const std::int64_t rest = group_ <= m ? m % group_ : m;
    if (pp_ <= group_ && group_ <= m && (rest == 0 || rest >= pp_)) return;
    if (group_ == pp_) {
      refuse(18, "/batch/global",
             fmt::format("{} micro-batches with vpp {} do not divide by pp {}", m, vpp_, pp_),
             nearest_multiples(a_.global_batch_size, product({pp_, sequences_at_once()})));
    } else {
      refuse(18, kGroup, fmt::format("groups of {} of {} micro-batches with pp {}", group_, m, pp_),
             fmt::format("pp {} <= group <= micro-batches {}, with a remainder of 0 or at least {}", pp_, m,
                         pp_));
    }
  }

  void expert_overlap() {
    if (!a_.overlap_moe_expert_parallel_comm) return;
    const auto needs = [&](bool met, const char* pointer, std::string found, std::string allowed) {
      if (!met) refuse(23, pointer, "overlap.moe_a2a with " + std::move(found), std::move(allowed));
    };
    needs(ep_ > 1, "/layout/ep", fmt::format("ep {}", ep_), "ep above 1");
    needs(pp_ == 1 || vpp_ > 1, "/layout/vpp", fmt::format("pp {} and vpp {}", pp_, vpp_),
          "vpp above 1, or pp 1");
    needs(!a_.recompute_full, "/recompute/granularity", "full recompute",
          "none, or selective without \"moe\"");
    needs(!a_.recompute_moe, "/recompute/modules", "recompute of \"moe\"", "other modules");
    needs(!a_.allgather_dispatcher, "/moe/dispatcher", "dispatcher allgather",
          "alltoall, deepep, hybridep, ncclep");
    needs(!a_.moe_shared_expert_overlap, "/overlap/shared_expert", "overlap.shared_expert", "one of the two");
    needs(a_.mtp_num_layers <= 1, "/model/mtp_layers", fmt::format("{} MTP layers", a_.mtp_num_layers),
          "0 or 1");
  }

  void delayed_weight_gradients() {
    if (a_.delay_wgrad_compute && !a_.overlap_moe_expert_parallel_comm)
      refuse(24, "/overlap/delay_wgrad", "overlap.delay_wgrad without overlap.moe_a2a", "both, or neither");
  }

  void shared_expert_overlap() {
    if (!a_.moe_shared_expert_overlap) return;
    if (a_.allgather_dispatcher)
      refuse(26, "/overlap/shared_expert", "overlap.shared_expert with dispatcher allgather",
             "dispatcher alltoall, deepep, hybridep or ncclep");
    if (a_.recompute_shared_experts)
      refuse(26, "/overlap/shared_expert", "overlap.shared_expert with recompute of \"shared_experts\"",
             "one of the two");
  }

  static constexpr const char* kGroup = "/layout/microbatch_group";

  const MegatronArguments& a_;
  const std::int64_t tp_ = a_.tensor_model_parallel_size;
  const std::int64_t cp_ = a_.context_parallel_size;
  const std::int64_t pp_ = a_.pipeline_model_parallel_size;
  const std::int64_t vpp_ = a_.virtual_pipeline_model_parallel_size;
  const std::int64_t ep_ = a_.expert_model_parallel_size;
  const std::int64_t etp_ = a_.expert_tensor_parallel_size.value_or(a_.tensor_model_parallel_size);  // rule 5
  const std::int64_t group_ = a_.microbatch_group_size_per_vp_stage.value_or(a_.pipeline_model_parallel_size);
  std::vector<Violation> violations_;
};

}  // namespace

std::vector<Violation> check_rules(const MegatronArguments& arguments) { return RuleCheck(arguments).run(); }

}  // namespace stepcast
