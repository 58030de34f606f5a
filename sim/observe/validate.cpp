#include "observe/validate.h"

#include <fmt/format.h>

#include <atomic>

#include "base/json.h"
#include "base/parallel.h"
#include "base/schema.h"
#include "model/flops.h"
#include "result/forecast.h"

namespace stepcast {
namespace fs = std::filesystem;
namespace {

struct Record {
  std::string file;
  std::string pointer;  // of the record in its file
  fs::path beside;
  const Json* json = nullptr;
};

std::string size_class(std::int64_t gpus) {
  if (gpus <= 8) return "1-8";
  if (gpus <= 64) return "9-64";
  if (gpus <= 512) return "65-512";
  return gpus <= 1023 ? "513-1023" : "1024+";
}

Measured read_measured(const Json& j) {
  Measured m;
  if (j.contains("step_time_s")) m.step_time_s = j["step_time_s"].get<double>();
  if (j.contains("peak_memory_bytes")) m.peak_memory_bytes = j["peak_memory_bytes"].get<double>();
  m.peak_memory_kind = j.value("peak_memory_kind", std::string("allocated"));
  m.oom = j.value("oom", false);
  return m;
}

double like_with_like(const StageMemory& peak, const std::string& kind) {
  if (kind == "device") return peak.device;
  return kind == "reserved" ? peak.reserved : peak.allocated;
}

void fill_classes(RunOutcome& out, const Scenario& s) {
  out.topology = s.cluster.topology;
  out.recipe = (*s.resolved)["precision"]["recipe"];
  out.kind = s.model.moe ? "moe" : "dense";
  out.size = size_class(s.cluster.gpus);
  out.workload = fmt::format("{} | {} GPUs | {} x {} | {} | {}", s.model.name, s.cluster.gpus, s.batch.global,
                             s.batch.seq_len, out.recipe, s.software.stack);
}

void compare(RunOutcome& out, const Scenario& s, const Forecast& f) {
  out.predicted_s = f.step_time_s;
  out.oom_predicted = !f.memory.fits();
  out.device_bytes = f.memory.peak().device;
  out.capacity_bytes = f.memory.capacity;
  out.predicted = {{"step_time_s", f.step_time_s},
                   {"step_time_interval_s", {f.interval_s[0], f.interval_s[1]}},
                   {"tokens_per_s_per_gpu", f.tokens_per_s / static_cast<double>(s.cluster.gpus)},
                   {"model_tflops_per_gpu", f.model_tflops_per_gpu},
                   {"peak_memory_bytes", like_with_like(f.memory.peak(), out.measured.peak_memory_kind)},
                   {"device_bytes", f.memory.peak().device},
                   {"fits", f.memory.fits()},
                   {"breakdown_s", Json::object()}};
  for (const auto& [name, value] : f.breakdown.seconds) out.predicted["breakdown_s"][name] = value;
  // FLOPs alone: hardware FLOPs at peak plus recompute as a third more
  out.flops_only_s = f.model_tflops_per_gpu * f.step_time_s *
                     (s.recompute.granularity == Granularity::kFull ? 4.0 / 3 : 1.0);
  if (out.measured.step_time_s) {
    out.step_time_error = f.step_time_s / *out.measured.step_time_s - 1;
    out.in_interval =
        f.interval_s[0] <= *out.measured.step_time_s && *out.measured.step_time_s <= f.interval_s[1];
    out.interval_width = (f.interval_s[1] - f.interval_s[0]) / f.step_time_s;
  }
  if (out.measured.peak_memory_bytes)
    out.memory_error = out.predicted["peak_memory_bytes"].get<double>() / *out.measured.peak_memory_bytes - 1;
}

RunOutcome validate_one(const Record& record) {
  const Json& j = *record.json;
  RunOutcome out;
  out.id = j["id"];
  out.series = j["series"];
  out.source = j.value("source", std::string());
  out.completeness = j.value("completeness", std::string("full"));
  out.measured_json = j["measured"];
  out.measured = read_measured(j["measured"]);
  try {
    const Scenario s = read_scenario(j["scenario"], record.file, record.pointer + "/scenario", record.beside);
    fill_classes(out, s);
    const Forecast f = forecast(s);
    compare(out, s, f);
    out.status = "ok";
  } catch (const NotSimulated& error) {
    out.status = "skipped";
    out.why = error.what();
  } catch (const std::exception& error) {  // one record does not end a run over a thousand
    out.status = "error";
    out.why = error.what();
  }
  return out;
}

}  // namespace

std::vector<RunOutcome> validate_runs(const std::vector<fs::path>& files, int threads,
                                      const std::function<void(std::size_t, std::size_t)>& progress) {
  std::vector<Json> documents;
  std::vector<Problem> problems;
  documents.reserve(files.size());
  for (const fs::path& file : files) {
    try {
      const Json document = load_json(file);
      check_schema(document, "runs", file.string(), "", problems);
      documents.push_back(without_absent(document, "runs"));
    } catch (const InputError& error) {
      problems.insert(problems.end(), error.problems().begin(), error.problems().end());
    }
  }
  throw_if_any(problems);
  std::vector<Record> records;
  for (std::size_t f = 0; f < files.size(); ++f) {
    const Json& runs = documents[f]["runs"];
    for (std::size_t i = 0; i < runs.size(); ++i)
      records.push_back({files[f].string(), fmt::format("/runs/{}", i), files[f].parent_path(), &runs[i]});
  }
  std::vector<RunOutcome> outcomes(records.size());
  std::atomic<std::size_t> done{0};
  parallel_for(records.size(), threads, [&](std::size_t i) {
    outcomes[i] = validate_one(records[i]);
    progress(++done, records.size());
  });
  return outcomes;
}

}  // namespace stepcast
