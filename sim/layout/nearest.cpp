#include "layout/nearest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string_view>
#include <tuple>

#include "layout/rule_helpers.h"
#include "layout/rules.h"

namespace stepcast {
namespace {

using Size = std::int64_t;
using Apply = std::function<void(MegatronArguments&)>;

constexpr std::size_t kMaxChanges = 3;
constexpr int kMaxChecks = 3000;
constexpr int kMaxChecksOfLongStrings = 100;
constexpr std::int64_t kLongString = 1000;  // stages
constexpr int kSwitch = 1000;  // distances are in thousandths, so that they compare alike everywhere

int distance_of(Size from, Size to) {
  return static_cast<int>(
      std::lround(kSwitch * std::abs(std::log2(static_cast<double>(to) / static_cast<double>(from)))));
}

struct Choice {
  int distance = 0;
  Apply apply;
};

struct Knob {
  std::vector<std::string> options;  // of the rules that it can mend
  std::vector<Choice> choices;
};

struct Switch {
  const char* option;
  bool MegatronArguments::*field;
};

constexpr std::array kSwitches = {
    Switch{"sequence_parallel", &MegatronArguments::sequence_parallel},
    Switch{"tp_comm_overlap", &MegatronArguments::tp_comm_overlap},
    Switch{"overlap_p2p_communication", &MegatronArguments::overlap_p2p_communication},
    Switch{"overlap_p2p_communication_warmup_flush",
           &MegatronArguments::overlap_p2p_communication_warmup_flush},
    Switch{"overlap_moe_expert_parallel_comm", &MegatronArguments::overlap_moe_expert_parallel_comm},
    Switch{"delay_wgrad_compute", &MegatronArguments::delay_wgrad_compute},
    Switch{"overlap_dispatch_backward_with_experts_wgrad",
           &MegatronArguments::overlap_dispatch_backward_with_experts_wgrad},
    Switch{"moe_shared_expert_overlap", &MegatronArguments::moe_shared_expert_overlap},
    Switch{"overlap_grad_reduce", &MegatronArguments::overlap_grad_reduce},
    Switch{"overlap_param_gather", &MegatronArguments::overlap_param_gather},
    Switch{"overlap_param_gather_with_optimizer_step",
           &MegatronArguments::overlap_param_gather_with_optimizer_step},
    Switch{"defer_embedding_wgrad_compute", &MegatronArguments::defer_embedding_wgrad_compute},
};

// The `most` values nearest to `current`, without it, the smaller of two at the same distance first; and 1,
// which nothing has to divide.
std::vector<Size> nearest_values(std::vector<Size> values, Size current, std::size_t most) {
  std::erase_if(values, [&](Size value) { return value < 1 || value > kMaxRuleSize || value == current; });
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  std::stable_sort(values.begin(), values.end(),
                   [&](Size a, Size b) { return distance_of(current, a) < distance_of(current, b); });
  if (values.size() <= most) return values;
  const bool has_one =
      std::find(values.begin() + static_cast<std::ptrdiff_t>(most), values.end(), 1) != values.end();
  values.resize(most);
  if (has_one) values.push_back(1);
  return values;
}

// What a parallel size may be: a divisor of the GPUs, or a power of two where they are unknown.
std::vector<Size> rank_sizes(const MegatronArguments& a) {
  if (a.world_size > 0) return divisors_of(a.world_size);
  std::vector<Size> powers;
  for (Size size = 1; size <= 1024; size *= 2) powers.push_back(size);
  return powers;
}

// ---- changes that carry others with them

// Virtual stages given as such, and no layout string.
void set_chunks(MegatronArguments& a, Size chunks) {
  a.pipeline_model_parallel_layout.clear();
  a.num_layers_per_virtual_pipeline_stage.reset();
  a.num_virtual_stages_per_pipeline_rank.reset();
  if (chunks > 1) a.num_virtual_stages_per_pipeline_rank = chunks;
  if (chunks == 1 && a.schedule == "interleaved") a.schedule = "1f1b";
  if (chunks > 1 && a.schedule == "1f1b") a.schedule = "interleaved";
}

void set_pp(MegatronArguments& a, Size pp) {
  const Size chunks = virtual_stages(a);
  const bool as_before = a.pipeline_model_parallel_layout.empty() && !a.num_layers_per_virtual_pipeline_stage;
  if (!as_before) set_chunks(a, chunks);
  if (a.microbatch_group_size_per_vp_stage == a.pipeline_model_parallel_size)
    a.microbatch_group_size_per_vp_stage.reset();
  a.pipeline_model_parallel_size = pp;
}

void stop_recompute(MegatronArguments& a) {
  a.recompute_granularity.clear();
  a.recompute_method.clear();
  a.recompute_num_layers.reset();
  a.recompute_modules.clear();
}

// ---- the knobs

class Knobs {
 public:
  Knobs(const MegatronArguments& arguments, const std::vector<Violation>& violations)
      : a_(arguments), unfilled_(unfilled_fields(arguments)) {
    for (const Violation& violation : violations) broken_.push_back(violation.rule);
    // of answers at the same distance those that keep the sizes come first
    add_switches();
    add_recompute();
    add_ranks();
    add_pipeline();
    add_experts();
    add_batch();
  }

  const std::vector<Knob>& list() const { return knobs_; }

 private:
  // A knob over sizes, unless nobody filled in its value; `extra` is added to every distance.
  void add(std::vector<std::string> options, Size current, const std::vector<Size>& values,
           const std::function<void(MegatronArguments&, Size)>& set, int extra = 0) {
    Knob knob;
    for (const Size value : values)
      knob.choices.push_back(
          {distance_of(current, value) + extra, [set, value](MegatronArguments& a) { set(a, value); }});
    knob.options = std::move(options);
    add(std::move(knob));
  }

  void add(Knob knob) {
    const bool open = std::any_of(knob.options.begin(), knob.options.end(), [&](const std::string& option) {
      return std::find(unfilled_.begin(), unfilled_.end(), option) != unfilled_.end();
    });
    if (!open && !knob.choices.empty()) knobs_.push_back(std::move(knob));
  }

  void add_ranks() {
    add({"tensor_model_parallel_size"}, a_.tp(), nearest_values(rank_sizes(a_), a_.tp(), 8),
        [](MegatronArguments& a, Size tp) { a.tensor_model_parallel_size = tp; });
    add({"context_parallel_size"}, a_.context_parallel_size,
        nearest_values(rank_sizes(a_), a_.context_parallel_size, 6),
        [](MegatronArguments& a, Size cp) { a.context_parallel_size = cp; });
  }

  int dropped_string() const { return a_.pipeline_model_parallel_layout.empty() ? 0 : kSwitch; }

  void add_pipeline() {
    const Size pp = a_.pipeline_model_parallel_size;
    add({"pipeline_model_parallel_size", "pipeline_model_parallel_layout",
         "num_layers_per_virtual_pipeline_stage"},
        pp, nearest_values(rank_sizes(a_), pp, 8), set_pp, dropped_string());
    // other schedules fix the chunks
    if (!megatron_order(a_) && a_.schedule != "bfs") return;
    const Size chunks = virtual_stages(a_);
    std::vector<Size> values = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32};
    if (a_.num_layers > 0) {
      const std::vector<Size> even = divisors_of(std::max<Size>(1, counted_layers(a_) / pp));
      values.insert(values.end(), even.begin(), even.end());
    }
    values = nearest_values(values, chunks, 8);
    const bool given_another_way =
        dropped_string() > 0 || a_.num_layers_per_virtual_pipeline_stage.has_value();
    Knob knob;
    knob.options = {"num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage",
                    "pipeline_model_parallel_layout"};
    if (given_another_way)
      knob.choices.push_back({kSwitch, [chunks](MegatronArguments& a) { set_chunks(a, chunks); }});
    for (const Size value : values)
      knob.choices.push_back({distance_of(chunks, value) + dropped_string(),
                              [value](MegatronArguments& a) { set_chunks(a, value); }});
    add(std::move(knob));
  }

  void add_experts() {
    const Size ep = a_.expert_model_parallel_size;
    const std::vector<Size> divide = a_.num_experts > 0 ? divisors_of(a_.num_experts) : std::vector<Size>{1};
    add({"expert_model_parallel_size"}, ep, nearest_values(divide, ep, 8),
        [](MegatronArguments& a, Size value) { a.expert_model_parallel_size = value; });
    if (a_.num_experts == 0) return;
    add({"expert_tensor_parallel_size"}, a_.etp(), nearest_values(rank_sizes(a_), a_.etp(), 6),
        [](MegatronArguments& a, Size value) { a.expert_tensor_parallel_size = value; });
  }

  void add_batch() {
    const Size unit = sequences_at_once(a_).value_or(1);
    const Size batch = a_.global_batch_size.value_or(unit);
    add({"micro_batch_size"}, a_.micro_batch_size, nearest_values(divisors_of(batch), a_.micro_batch_size, 6),
        [](MegatronArguments& a, Size value) { a.micro_batch_size = value; });
    const bool batch_broken = std::any_of(broken_.begin(), broken_.end(),
                                          [](int rule) { return rule == 11 || rule == 18 || rule == 101; });
    if (!batch_broken) return;
    std::vector<Size> values;
    const Size pp = a_.pipeline_model_parallel_size;
    for (const Size step : {unit, product({2, unit}), product({pp, unit}), product({2, pp, unit})}) {
      values.push_back(batch / step * step);
      if (step <= kMaxRuleSize) values.push_back((batch / step + 1) * step);
    }
    for (Size power = 1; power <= kMaxRuleSize; power *= 2)
      if (power > batch / 2 && power < 2 * batch) values.push_back(power);
    add({"global_batch_size"}, batch, nearest_values(values, batch, 8),
        [](MegatronArguments& a, Size value) { a.global_batch_size = value; });
  }

  bool reads_broken(const char* option) const {
    return std::any_of(all_rules().begin(), all_rules().end(), [&](const Rule& rule) {
      return rule.reads(option) && std::find(broken_.begin(), broken_.end(), rule.number) != broken_.end();
    });
  }

  // What is on may be switched off; what is off is switched on only for a rule that asks for it.
  void add_switches() {
    for (const Switch& s : kSwitches) {
      const bool on = a_.*s.field;
      const bool is_sp = s.field == &MegatronArguments::sequence_parallel;
      if (!on && !is_sp && !reads_broken(s.option)) continue;
      const auto field = s.field;
      add({{s.option}, {{kSwitch, [field, on](MegatronArguments& a) { a.*field = !on; }}}});
    }
  }

  void add_recompute() {
    if (a_.recompute_granularity.empty()) return;
    Knob knob;
    knob.options = {"recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"};
    if (a_.full_recompute() && (a_.recompute_method.empty() || !a_.recompute_num_layers))
      knob.choices.push_back({kSwitch, [](MegatronArguments& a) {
                                a.recompute_method = "uniform";
                                a.recompute_num_layers = 1;
                              }});
    constexpr std::size_t kMaxModules = 8;
    const std::size_t modules =
        a_.recompute_modules.size() < 2 ? 0 : std::min(a_.recompute_modules.size(), kMaxModules);
    for (std::size_t i = 0; i < modules; ++i) {
      const std::string module = a_.recompute_modules[i];
      knob.choices.push_back(
          {kSwitch, [module](MegatronArguments& a) { std::erase(a.recompute_modules, module); }});
    }
    knob.choices.push_back({kSwitch, stop_recompute});
    add(std::move(knob));
  }

  const MegatronArguments& a_;
  std::vector<std::string> unfilled_;
  std::vector<int> broken_;
  std::vector<Knob> knobs_;
};

// ---- the search

struct Change {
  std::size_t knob = 0;
  std::size_t choice = 0;
  bool operator==(const Change&) const = default;
};

struct Combination {
  int distance = 0;
  std::size_t size = 0;
  std::array<Change, kMaxChanges> changes;
};

class Search {
 public:
  Search(const MegatronArguments& arguments, const std::vector<Violation>& violations)
      : a_(arguments), stages_(stages_of(arguments)), knobs_(Knobs(arguments, violations).list()) {
    for (const Violation& violation : violations) must_change_.push_back(knobs_of(violation.rule));
    extend({}, 0, 0);
    std::stable_sort(combinations_.begin(), combinations_.end(),
                     [](const Combination& x, const Combination& y) {
                       return std::tie(x.distance, x.size) < std::tie(y.distance, y.size);
                     });
  }

  std::vector<MegatronArguments> run(std::size_t most) {
    std::vector<MegatronArguments> legal;
    std::vector<Combination> found;
    int checks = stages_ > kLongString ? kMaxChecksOfLongStrings : kMaxChecks;
    for (const Combination& combination : combinations_) {
      if (legal.size() == most || checks == 0) break;
      const bool adds_to_another = std::any_of(
          found.begin(), found.end(), [&](const Combination& other) { return holds(combination, other); });
      if (adds_to_another) continue;
      MegatronArguments changed = a_;
      for (std::size_t i = 0; i < combination.size; ++i) choice(combination.changes[i]).apply(changed);
      --checks;
      if (leaves_stages_empty(changed) || !check_rules(changed).empty()) continue;
      legal.push_back(std::move(changed));
      found.push_back(combination);
    }
    return legal;
  }

 private:
  const Choice& choice(const Change& change) const { return knobs_[change.knob].choices[change.choice]; }

  // The knobs that a rule reads, as bits; whatever mends it turns one of them.
  std::uint64_t knobs_of(int number) const {
    std::uint64_t bits = 0;
    for (const Rule& rule : all_rules()) {
      if (rule.number != number) continue;
      for (std::size_t k = 0; k < knobs_.size(); ++k)
        for (const std::string& option : knobs_[k].options)
          if (rule.reads(option)) bits |= std::uint64_t{1} << k;
    }
    return bits;
  }

  void extend(const Combination& start, std::size_t first_knob, std::uint64_t turned) {
    const bool enough = std::all_of(must_change_.begin(), must_change_.end(),
                                    [&](std::uint64_t bits) { return (bits & turned) != 0; });
    if (start.size > 0 && enough) combinations_.push_back(start);
    if (start.size == kMaxChanges) return;
    for (std::size_t k = first_knob; k < knobs_.size(); ++k)
      for (std::size_t c = 0; c < knobs_[k].choices.size(); ++c) {
        Combination next = start;
        next.changes[next.size++] = {k, c};
        next.distance += knobs_[k].choices[c].distance;
        extend(next, k + 1, turned | std::uint64_t{1} << k);
      }
  }

  static bool holds(const Combination& combination, const Combination& other) {
    const auto begin = combination.changes.begin();
    const auto end = begin + static_cast<std::ptrdiff_t>(combination.size);
    return std::all_of(other.changes.begin(), other.changes.begin() + static_cast<std::ptrdiff_t>(other.size),
                       [&](const Change& change) { return std::find(begin, end, change) != end; });
  }

  static Size stages_of(const MegatronArguments& a) {
    return product({a.pipeline_model_parallel_size, virtual_stages(a)});
  }

  bool leaves_stages_empty(const MegatronArguments& changed) const {
    return a_.num_layers > 0 && stages_of(changed) > std::max(a_.num_layers, stages_);
  }

  const MegatronArguments& a_;
  const Size stages_;
  std::vector<Knob> knobs_;
  std::vector<std::uint64_t> must_change_;
  std::vector<Combination> combinations_;
};

// "recompute off", "recompute without moe", ...
std::string recompute_difference(const MegatronArguments& from, const MegatronArguments& to) {
  if (from.recompute_granularity == to.recompute_granularity &&
      from.recompute_modules == to.recompute_modules && from.recompute_method == to.recompute_method &&
      from.recompute_num_layers == to.recompute_num_layers)
    return "";
  if (to.recompute_granularity.empty()) return "recompute off";
  if (to.full_recompute())
    return fmt::format("recompute full {} {}", to.recompute_method, to.recompute_num_layers.value_or(1));
  return fmt::format("recompute {}", fmt::join(to.recompute_modules, " "));
}

}  // namespace

std::vector<MegatronArguments> nearest_legal(const MegatronArguments& arguments, std::size_t most) {
  const std::vector<Violation> violations = check_rules(arguments);
  if (violations.empty() || violations.front().rule == 0) return {};
  return Search(arguments, violations).run(most);
}

std::string difference(const MegatronArguments& from, const MegatronArguments& to) {
  std::vector<std::string> changes;
  const auto size = [&](const char* name, Size before, Size after) {
    if (before != after) changes.push_back(fmt::format("{} {}", name, after));
  };
  size("tp", from.tp(), to.tp());
  size("cp", from.context_parallel_size, to.context_parallel_size);
  size("pp", from.pipeline_model_parallel_size, to.pipeline_model_parallel_size);
  size("vpp", virtual_stages(from), virtual_stages(to));
  size("ep", from.expert_model_parallel_size, to.expert_model_parallel_size);
  if (from.expert_tensor_parallel_size != to.expert_tensor_parallel_size)
    changes.push_back(fmt::format("etp {}", to.etp()));
  size("micro-batch", from.micro_batch_size, to.micro_batch_size);
  if (from.global_batch_size != to.global_batch_size && to.global_batch_size)
    changes.push_back(fmt::format("global batch {}", *to.global_batch_size));
  for (const Switch& s : kSwitches)
    if (from.*s.field != to.*s.field)
      changes.push_back(fmt::format("{} {}", s.option, to.*s.field ? "on" : "off"));
  const std::string recompute = recompute_difference(from, to);
  if (!recompute.empty()) changes.push_back(recompute);
  if (!from.pipeline_model_parallel_layout.empty() && to.pipeline_model_parallel_layout.empty())
    changes.emplace_back("no layout string");
  if (changes.empty()) return "";
  const std::optional<Size> dp = data_parallel_size(to);
  return fmt::format("{}{}", fmt::join(changes, ", "), dp ? fmt::format(" (dp {})", *dp) : "");
}

std::string nearest_legal_text(const MegatronArguments& arguments) {
  std::vector<std::string> texts;
  for (const MegatronArguments& legal : nearest_legal(arguments))
    texts.push_back(difference(arguments, legal));
  return fmt::format("{}", fmt::join(texts, "; "));
}

}  // namespace stepcast
