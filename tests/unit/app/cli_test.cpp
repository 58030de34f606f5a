// The program as its user meets it: documents, exit codes, messages for bad input.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/json.h"
#include "support/run_program.h"

namespace stepcast {
namespace {

using test::Answer;
using test::run_program;
using test::write_temporary;

const std::string kBig = "scenarios/moe-1.8t-1024xh100.json";

int lines_with(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Simulate, HasTheKeysOfTheContract) {
  const Answer answer = run_program("simulate " + kBig + " --json");
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const Json j = Json::parse(answer.out);
  EXPECT_EQ(j.begin().key(), "schema");
  EXPECT_EQ(j["schema"], "stepcast/result/1");
  for (const char* key : {"name", "scenario", "step_time_s", "step_time_interval_s", "tokens_per_s",
                          "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "hfu", "fits", "memory",
                          "breakdown_s", "traffic_bytes", "warnings", "provenance", "run"})
    EXPECT_TRUE(j.contains(key)) << key;
  double sum = 0;
  for (const char* key : {"gemm", "attention", "memory_bound", "tp", "cp", "ep", "pp", "dp", "bubble",
                          "imbalance", "host", "optimizer", "jitter", "other"})
    sum += j["breakdown_s"].at(key).get<double>();
  EXPECT_NEAR(sum, j["step_time_s"].get<double>(), 1e-9);
  EXPECT_EQ(j["memory"]["stages"].size(), j["scenario"]["layout"]["pp"].get<std::size_t>());
  EXPECT_TRUE(j["scenario"]["model"].is_object());
}

TEST(Simulate, ResolvedScenarioRunsAgainToTheSameBytes) {
  Json first = Json::parse(run_program("simulate " + kBig + " --json").out);
  const std::string file = write_temporary("resolved.json", first["scenario"].dump());
  Json second = Json::parse(run_program("simulate " + file + " --json", "/").out);
  first.erase("run");
  second.erase("run");
  first["provenance"].erase("assumptions");  // the first says which defaults it chose
  second["provenance"].erase("assumptions");
  EXPECT_EQ(first.dump(), second.dump());
}

TEST(Simulate, TooLargeIsAnAnswer) {
  const Answer answer = run_program("simulate scenarios/moe-1.8t-64xh100.json");
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_NE(answer.out.find("DOES NOT FIT"), std::string::npos);
  EXPECT_NE(answer.out.find("what would make it fit"), std::string::npos);
  EXPECT_EQ(Json::parse(run_program("simulate scenarios/moe-1.8t-64xh100.json --json").out)["fits"], false);
}

TEST(Simulate, ShippedScenariosAnswer) {
  for (const char* name : {"moe-1.8t-1024xh100-bf16", "search-moe-1.8t-1024xh100", "deepseek-v3-2048xh800",
                           "host-moe-tiny", "mixtral-8x22b-128xh100", "llama-3.1-405b-1024xh100"}) {
    const Answer answer = run_program(std::string("simulate scenarios/") + name + ".json --json");
    EXPECT_EQ(answer.exit_code, 0) << name << ": " << answer.err;
    Json document = Json::parse(answer.out);
    document["scenario"].erase("free");                                  // where null has a meaning
    EXPECT_EQ(document.dump().find("null"), std::string::npos) << name;  // what a NaN is printed as
  }
}

TEST(Simulate, SetReachesIntoAModelGivenByPath) {
  const Json j = Json::parse(run_program("simulate " + kBig + " --json --set /model/vocab=50000").out);
  EXPECT_EQ(j["scenario"]["model"]["vocab"], 50000);
}

// The question a machine asks: one step of its own scenario takes less than a second.
TEST(Simulate, AnswersAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  run_program("simulate " + kBig);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
            20);  // hang, not speed
}

struct Bad {
  const char* name;
  std::string arguments;
  std::vector<std::string> says;  // each must be in stderr
};

// GoogleTest looks for this name.
void PrintTo(const Bad& bad, std::ostream* out) {  // NOLINT(readability-identifier-naming)
  *out << bad.name;
}

class BadInput : public testing::TestWithParam<Bad> {};

TEST_P(BadInput, IsRefusedWithReason) {
  const Answer answer = run_program(GetParam().arguments);
  EXPECT_EQ(answer.exit_code, 2) << answer.out << answer.err;
  EXPECT_TRUE(answer.out.empty()) << answer.out;
  for (const std::string& part : GetParam().says)
    EXPECT_NE(answer.err.find(part), std::string::npos) << answer.err;
  EXPECT_EQ(answer.err.find("internal"), std::string::npos) << answer.err;
}

std::string fixture(const char* name, const std::string& text) { return write_temporary(name, text); }

INSTANTIATE_TEST_SUITE_P(
    Every, BadInput,
    testing::Values(
        Bad{"no_command", "", {"error: "}}, Bad{"unknown_command", "simulat x", {"error: "}},
        Bad{"no_scenario", "simulate", {"error: "}},
        Bad{"unknown_option", "simulate " + kBig + " --bogus", {"--bogus"}},
        Bad{"missing_file", "simulate nowhere.json", {"nowhere.json: no such file"}},
        Bad{"folder", "simulate scenarios", {"is a directory"}},
        Bad{"broken", "simulate " + fixture("broken.json", "{\"a\": [1,}"), {"not JSON at line 1, column"}},
        Bad{"empty", "simulate " + fixture("empty.json", ""), {"empty.json: "}},
        Bad{"not_an_object", "simulate " + fixture("list.json", "[1]"), {"an object"}},
        Bad{"binary", "simulate " + fixture("binary.json", std::string("\xff\xfe\0\x01", 4)), {"not JSON"}},
        Bad{"twice", "simulate " + fixture("twice.json", "{\"a\":1,\"a\":2}"), {"given twice"}},
        Bad{"deep", "simulate " + fixture("deep.json", std::string(100000, '[')), {"deep.json: "}},
        Bad{"all_at_once",
            "simulate " + fixture("none.json", "{}"),
            {"/model: missing", "/cluster: missing", "/batch: missing"}},
        Bad{"unknown_key",
            "simulate " + kBig + " --set /layout/tpp=3",
            {"/layout/tpp: unknown key", "did you mean \"tp\""}},
        Bad{"wrong_type",
            "simulate " + kBig + " --set '/layout/tp=\"8\"'",
            {"/layout/tp: \"8\"; an integer from 1"}},
        Bad{"fraction", "simulate " + kBig + " --set /layout/tp=1.5", {"/layout/tp: 1.5"}},
        Bad{"zero", "simulate " + kBig + " --set /layout/ep=0", {"/layout/ep: 0"}},
        Bad{"negative", "simulate " + kBig + " --set /batch/seq_len=-1", {"/batch/seq_len: -1"}},
        Bad{"huge", "simulate " + kBig + " --set /cluster/gpus=1e300", {"/cluster/gpus: 1e+300"}},
        Bad{"overflowing",
            "simulate " + kBig + " --set /batch/global=99999999999999999999",
            {"/batch/global"}},
        Bad{"endless_model", "simulate " + kBig + " --set /model/layers=1000000000", {"/layers: 1000000000"}},
        Bad{"endless_batch", "simulate " + kBig + " --set /batch/global=16777216", {"tasks in a step"}},
        Bad{"bad_utf8", "simulate " + kBig + " --set $'/layout/schedule=\\xff\\xfe'", {"/layout/schedule"}},
        Bad{"bad_utf8_in_hf",
            "simulate " +
                fixture("hf.json",
                        R"({"model": {"model_type": "llama"}, "cluster": {"topology": "dgx-h100", "gpus": 8},
             "batch": {"seq_len": 128, "global": 8}})") +
                " --set $'/model/num_hidden_layers=a\xff'",
            {"num_hidden_layers"}},
        Bad{"no_pointer", "simulate " + kBig + " --set layout.tp=3", {"--set", "/pointer=value"}},
        Bad{"no_topology", "simulate " + kBig + " --set /cluster/topology=dgx-h1000", {"dgx-h100,"}},
        Bad{"no_profile", "simulate " + kBig + " --set /calibration=h1000", {"h100-sxm"}},
        Bad{"no_model", "simulate " + kBig + " --set /model=nothing.json", {"/model: "}},
        Bad{"world",
            "simulate " + kBig + " --set /layout/tp=3",
            {"(rule 1)", "1024 GPUs", "hint: nearest legal layouts: tp 4 (dp 16); tp 2 (dp 32);"}},
        Bad{"experts", "simulate " + kBig + " --set /layout/ep=48", {"rule"}},
        Bad{"batch", "simulate " + kBig + " --set /batch/global=2047", {"(rule 11)"}},
        Bad{"no_sp_with_moe", "simulate " + kBig + " --set /layout/sequence_parallel=false", {"(rule 8)"}},
        Bad{"stages", "simulate " + kBig + " --set '/layout/stages=Et|tL'", {"/layout/stages"}},
        Bad{"dp", "simulate " + kBig + " --set /layout/dp=5", {"/layout/dp: 5"}},
        Bad{"recipe_of_blackwell", "simulate " + kBig + " --set /precision/recipe=mxfp8", {"Blackwell only"}},
        Bad{"recipe_fp4", "simulate " + kBig + " --set /precision/recipe=nvfp4", {"SM100", "nvfp4-weights"}},
        Bad{"schedule_to_come",
            "simulate " + kBig + " --set /layout/vpp=1 --set /layout/schedule=zb-h1",
            {"not simulated yet"}},
        Bad{"validate_scenario", "validate " + kBig, {"/runs: missing"}},
        Bad{"validate_nothing", "validate", {"error: "}},
        Bad{"validate_missing", "validate nowhere.json", {"no such file"}}),
    [](const testing::TestParamInfo<Bad>& info) { return info.param.name; });

TEST(BadInput, EveryProblemIsListed) {
  const Answer answer =
      run_program("simulate " + kBig +
                  " --set /layout/tpp=3 --set /batch/seq_len=-4 --set /layout/ep=0 --set /cluster/gpus=0");
  EXPECT_EQ(answer.exit_code, 2);
  EXPECT_EQ(lines_with(answer.err, "error: "), 4) << answer.err;
}

TEST(Help, ShowsAnExample) {
  for (const char* command :
       {"simulate", "validate", "inspect model", "inspect layout", "import hf", "init"}) {
    const Answer answer = run_program(std::string(command) + " --help");
    EXPECT_EQ(answer.exit_code, 0) << command;
    EXPECT_NE(answer.out.find("xample"), std::string::npos) << command;
  }
}

TEST(Validate, SameBytesForAnyThreadCount) {
  const std::string file = "scenarios/published/simumax-v1-2-b200-benchmark-megatron-lm.json";
  const std::string one = run_program("validate " + file + " --json --threads 1").out;
  EXPECT_FALSE(one.empty());
  EXPECT_EQ(one, run_program("validate " + file + " --json --threads 2").out);
  EXPECT_EQ(one, run_program("validate " + file + " --json --threads 7").out);
}

TEST(Validate, BoundSetsTheExitCode) {
  const std::string command =
      "validate scenarios/published/simumax-v1-2-b200-benchmark-megatron-lm.json --max-mean-error ";
  EXPECT_EQ(run_program(command + "10").exit_code, 0);
  EXPECT_EQ(run_program(command + "0.0001").exit_code, 1);
}

}  // namespace
}  // namespace stepcast
