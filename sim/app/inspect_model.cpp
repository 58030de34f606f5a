// `stepcast inspect model`: parameters, bytes of weights, FLOPs of a token.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <memory>
#include <optional>

#include "app/inspect.h"
#include "app/model_file.h"
#include "base/json.h"
#include "base/schema.h"
#include "model/flops.h"
#include "model/parameters.h"

namespace stepcast {
namespace {

constexpr std::int64_t kDefaultSeqLen = 4096;

struct Format {
  const char* key;
  const char* name;
  double bytes;  // of one weight
};

constexpr Format kFormats[] = {
    {"fp32", "FP32", 4},
    {"bf16", "BF16", 2},
    {"fp8", "FP8", 1},
    {"nvfp4", "NVFP4", 0.5 + 1.0 / 16},  // with a one-byte scale for each 16 weights
};

struct Part {
  std::string name;
  std::int64_t count = 0;
  Parameters each;
  std::int64_t active_each = 0;
};

struct Report {
  std::string argument;
  ModelFile source;
  ParameterReport parameters;
  std::vector<Part> parts;
  std::int64_t seq_len = 0;
  std::int64_t vocab = 0;  // rows of the output matrix that FLOPs count
  double flops_per_token = 0;
};

std::int64_t active_of(const Model& model, const Parameters& parameters) {
  if (!model.moe) return parameters.total();
  return parameters.total() -
         parameters.experts / model.moe->experts * (model.moe->experts - model.moe->top_k);
}

std::vector<Part> parts_of(const Model& model) {
  std::vector<Part> parts;
  const auto add = [&](const std::string& name, std::int64_t count, const Parameters& each) {
    if (count > 0 && each.total() > 0) parts.push_back({name, count, each, active_of(model, each)});
  };
  add("embedding", 1, embedding_parameters(model, model.vocab));
  std::int64_t dense = -1, moe = -1;  // the last layer of each kind
  for (std::int64_t layer = 0; layer < model.layers; ++layer) (model.is_moe(layer) ? moe : dense) = layer;
  if (dense >= 0) add("dense layer", model.dense_layers(), decoder_layer_parameters(model, dense));
  if (moe >= 0) add("MoE layer", model.moe_layers(), decoder_layer_parameters(model, moe));
  add("final norm", 1, final_norm_parameters(model));
  add("output matrix", 1, head_parameters(model, model.vocab));
  add("vision encoder", 1, vision_parameters(model));
  if (model.mtp_layers > 0) add("MTP depth", model.mtp_layers, mtp_layer_parameters(model));
  return parts;
}

// A scenario's sequence length and padded vocabulary count where it gives them.
Report report_of(const std::string& argument, std::optional<std::int64_t> seq_len) {
  Report report;
  report.argument = argument;
  report.source = load_model_file(argument);
  const Model& model = report.source.model;
  report.seq_len = kDefaultSeqLen;
  report.vocab = model.vocab;
  if (report.source.scenario) {
    const Json& given = *report.source.scenario;
    const Json scenario = with_defaults(given, "scenario");
    report.seq_len = scenario["batch"]["seq_len"];
    if (given.contains("layout") && !given["layout"].is_null())
      report.vocab = padded_vocab(model.vocab, model.vocab_divisor, scenario["layout"]["tp"]);
  }
  if (seq_len) report.seq_len = *seq_len;
  report.parameters = count_parameters(model);
  report.parts = parts_of(model);
  report.flops_per_token = model_flops_per_token(model, report.seq_len, report.vocab);
  return report;
}

double weight_bytes(const Report& report, const Format& format) {
  return std::ceil(static_cast<double>(report.parameters.total) * format.bytes);
}

Json report_json(const Report& report) {
  Json weights = Json::object();
  for (const Format& format : kFormats)
    weights[format.key] = static_cast<std::int64_t>(weight_bytes(report, format));
  Json parts = Json::array();
  for (const Part& part : report.parts)
    parts.push_back({{"part", part.name},
                     {"count", part.count},
                     {"parameters_each", part.each.total()},
                     {"parameters_active_each", part.active_each}});
  return {{"schema", "stepcast/model-report/1"},
          {"name", report.source.model.name},
          {"file", report.argument},
          {"parameters_total", report.parameters.total},
          {"parameters_active", report.parameters.active},
          {"parameters_mtp", report.parameters.mtp},
          {"flops_per_token", report.flops_per_token},
          {"seq_len", report.seq_len},
          {"vocab", report.vocab},
          {"weights_bytes", weights},
          {"parts", parts},
          {"unrecognised", report.source.unrecognised}};
}

// 1234567 -> "1,234,567"
std::string grouped(std::int64_t value) {
  std::string text = std::to_string(value);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

std::string short_count(std::int64_t value) {
  const auto count = static_cast<double>(value);
  if (count >= 1e12) return fmt::format("{:.3f} T", count / 1e12);
  if (count >= 1e9) return fmt::format("{:.2f} B", count / 1e9);
  return fmt::format("{:.2f} M", count / 1e6);
}

std::string decimal_bytes(double bytes) {
  if (bytes >= 1e12) return fmt::format("{:.1f} TB", bytes / 1e12);
  return bytes >= 1e9 ? fmt::format("{:.1f} GB", bytes / 1e9) : fmt::format("{:.1f} MB", bytes / 1e6);
}

void print_report(const Report& report) {
  const ParameterReport& p = report.parameters;
  fmt::print("{}\n\n", report.source.model.name);
  fmt::print("parameters  {:>9}  {}\n", short_count(p.total), grouped(p.total));
  fmt::print("  active    {:>9}  {}, used by one token; both embeddings counted\n", short_count(p.active),
             grouped(p.active));
  if (p.mtp > 0)
    fmt::print("  MTP       {:>9}  {}, apart from the total\n", short_count(p.mtp), grouped(p.mtp));
  std::vector<std::string> weights;
  for (const Format& format : kFormats)
    weights.push_back(fmt::format("{} in {}", decimal_bytes(weight_bytes(report, format)), format.name));
  fmt::print("weights     {}\n", fmt::join(weights, ", "));
  fmt::print("FLOPs       {:.6g} a token, forward and backward, at sequence length {} and vocabulary {}\n",
             report.flops_per_token, report.seq_len, report.vocab);
  fmt::print("            (Megatron's convention: causal half of attention, recompute not counted)\n\n");
  fmt::print("{:<15}{:>6}  {:>18}  {:>18}\n", "part", "count", "parameters each", "active each");
  for (const Part& part : report.parts)
    fmt::print("{:<15}{:>6}  {:>18}  {:>18}\n", part.name, part.count, grouped(part.each.total()),
               grouped(part.active_each));
  if (!report.source.unrecognised.empty())
    fmt::print("\nkeys not recognised, and ignored: {}\n", fmt::join(report.source.unrecognised, ", "));
}

struct Options {
  std::string file;
  std::optional<std::int64_t> seq_len;
  bool json = false;
};

}  // namespace

void add_inspect_model(CLI::App& inspect, int& exit_code) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = inspect.add_subcommand("model", "Parameters, bytes of weights and FLOPs of a model");
  command
      ->add_option("file", options->file,
                   "A shipped model's name, a model file, a Hugging Face config.json, or a scenario")
      ->required();
  command->add_option("--seq-len", options->seq_len, "Tokens of a sequence; default 4096, or the scenario's")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{16777216}));
  command->add_flag("--json", options->json, "One JSON document on stdout");
  command->footer("Example:\n  stepcast inspect model deepseek-v3 --seq-len 8192");
  command->callback([options, &exit_code] {
    const Report report = report_of(options->file, options->seq_len);
    if (options->json)
      fmt::print("{}\n", report_json(report).dump(2, ' ', false, Json::error_handler_t::replace));
    else
      print_report(report);
    exit_code = 0;
  });
}

}  // namespace stepcast
