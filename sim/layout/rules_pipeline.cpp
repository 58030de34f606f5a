// Rules of the pipeline: which layers a stage holds, virtual stages, schedules.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/problem.h"
#include "layout/rule_list.h"
#include "layout/stage_split.h"

namespace stepcast {
namespace {

bool counts_ends(const MegatronArguments& a) {
  return a.account_for_embedding_in_pipeline_split || a.account_for_loss_in_pipeline_split;
}

bool uneven(const MegatronArguments& a) {
  return a.decoder_first_pipeline_num_layers || a.decoder_last_pipeline_num_layers;
}

// Rules 12 and 13 hold: nothing else says how the layers are split.
bool split_evenly(const MegatronArguments& a) {
  return a.num_layers > 0 && a.pipeline_model_parallel_layout.empty() && !uneven(a) &&
         (a.even_split_required || counts_ends(a));
}

bool interleaved(const MegatronArguments& a) { return megatron_order(a) && virtual_stages(a) > 1; }

// Rule 16, for counts that are in range: what is left over divides among the stages between.
void check_middle(const MegatronArguments& a, Violations& violations) {
  const std::int64_t first = a.decoder_first_pipeline_num_layers.value_or(0);
  const std::int64_t last = a.decoder_last_pipeline_num_layers.value_or(0);
  const std::string option = a.decoder_first_pipeline_num_layers ? "decoder_first_pipeline_num_layers"
                                                                 : "decoder_last_pipeline_num_layers";
  const std::int64_t layers = a.num_layers - first - last;
  const std::int64_t stages = a.pipeline_model_parallel_size - (first > 0 ? 1 : 0) - (last > 0 ? 1 : 0);
  std::string outer = first > 0 ? fmt::format("{} on the first", first) : "";
  if (last > 0) outer += fmt::format("{}{} on the last", first > 0 ? " and " : "", last);
  const auto refuse = [&](const std::string& found, std::string allowed) {
    violations.push_back({16, option,
                          fmt::format("{} layers with {} of pp {}: {}", a.num_layers, outer,
                                      a.pipeline_model_parallel_size, found),
                          std::move(allowed)});
  };
  const std::int64_t vpp = virtual_stages(a);
  if (layers < 0 || stages < 0) {
    refuse("more than there are", "fewer layers on the outer stages");
  } else if ((layers == 0) != (stages == 0)) {
    refuse(fmt::format("{} layers are left for {} stages", layers, stages),
           "counts that leave layers for the stages between, and none where there is no stage");
  } else if (stages > 0 && layers % stages != 0) {
    refuse(fmt::format("the {} left do not divide by {} stages", layers, stages),
           fmt::format("counts that leave {} layers", nearest_multiples(layers, stages)));
  } else if (stages > 0 && layers / stages % vpp != 0) {
    refuse(fmt::format("{} a stage between do not divide by vpp {}", layers / stages, vpp),
           "vpp " + divisors(layers / stages));
  }
}

// True, and said, when a count on an outer stage is below 1 or not a multiple of the chunks.
bool refuse_count(const MegatronArguments& a, const std::optional<std::int64_t>& count, const char* option,
                  const char* place, Violations& violations) {
  if (!count) return false;
  const std::int64_t vpp = virtual_stages(a);
  if (*count >= 1 && *count % vpp == 0) return false;
  if (*count < 1)
    violations.push_back({16, option, fmt::format("{} layers on the {} stage", *count, place), "1 or more"});
  else
    violations.push_back(
        {16, option, fmt::format("{} layers on the {} stage do not divide by vpp {}", *count, place, vpp),
         nearest_multiples(*count, vpp)});
  return true;
}

}  // namespace

void layers_divide_over_pp(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!split_evenly(a) || counted_layers(a) % a.pipeline_model_parallel_size == 0) return;
  violations.push_back(
      {12, "pipeline_model_parallel_size",
       fmt::format("{} do not divide by pp {}", counted_layers_text(a), a.pipeline_model_parallel_size),
       "pp " + divisors(counted_layers(a))});
}

void layers_divide_over_chunks(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const std::int64_t pp = a.pipeline_model_parallel_size;
  if (!split_evenly(a) || counted_layers(a) % pp != 0) return;
  const std::int64_t each = counted_layers(a) / pp;
  const std::string option = virtual_stages_option(a);
  const bool by_layers = option == "num_layers_per_virtual_pipeline_stage";
  const std::int64_t size = by_layers ? *a.num_layers_per_virtual_pipeline_stage
                                      : a.num_virtual_stages_per_pipeline_rank.value_or(1);
  if (each % size == 0) return;
  violations.push_back(
      {13, option,
       fmt::format("{} over pp {} are {} a rank and do not divide by {}", counted_layers_text(a), pp, each,
                   by_layers ? fmt::format("{} a virtual stage", size) : fmt::format("vpp {}", size)),
       (by_layers ? "layers a virtual stage " : "vpp ") + divisors(each)});
}

void one_way_to_give_chunks(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  std::string given;
  int count = 0;
  const auto look = [&](bool is_given, const char* option) {
    if (!is_given) return;
    given += fmt::format("{}{}", count++ == 0 ? "" : " and ", option);
  };
  look(a.num_layers_per_virtual_pipeline_stage.has_value(), "num_layers_per_virtual_pipeline_stage");
  look(a.num_virtual_stages_per_pipeline_rank.has_value(), "num_virtual_stages_per_pipeline_rank");
  look(!a.pipeline_model_parallel_layout.empty(), "pipeline_model_parallel_layout");
  if (count < 2) return;
  const bool both = a.num_layers_per_virtual_pipeline_stage && a.num_virtual_stages_per_pipeline_rank;
  violations.push_back({14,
                        both || !a.num_virtual_stages_per_pipeline_rank
                            ? "num_layers_per_virtual_pipeline_stage"
                            : "num_virtual_stages_per_pipeline_rank",
                        given, "one of them"});
}

void interleaving_needs_pp(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const std::int64_t pp = a.pipeline_model_parallel_size;
  const std::int64_t least = a.overlap_p2p_communication ? 2 : 3;
  if (pp >= least || !interleaved(a)) return;
  violations.push_back({15, virtual_stages_option(a),
                        fmt::format("vpp {} with pp {}{}", virtual_stages(a), pp,
                                    least == 3 ? " and no overlap of p2p communication" : ""),
                        fmt::format("vpp 1, or pp {} or more{}", least,
                                    least == 3 && pp == 2 ? ", or overlap.p2p true" : "")});
}

void uneven_split(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!uneven(a) || !a.pipeline_model_parallel_layout.empty()) return;
  const std::string option = a.decoder_first_pipeline_num_layers ? "decoder_first_pipeline_num_layers"
                                                                 : "decoder_last_pipeline_num_layers";
  if (counts_ends(a))
    violations.push_back({16, option, option + " where embedding or loss count as layers", "one of the two"});
  if (a.num_layers_per_virtual_pipeline_stage && !a.num_virtual_stages_per_pipeline_rank) {
    violations.push_back({16, "num_layers_per_virtual_pipeline_stage",
                          "num_layers_per_virtual_pipeline_stage with " + option,
                          "num_virtual_stages_per_pipeline_rank"});
    return;
  }
  const bool first = refuse_count(a, a.decoder_first_pipeline_num_layers, "decoder_first_pipeline_num_layers",
                                  "first", violations);
  const bool last = refuse_count(a, a.decoder_last_pipeline_num_layers, "decoder_last_pipeline_num_layers",
                                 "last", violations);
  if (!first && !last && a.num_layers > 0) check_middle(a, violations);
}

void layout_string_fits(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (a.pipeline_model_parallel_layout.empty() || a.num_layers == 0) return;
  const char* option = "pipeline_model_parallel_layout";
  if (uneven(a) || counts_ends(a))
    violations.push_back({17, option,
                          "a layout string with layers given for the first or last stage, or with embedding "
                          "or loss counted as layers",
                          "one of the two"});
  std::vector<Problem> problems;
  const auto stages = expand_layout_string(a.pipeline_model_parallel_layout, "", option, problems);
  if (problems.empty())
    check_layout_stages(stages, a.num_layers, a.mtp_num_layers, a.pipeline_model_parallel_size,
                        virtual_stages(a), "", option, problems);
  for (Problem& problem : problems)
    violations.push_back({17, option, std::move(problem.found), std::move(problem.allowed)});
}

void microbatch_group_fits(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const std::int64_t pp = a.pipeline_model_parallel_size;
  const std::optional<std::int64_t> m = microbatches(a);
  if (!m || pp == 1 || !interleaved(a)) return;
  const std::int64_t group = a.microbatch_group_size_per_vp_stage.value_or(pp);
  const std::int64_t rest = group <= *m ? *m % group : *m;
  if (pp <= group && group <= *m && (rest == 0 || rest >= pp)) return;
  const std::int64_t unit = sequences_at_once(a).value_or(1);
  if (group == pp)
    violations.push_back(
        {18, "global_batch_size",
         fmt::format("{} micro-batches with vpp {} do not divide by pp {}", *m, virtual_stages(a), pp),
         nearest_multiples(a.global_batch_size.value_or(unit), product({pp, unit}))});
  else
    violations.push_back(
        {18, "microbatch_group_size_per_vp_stage",
         fmt::format("groups of {} of {} micro-batches with pp {}", group, *m, pp),
         fmt::format("pp {} <= group <= micro-batches {}, with a remainder of 0 or at least {}", pp, *m,
                     pp)});
}

void warmup_flush_overlap(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.overlap_p2p_communication_warmup_flush) return;
  if (!a.overlap_p2p_communication)
    violations.push_back({19, "overlap_p2p_communication_warmup_flush",
                          "overlap in warm-up and flush without overlap of p2p communication",
                          "both, or neither"});
  else if (virtual_stages(a) == 1)
    violations.push_back({19, "overlap_p2p_communication_warmup_flush",
                          "overlap in warm-up and flush at vpp 1, where p2p communication does not overlap",
                          "false, or vpp above 1"});
}

void deferred_embedding_gradient(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.defer_embedding_wgrad_compute) return;
  if (a.pipeline_model_parallel_size == 1)
    violations.push_back({22, "defer_embedding_wgrad_compute", "the embedding's gradient deferred at pp 1",
                          "false, or pp above 1"});
  if (!a.gradient_accumulation_fusion)
    violations.push_back({22, "defer_embedding_wgrad_compute",
                          "the embedding's gradient deferred without gradient_accumulation_fusion",
                          "both, or neither"});
}

void mtp_with(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (a.mtp_num_layers == 0) return;
  const std::string& position = a.position_embedding_type;
  if (position != "rope" && position != "none")
    violations.push_back({54, "position_embedding_type",
                          fmt::format("{} MTP layers with {} positions", a.mtp_num_layers, position),
                          "rope, none"});
  if (a.enable_hyper_connections)
    violations.push_back({54, "enable_hyper_connections",
                          fmt::format("{} MTP layers with hyper-connections", a.mtp_num_layers),
                          "one of the two"});
}

void dualpipe_microbatches(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  const bool both_ends = a.schedule == "dualpipe";
  if (!both_ends && a.schedule != "dualpipe-v") return;
  const std::int64_t pp = a.pipeline_model_parallel_size;
  if (both_ends && pp % 2 != 0)
    violations.push_back({101, "pipeline_model_parallel_size", fmt::format("dualpipe with pp {}", pp),
                          fmt::format("an even pp: {}", nearest_multiples(pp, 2))});
  const std::optional<std::int64_t> m = microbatches(a);
  const std::int64_t least = 2 * pp;
  if (!m || (*m >= least && (!both_ends || *m % 2 == 0))) return;
  const std::int64_t unit = sequences_at_once(a).value_or(1);
  violations.push_back(
      {101, "global_batch_size", fmt::format("{} of pp {} with {} micro-batches", a.schedule, pp, *m),
       *m < least
           ? fmt::format("at least 2 pp = {} micro-batches: {} sequences", least, product({least, unit}))
           : fmt::format("an even number of micro-batches: {}",
                         nearest_multiples(product({*m, unit}), product({2, unit})))});
}

void zero_bubble_v(const MegatronArguments& arguments, Violations& violations) {
  const MegatronArguments& a = arguments;
  if (!a.enable_zero_bubble || !a.zero_bubble_v_schedule) return;
  const std::int64_t vpp = virtual_stages(a);
  const std::string option = virtual_stages_option(a);
  const bool given = a.num_virtual_stages_per_pipeline_rank || a.num_layers_per_virtual_pipeline_stage ||
                     !a.pipeline_model_parallel_layout.empty();
  if (given && vpp != 2)
    violations.push_back({104, option, fmt::format("vpp {} with the V schedule", vpp), "vpp 2"});
  const std::int64_t stages = product({2, a.pipeline_model_parallel_size});
  if (!given && split_evenly(a) && counted_layers(a) % a.pipeline_model_parallel_size == 0 &&
      counted_layers(a) % stages != 0)
    violations.push_back({104, "pipeline_model_parallel_size",
                          fmt::format("{} do not divide by the 2 x pp {} = {} stages of the V schedule",
                                      counted_layers_text(a), a.pipeline_model_parallel_size, stages),
                          fmt::format("a pp that divides {} layers a chunk", counted_layers(a) / 2)});
}

}  // namespace stepcast
