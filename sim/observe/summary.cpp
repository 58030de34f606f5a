// The error table of a validation: summary, by class, rankings.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <set>

#include "base/units.h"
#include "observe/validate.h"

namespace stepcast {
namespace {

using Outcomes = std::vector<const RunOutcome*>;

double mean(const std::vector<double>& x) {
  return x.empty() ? 0 : std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

// Linear between the two nearest ranks.
double quantile(std::vector<double> x, double q) {
  if (x.empty()) return 0;
  std::sort(x.begin(), x.end());
  const double at = q * static_cast<double>(x.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, x.size() - 1);
  return x[low] + (at - static_cast<double>(low)) * (x[high] - x[low]);
}

Json oom_section(const Outcomes& outcomes, const std::set<std::string>& oom_series, Json& elsewhere) {
  std::int64_t tp = 0, fp = 0, tn = 0, fn = 0, n = 0, wrong = 0;
  for (const RunOutcome* o : outcomes) {
    if (o->status != "ok") continue;
    if (oom_series.contains(o->series)) {
      (o->measured.oom ? (o->oom_predicted ? tp : fn) : (o->oom_predicted ? fp : tn)) += 1;
    } else {
      ++n;
      wrong += o->oom_predicted ? 1 : 0;
    }
  }
  elsewhere = {{"n", n}, {"fp", wrong}};
  const double denominator = static_cast<double>(2 * tp + fp + fn);
  return {{"tp", tp},
          {"fp", fp},
          {"tn", tn},
          {"fn", fn},
          {"f1", denominator > 0 ? 2.0 * static_cast<double>(tp) / denominator : 0}};
}

Json summary_of(const Outcomes& outcomes, const std::set<std::string>& oom_series) {
  std::vector<double> absolute, signed_errors, memory, widths;
  double covered = 0;
  std::map<std::string, std::int64_t> kinds;  // of the printed peaks: each is held against the same kind
  for (const RunOutcome* o : outcomes) {
    if (o->step_time_error) {
      signed_errors.push_back(*o->step_time_error);
      absolute.push_back(std::abs(*o->step_time_error));
      widths.push_back(o->interval_width);
      covered += o->in_interval ? 1 : 0;
    }
    if (!o->memory_error) continue;
    memory.push_back(std::abs(*o->memory_error));
    ++kinds[o->measured.peak_memory_kind];
  }
  Json elsewhere;
  const Json oom = oom_section(outcomes, oom_series, elsewhere);
  return {{"n", absolute.size()},
          {"mean_abs_error", mean(absolute)},
          {"median_abs_error", quantile(absolute, 0.5)},
          {"p90_abs_error", quantile(absolute, 0.9)},
          {"max_abs_error", quantile(absolute, 1)},
          {"bias", mean(signed_errors)},
          {"interval_coverage", absolute.empty() ? 0 : covered / static_cast<double>(absolute.size())},
          {"median_interval_width", quantile(widths, 0.5)},
          {"oom", oom},
          {"oom_elsewhere", elsewhere},
          {"memory_n", memory.size()},
          {"memory_mean_abs_error", mean(memory)},
          {"memory_kinds", kinds}};
}

std::vector<double> ranks_of(const std::vector<double>& x) {
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return x[a] < x[b]; });
  std::vector<double> ranks(x.size());
  for (std::size_t i = 0; i < order.size();) {
    std::size_t j = i;
    while (j < order.size() && x[order[j]] == x[order[i]]) ++j;
    for (std::size_t k = i; k < j; ++k)
      ranks[order[k]] = static_cast<double>(i + j - 1) / 2;  // ties share their mean
    i = j;
  }
  return ranks;
}

double spearman(const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<double> x = ranks_of(a), y = ranks_of(b);
  const double mx = mean(x), my = mean(y);
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mx) * (y[i] - my);
    xx += (x[i] - mx) * (x[i] - mx);
    yy += (y[i] - my) * (y[i] - my);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

// Runs of one series and workload, three or more.
Json rankings_of(const std::vector<RunOutcome>& outcomes) {
  std::map<std::pair<std::string, std::string>, Outcomes> groups;
  for (const RunOutcome& o : outcomes)
    if (o.step_time_error) groups[{o.series, o.workload}].push_back(&o);
  Json rankings = Json::array();
  for (const auto& [key, group] : groups) {
    if (group.size() < 3) continue;
    std::vector<double> predicted, measured, flops;
    for (const RunOutcome* o : group) {
      predicted.push_back(o->predicted_s);
      measured.push_back(*o->measured.step_time_s);
      flops.push_back(o->flops_only_s);
    }
    const auto pick = std::min_element(predicted.begin(), predicted.end()) - predicted.begin();
    const double best = *std::min_element(measured.begin(), measured.end());
    rankings.push_back({{"series", key.first},
                        {"workload", key.second},
                        {"n", group.size()},
                        {"spearman", spearman(predicted, measured)},
                        {"regret", measured[static_cast<std::size_t>(pick)] / best - 1},
                        {"spearman_flops_only", spearman(flops, measured)}});
  }
  return rankings;
}

// "Title, arXiv ..., Table 3" -> its first part: one publication.
std::string publication(const std::string& source) {
  const auto comma = source.find(',');
  return comma == std::string::npos ? source : source.substr(0, comma);
}

Json by_class(const std::vector<RunOutcome>& outcomes, const std::set<std::string>& oom_series,
              const std::function<std::string(const RunOutcome&)>& of) {
  std::map<std::string, Outcomes> groups;
  for (const RunOutcome& o : outcomes)
    if (!of(o).empty()) groups[of(o)].push_back(&o);
  Json table = Json::object();
  for (const auto& [name, group] : groups) table[name] = summary_of(group, oom_series);
  return table;
}

Json run_json(const RunOutcome& o) {
  Json j = {{"id", o.id}, {"series", o.series}, {"status", o.status}};
  if (!o.why.empty()) j["why"] = o.why;
  if (o.status == "ok") j["predicted"] = o.predicted;
  j["measured"] = o.measured_json;
  if (o.step_time_error) {
    j["step_time_error"] = *o.step_time_error;
    j["in_interval"] = o.in_interval;
  }
  if (o.memory_error) j["memory_error"] = *o.memory_error;
  if (o.status == "ok") j["oom_predicted"] = o.oom_predicted;
  return j;
}

}  // namespace

Json validation_document(const std::vector<RunOutcome>& outcomes) {
  std::set<std::string> oom_series;
  for (const RunOutcome& o : outcomes)
    if (o.measured.oom) oom_series.insert(o.series);
  Outcomes all;
  Json runs = Json::array();
  for (const RunOutcome& o : outcomes) {
    all.push_back(&o);
    runs.push_back(run_json(o));
  }
  const auto table = [&](auto of) { return by_class(outcomes, oom_series, of); };
  return {{"schema", "stepcast/validation/1"},
          {"runs", runs},
          {"summary", summary_of(all, oom_series)},
          {"by",
           {{"source", table([](const RunOutcome& o) { return publication(o.source); })},
            {"topology", table([](const RunOutcome& o) { return o.topology; })},
            {"recipe", table([](const RunOutcome& o) { return o.recipe; })},
            {"kind", table([](const RunOutcome& o) { return o.kind; })},
            {"completeness", table([](const RunOutcome& o) { return o.completeness; })},
            {"size", table([](const RunOutcome& o) { return o.size; })}}},
          {"rankings", rankings_of(outcomes)}};
}

namespace {

using Out = std::back_insert_iterator<std::string>;

// "4.2% of 22 allocated"; "-" where no run prints its peak.
std::string memory_column(const Json& s) {
  if (s["memory_n"] == 0) return "-";
  std::vector<std::string> kinds;
  for (const auto& kind : s["memory_kinds"].items())
    kinds.push_back(fmt::format("{} {}", kind.value().get<int>(), kind.key()));
  return fmt::format("{:.1f}% of {}", 100 * s["memory_mean_abs_error"].get<double>(), fmt::join(kinds, ", "));
}

std::string bias_column(const Json& s) {
  return s["n"] == 0 ? "-" : fmt::format("{:+.1f}%", 100 * s["bias"].get<double>());
}

void error_table(Out out, const std::string& title, const Json& table) {
  fmt::format_to(out, "{:<64} {:>5} {:>7} {:>7} {:>7} {:>7} {:>7}  {}\n", title, "n", "mean", "median", "p90",
                 "max", "bias", "memory");
  for (const auto& row : table.items()) {
    const Json& s = row.value();
    if (s["n"] == 0 && s["memory_n"] == 0) continue;
    // of a row without times only the memory is known
    const auto percent = [&](const char* key) {
      return s["n"] == 0 ? std::string("-") : fmt::format("{:.1f}%", 100 * s[key].get<double>());
    };
    fmt::format_to(out, "  {:<62.62} {:>5} {:>7} {:>7} {:>7} {:>7} {:>7}  {}\n", row.key(), s["n"].get<int>(),
                   percent("mean_abs_error"), percent("median_abs_error"), percent("p90_abs_error"),
                   percent("max_abs_error"), bias_column(s), memory_column(s));
  }
  fmt::format_to(out, "\n");
}

// Runs whose memory is called wrongly: they ran out and were predicted to fit, or the other way round. The
// furthest off come first.
void confused(Out out, const std::vector<RunOutcome>& outcomes) {
  constexpr std::size_t kShown = 20;
  const auto margin = [](const RunOutcome* o) { return o->device_bytes - o->capacity_bytes; };
  Outcomes wrong;
  for (const RunOutcome& o : outcomes)
    if (o.status == "ok" && o.oom_predicted != o.measured.oom) wrong.push_back(&o);
  if (wrong.empty()) return;
  std::sort(wrong.begin(), wrong.end(), [&](const RunOutcome* a, const RunOutcome* b) {
    const double x = std::abs(margin(a)), y = std::abs(margin(b));
    return x != y ? x > y : a->id < b->id;
  });
  fmt::format_to(out, "out of memory: what was missed or falsely called ({})\n", wrong.size());
  for (std::size_t i = 0; i < std::min(kShown, wrong.size()); ++i) {
    const RunOutcome& o = *wrong[i];
    fmt::format_to(out, "  {:<7} predicted {:>6.1f} of {:>5.1f} GiB ({:>+6.1f})  {}\n",
                   o.measured.oom ? "missed" : "false", o.device_bytes / kGiB, o.capacity_bytes / kGiB,
                   margin(&o) / kGiB, o.id);
  }
  if (wrong.size() > kShown) fmt::format_to(out, "  ... {} more\n", wrong.size() - kShown);
  fmt::format_to(out, "\n");
}

void worst_cases(Out out, const std::vector<RunOutcome>& outcomes) {
  Outcomes sorted;
  for (const RunOutcome& o : outcomes)
    if (o.step_time_error) sorted.push_back(&o);
  std::sort(sorted.begin(), sorted.end(), [](const RunOutcome* a, const RunOutcome* b) {
    const double x = std::abs(*a->step_time_error), y = std::abs(*b->step_time_error);
    return x != y ? x > y : a->id < b->id;
  });
  fmt::format_to(out, "worst step times\n");
  for (std::size_t i = 0; i < std::min<std::size_t>(10, sorted.size()); ++i)
    fmt::format_to(out, "  {:>+7.1f}%  predicted {:>9.4f} s, measured {:>9.4f} s  {}\n",
                   100 * *sorted[i]->step_time_error, sorted[i]->predicted_s,
                   *sorted[i]->measured.step_time_s, sorted[i]->id);
  fmt::format_to(out, "\n");
}

void not_run(Out out, const std::vector<RunOutcome>& outcomes) {
  std::map<std::string, std::int64_t> reasons;
  for (const RunOutcome& o : outcomes)
    if (o.status != "ok")
      ++reasons[o.status + ": " +
                o.why.substr(o.why.find(": ") == std::string::npos ? 0 : o.why.find(": ") + 2)];
  std::map<std::string, std::int64_t> short_reasons;
  for (const auto& [reason, n] : reasons) {
    std::string line = reason.substr(0, reason.find('\n'));
    const auto pointer_end = line.find(": ", line.find('/') == std::string::npos ? 0 : line.find('/'));
    if (line.find("/runs/") != std::string::npos && pointer_end != std::string::npos)
      line = line.substr(0, line.find(": ") + 2) + line.substr(pointer_end + 2);
    short_reasons[line] += n;
  }
  if (short_reasons.empty()) return;
  fmt::format_to(out, "not forecast\n");
  for (const auto& [reason, n] : short_reasons) fmt::format_to(out, "  {:>5}  {}\n", n, reason);
  fmt::format_to(out, "\n");
}

}  // namespace

std::string validation_text(const std::vector<RunOutcome>& outcomes, const Json& document) {
  std::string text;
  const Out out = std::back_inserter(text);
  Json all = Json::object();
  all["all"] = document["summary"];
  error_table(out, "step time, absolute error of predicted / measured - 1", all);
  for (const auto& [name, table] : document["by"].items()) error_table(out, "by " + name, table);
  worst_cases(out, outcomes);
  const Json& s = document["summary"];
  const Json& oom = s["oom"];
  fmt::format_to(out,
                 "out of memory (series that hold such a run): {} hit, {} missed, {} false alarms, {} right "
                 "to run; F1 {:.2f}\n",
                 oom["tp"].get<int>(), oom["fn"].get<int>(), oom["fp"].get<int>(), oom["tn"].get<int>(),
                 oom["f1"].get<double>());
  fmt::format_to(out, "elsewhere: {} of {} runs that ran are predicted not to fit\n",
                 s["oom_elsewhere"]["fp"].get<int>(), s["oom_elsewhere"]["n"].get<int>());
  fmt::format_to(out, "peak memory: mean error {:.1f} % over {} runs that print it\n\n",
                 100 * s["memory_mean_abs_error"].get<double>(), s["memory_n"].get<int>());
  confused(out, outcomes);
  double rank_mean = 0, regret = 0, n = 0;
  for (const Json& r : document["rankings"]) {
    rank_mean += r["spearman"].get<double>();
    regret += r["regret"].get<double>();
    n += 1;
  }
  if (n > 0)
    fmt::format_to(
        out,
        "rankings: {:.0f} workloads of three or more runs; Spearman {:.2f}, regret {:.1f} % on average\n\n",
        n, rank_mean / n, 100 * regret / n);
  not_run(out, outcomes);
  fmt::format_to(out, "no intervals yet: every forecast is [t, t], so none covers its run\n");
  return text;
}

}  // namespace stepcast
