#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "base/json.h"
#include "model/parameters.h"
#include "result/document.h"
#include "result/memory_view.h"

namespace stepcast {
namespace {

using Out = std::back_insert_iterator<std::string>;

std::string count(double value) {
  if (value >= 1e12) return fmt::format("{:.2f} T", value / 1e12);
  if (value >= 1e9) return fmt::format("{:.1f} B", value / 1e9);
  return fmt::format("{:.0f} M", value / 1e6);
}

void headline(Out out, const Scenario& s, const Forecast& f) {
  const ParameterReport parameters = count_parameters(s.model);
  fmt::format_to(out, "{}\n", s.name.empty() ? s.model.name : s.name);
  fmt::format_to(out, "  model      {}: {} parameters, {} active\n", s.model.name,
                 count(static_cast<double>(parameters.total)), count(static_cast<double>(parameters.active)));
  fmt::format_to(out, "  cluster    {} GPUs of {} ({})\n", s.cluster.gpus,
                 (*s.resolved)["cluster"]["topology"].get<std::string>(), s.cluster.gpu.kind);
  fmt::format_to(out, "  layout     TP {} CP {} PP {} x VPP {} EP {} ETP {} DP {} EDP {}, {}\n", s.layout.tp,
                 s.layout.cp, s.layout.pp, s.layout.vpp, s.layout.ep, s.layout.etp, s.layout.dp, s.layout.edp,
                 s.layout.schedule);
  fmt::format_to(out,
                 "  batch      {} sequences of {} tokens, micro-batch {}, {} micro-batches a rank; {}\n\n",
                 s.batch.global, s.batch.seq_len, s.batch.micro, s.microbatches(),
                 (*s.resolved)["precision"]["recipe"].get<std::string>());

  fmt::format_to(out, "{}", memory_verdict(f.memory));
  fmt::format_to(out, "step time {:.3f} s   {:.0f} tokens/s ({:.1f} per GPU)   {:.1f} TFLOP/s per GPU\n",
                 f.step_time_s, f.tokens_per_s, f.tokens_per_s / static_cast<double>(s.cluster.gpus),
                 f.model_tflops_per_gpu);
  fmt::format_to(out, "MFU {:.1f} %   HFU {:.1f} %   (of {:.0f} TFLOP/s, dense BF16)\n\n", 100 * f.mfu,
                 100 * f.hfu, s.cluster.gpu.bf16_flops / 1e12);
}

void loss_table(Out out, const Forecast& f) {
  fmt::format_to(out, "where the step goes (pipeline rank {}, which ends last)\n", f.last_rank);
  for (const auto& [name, value] : f.breakdown.seconds) {
    if (value <= 0) continue;
    const double share = value / f.step_time_s;
    fmt::format_to(out, "  {:<14} {:>9.4f} s  {:>5.1f} %  {}\n", name, value, 100 * share,
                   std::string(static_cast<std::size_t>(std::lround(share * 50)), '#'));
  }
  fmt::format_to(out, "  {:<14} {:>9.4f} s  {:>5.1f} %\n\n", "step", f.breakdown.total(), 100.0);
}

void traffic_table(Out out, const Forecast& f) {
  const Traffic& t = f.traffic;
  fmt::format_to(
      out,
      "traffic of that rank in a step, GB sent: TP {:.1f}  CP {:.1f}  EP {:.1f}  PP {:.1f}  DP {:.1f}   "
      "(NVLink {:.1f}, network {:.1f})\n\n",
      t.tp / 1e9, t.cp / 1e9, t.ep / 1e9, t.pp / 1e9, t.dp / 1e9, t.nvlink / 1e9, t.network / 1e9);
}

}  // namespace

std::string result_text(const Scenario& s, const Forecast& f) {
  std::string text;
  const Out out = std::back_inserter(text);
  headline(out, s, f);
  loss_table(out, f);
  fmt::format_to(out, "{}\n", memory_table(f.memory));
  traffic_table(out, f);
  fmt::format_to(out, "rests on\n  kernels    profile {} ({}; sha256 {:.12})\n  software   {} as of {}\n",
                 f.calibration, f.calibration_kind, f.calibration_sha256, s.stack.name, s.stack.date);
  for (const std::string& line : f.assumptions) fmt::format_to(out, "  assumed    {}\n", line);
  for (const std::string& line : f.warnings) fmt::format_to(out, "  warning    {}\n", line);
  return text;
}

}  // namespace stepcast
