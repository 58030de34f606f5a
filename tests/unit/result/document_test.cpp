// The result document: its keys, that it is finite, and the identities between its numbers.
#include "result/document.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "model/flops.h"
#include "model/parameters.h"
#include "unit/graph/scenarios.h"

namespace stepcast::graph_test {
namespace {

void expect_finite(const Json& json, const std::string& at) {
  EXPECT_TRUE(!json.is_number_float() || std::isfinite(json.get<double>())) << at;
  EXPECT_FALSE(json.is_null()) << at;
  if (json.is_structured() && !at.ends_with("/scenario/free"))  // there null has a meaning
    for (const auto& [key, value] : json.items()) expect_finite(value, at + "/" + key);
}

void expect_identities(const Json& d, const Scenario& s, const std::string& what) {
  const double step = d["step_time_s"], gpus = static_cast<double>(s.cluster.gpus);
  EXPECT_GT(step, 0) << what;
  EXPECT_LE(d["step_time_interval_s"][0].get<double>(), step) << what;
  EXPECT_GE(d["step_time_interval_s"][1].get<double>(), step) << what;
  EXPECT_NEAR(d["tokens_per_s"].get<double>() * step / s.tokens_per_step(), 1, 1e-12) << what;
  EXPECT_NEAR(d["tokens_per_s_per_gpu"].get<double>() * gpus / d["tokens_per_s"].get<double>(), 1, 1e-12)
      << what;
  // MFU: model FLOPs of domain 1.3 over the dense BF16 peak, whatever the recipe
  const std::int64_t rows = padded_vocab(s.model.vocab, s.model.vocab_divisor, s.layout.tp);
  const double flops =
      model_flops_per_token(s.model, s.batch.seq_len, rows) * s.tokens_per_step() / step / gpus;
  EXPECT_NEAR(d["model_tflops_per_gpu"].get<double>() * 1e12 / flops, 1, 1e-12) << what;
  EXPECT_NEAR(d["mfu"].get<double>() * s.cluster.gpu.bf16_flops / flops, 1, 1e-12) << what;
  // what is executed holds the model's FLOPs (MLA's norms, which only the convention counts, are 1e-4 of
  // them)
  EXPECT_GE(d["hfu"].get<double>(), d["mfu"].get<double>() * (1 - 1e-4)) << what;
  EXPECT_GT(d["mfu"].get<double>(), 0) << what;

  const Json& memory = d["memory"];
  double most = 0;
  for (const Json& stage : memory["stages"]) {
    const double allocated = stage["parameters_bytes"].get<double>() +
                             stage["gradients_bytes"].get<double>() + stage["optimizer_bytes"].get<double>() +
                             stage["activations_bytes"].get<double>() + stage["buffers_bytes"].get<double>();
    EXPECT_NEAR(stage["allocated_bytes"].get<double>(), allocated, 1) << what;
    EXPECT_GE(stage["reserved_bytes"].get<double>(), allocated - 1) << what;
    EXPECT_NEAR(stage["device_bytes"].get<double>(),
                stage["reserved_bytes"].get<double>() + stage["runtime_bytes"].get<double>(), 1)
        << what;
    most = std::max(most, stage["device_bytes"].get<double>());
  }
  EXPECT_EQ(memory["stages"].size(), static_cast<std::size_t>(s.layout.pp)) << what;
  EXPECT_EQ(memory["peak_bytes"].get<double>(), most) << what;
  EXPECT_EQ(memory["stages"][memory["peak_rank"].get<std::size_t>()]["device_bytes"].get<double>(), most)
      << what;
  EXPECT_EQ(memory["capacity_bytes"].get<double>(), static_cast<double>(s.cluster.gpu.hbm_bytes)) << what;
  EXPECT_EQ(d["fits"].get<bool>(), most <= static_cast<double>(s.cluster.gpu.hbm_bytes)) << what;

  const Json& t = d["traffic_bytes"];
  double by_purpose = 0;
  for (const char* key : {"tp", "cp", "ep", "pp", "dp"}) by_purpose += t[key].get<double>();
  const double by_link = t["nvlink"].get<double>() + t["network"].get<double>();
  EXPECT_NEAR(by_purpose, by_link, 1e-9 * by_link) << what;
}

TEST(ResultDocument, OfShippedScenariosIsWhole) {
  for (const auto& file : shipped_scenarios()) {
    const Scenario scenario = load_scenario(file);
    const Json document = result_document(scenario, forecast(scenario));
    EXPECT_EQ(document.begin().key(), "schema");
    EXPECT_EQ(document["schema"], "stepcast/result/1");
    expect_finite(document, file.string());
    expect_identities(document, scenario, file.string());
  }
}

TEST(ResultDocument, HasTheContractsKeys) {
  const Scenario scenario = read(scenario_json(dense_model(), 8, {{"tp", 2}}));
  const Json d = result_document(scenario, forecast(scenario));
  for (const char* pointer : {"/name",
                              "/scenario/layout/dp",
                              "/scenario/layout/edp",
                              "/step_time_s",
                              "/step_time_interval_s/1",
                              "/tokens_per_s",
                              "/tokens_per_s_per_gpu",
                              "/model_tflops_per_gpu",
                              "/mfu",
                              "/hfu",
                              "/fits",
                              "/memory/capacity_bytes",
                              "/memory/peak_bytes",
                              "/memory/peak_rank",
                              "/memory/peak_moment",
                              "/memory/stages/0/stage",
                              "/memory/stages/0/parameters_bytes",
                              "/memory/stages/0/gradients_bytes",
                              "/memory/stages/0/optimizer_bytes",
                              "/memory/stages/0/activations_bytes",
                              "/memory/stages/0/buffers_bytes",
                              "/memory/stages/0/runtime_bytes",
                              "/memory/stages/0/allocated_bytes",
                              "/memory/stages/0/reserved_bytes",
                              "/memory/stages/0/device_bytes",
                              "/breakdown_s/gemm",
                              "/breakdown_s/jitter",
                              "/traffic_bytes/nvlink",
                              "/warnings",
                              "/provenance/version",
                              "/provenance/calibration/name",
                              "/provenance/calibration/sha256",
                              "/provenance/calibration/kind",
                              "/provenance/assumptions"})
    EXPECT_TRUE(d.contains(Json::json_pointer(pointer))) << pointer;
  const Json run = run_section(forecast(scenario), 0.25);
  for (const char* key : {"mode", "network", "ranks_simulated", "events", "wall_s", "peak_rss_bytes"})
    EXPECT_TRUE(run.contains(key)) << key;
  EXPECT_EQ(run["wall_s"], 0.25);
}

// Data parallelism over 8 GPUs of one node: 4 + 2 bytes a parameter x 7/8, and an all-reduce of the gradient
// norm.
TEST(ResultDocument, CountsTheBytesOfDataParallelism) {
  const Scenario scenario = read(scenario_json(dense_model(), 8, Json::object()));
  const Json traffic = result_document(scenario, forecast(scenario))["traffic_bytes"];
  const double parameters = 8 * (15204352.0 + 2048) + 2 * 32768.0 * 1024 + 1024;
  EXPECT_NEAR(traffic["dp"].get<double>(), parameters * 6 * 7 / 8 + 2 * 4 * 7.0 / 8, 1);
  EXPECT_EQ(traffic["network"].get<double>(), 0);
  EXPECT_EQ(traffic["tp"].get<double>(), 0);
  EXPECT_EQ(traffic["pp"].get<double>(), 0);
}

TEST(ResultDocument, DoesNotDependOnTheFolderItIsReadFrom) {
  const Json json = scenario_json("llama-3-8b", 8, Json::object());
  const Scenario here = read(json);
  const Scenario there = read_scenario(json, "test", "", "/");
  EXPECT_EQ(result_document(here, forecast(here)).dump(), result_document(there, forecast(there)).dump());
}

TEST(ResultText, SaysWhatTheDocumentSays) {
  const Scenario scenario = read(scenario_json(dense_model(), 8, {{"tp", 2}}));
  const Forecast f = forecast(scenario);
  const std::string text = result_text(scenario, f);
  for (const char* words :
       {"step time", "MFU", "where the step goes", "gemm", "memory by pipeline rank", "h100-sxm"})
    EXPECT_NE(text.find(words), std::string::npos) << words;
  EXPECT_EQ(text.find("nan"), std::string::npos);
  EXPECT_EQ(text.find("inf "), std::string::npos);
}

// --- what must not become a number that is not one ---

// A profile without tensor cores for the recipe's format (the calibration of another GPU) cannot time it.
TEST(Forecast, RefusesAProfileWithoutTheFormat) {
  const Json json = scenario_json(dense_model(), 8, Json::object(),
                                  {{"calibration", "a100-sxm"}, {"precision", {{"recipe", "fp8-tensor"}}}});
  try {
    const Scenario scenario = read(json);
    expect_finite(result_document(scenario, forecast(scenario)), "");
  } catch (const InputError&) {
  }
}

// A path in a scenario is relative to its file, whatever the working directory.
TEST(Forecast, FindsACalibrationBesideTheScenario) {
  const Json json = scenario_json(dense_model(), 8, Json::object(), {{"calibration", "h100-sxm.json"}});
  const Scenario scenario = read_scenario(json, "test", "", data_folder() / "calib" / "profiles");
  EXPECT_NO_THROW(forecast(scenario));
}

TEST(Forecast, IsFiniteForEveryRecipeAndTopology) {
  int legal = 0;
  for (const std::string& topology : data_names("topologies")) {
    for (const char* recipe :
         {"fp32", "fp16", "bf16", "fp8-tensor", "fp8-block", "mxfp8", "nvfp4", "nvfp4-weights"}) {
      for (const Json& model : {dense_model(), moe_model()}) {
        Json layout = Json::object();
        if (model.contains("moe")) layout["ep"] = 4;
        for (const char* attention : {"auto", "unfused"}) {
          Scenario scenario;
          try {
            scenario = read(scenario_json(
                model, 16, layout,
                {{"precision", {{"recipe", recipe}}}, {"kernels", {{"attention", attention}}}}, topology));
          } catch (const InputError&) {
            continue;  // no such tensor cores
          }
          ++legal;
          expect_finite(result_document(scenario, forecast(scenario)), topology + " " + recipe);
        }
      }
    }
  }
  EXPECT_GT(legal, 150);
}

}  // namespace
}  // namespace stepcast::graph_test
