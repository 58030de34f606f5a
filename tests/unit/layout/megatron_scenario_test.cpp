#include "layout/megatron_scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/json.h"
#include "layout/launch_line.h"
#include "layout/scenario.h"
#include "layout/stage_split.h"

namespace stepcast {
namespace {

using testing::Contains;
using testing::HasSubstr;

namespace fs = std::filesystem;

const fs::path kSource = STEPCAST_SOURCE_DIR;

Scenario read(const Json& document) { return read_scenario(document, "test", "", kSource / "scenarios"); }

MegatronArguments launch(const Scenario& scenario) {
  std::vector<Problem> problems;
  MegatronArguments a = launch_arguments(scenario, problems);
  throw_if_any(problems);
  return a;
}

// The scenario that comes back from the launch line of one.
Scenario there_and_back(const Scenario& scenario) {
  const std::string text = shell_line(launch(scenario), scenario.cluster.gpus_per_node);
  const MegatronArguments a = parse_launch_line(text, "line").arguments;
  Json document = scenario_of(a, "line", scenario.cluster.topology).document;
  const Json& cluster = (*scenario.resolved)["cluster"];
  document["cluster"] = cluster;
  return read(document);
}

// The split over stages said in one way.
MegatronArguments with_layout_string(const Scenario& scenario) {
  MegatronArguments a = launch(scenario);
  a.pipeline_model_parallel_layout = layout_string(split_of(scenario));
  a.num_virtual_stages_per_pipeline_rank.reset();
  a.account_for_embedding_in_pipeline_split = a.account_for_loss_in_pipeline_split = false;
  return a;
}

// What the rules, memory and time see of both. Flash versions and the gathering of parameters at ZeRO 0 have no
// flag of their own.
void expect_same(const Scenario& a, const Scenario& b) {
  const MegatronArguments x = with_layout_string(a);
  const MegatronArguments y = with_layout_string(b);
  EXPECT_TRUE(x == y) << a.name << "\n" << shell_line(x, 8) << shell_line(y, 8);
  EXPECT_EQ(a.model.moe, b.model.moe) << a.name;
  EXPECT_EQ(a.model.attention, b.model.attention) << a.name;
  EXPECT_EQ(layout_string(split_of(a)), layout_string(split_of(b))) << a.name;
  EXPECT_EQ(a.layout.vpp, b.layout.vpp) << a.name;
  EXPECT_EQ(a.layout.schedule, b.layout.schedule) << a.name;
  EXPECT_EQ(a.precision.recipe, b.precision.recipe) << a.name;
  EXPECT_EQ(a.optimizer.grad_bytes, b.optimizer.grad_bytes) << a.name;
  EXPECT_EQ(a.optimizer.state_bytes, b.optimizer.state_bytes) << a.name;
  EXPECT_EQ(a.sharding.zero_stage, b.sharding.zero_stage) << a.name;
}

// What Megatron's flags cannot say of a model: the width of OLMoE's norms, ALiBi.
bool has_flags(const Scenario& s) {
  return s.sharding.engine == Engine::kMegatron && s.model.attention.qk_norm != QkNorm::kProjection &&
         s.model.position != Position::kAlibi && s.model.norms_per_layer == 2 && !s.sharding.node_scope;
}

TEST(MegatronScenario, PublishedRunsComeBackFromTheirLaunchLines) {
  int runs = 0;
  for (const auto& entry : fs::directory_iterator(kSource / "scenarios" / "published")) {
    const Json file = load_json(entry.path());
    for (const Json& record : file["runs"]) {
      std::optional<Scenario> scenario;
      try {
        scenario = read(record["scenario"]);
      } catch (const InputError&) {
        continue;  // tests/validation counts these
      }
      if (!has_flags(*scenario)) continue;
      expect_same(*scenario, there_and_back(*scenario));
      if (testing::Test::HasFailure()) return;
      ++runs;
    }
  }
  EXPECT_GT(runs, 800);
}

TEST(MegatronScenario, ShippedModelsComeBack) {
  for (const auto& entry : fs::directory_iterator(kSource / "scenarios" / "models")) {
    const Json scenario = {{"model", entry.path().string()},
                           {"cluster", {{"topology", "dgx-h100"}, {"gpus", 8}}},
                           {"batch", {{"seq_len", 2048}, {"global", 64}}},
                           {"layout", {{"etp", 1}}}};
    const Scenario s = read(scenario);
    if (!has_flags(s)) continue;
    const Scenario back = there_and_back(s);
    expect_same(s, back);
    EXPECT_EQ(s.model.layers, back.model.layers) << entry.path();
    EXPECT_EQ(s.model.mtp_layers, back.model.mtp_layers) << entry.path();
    EXPECT_EQ(s.model.position, back.model.position) << entry.path();
    EXPECT_EQ(s.model.norm, back.model.norm) << entry.path();
  }
}

Json import(const std::string& text, const std::string& topology = "dgx-h100") {
  return scenario_of(parse_launch_line(text, "line").arguments, "line", topology).document;
}

const std::string kDense =
    "torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 "
    "--num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --vocab-size 32000 "
    "--global-batch-size 8 --bf16 ";

TEST(MegatronScenario, DefaultsAreMegatrons) {
  const Json d = import(kDense);
  EXPECT_EQ(d["model"]["ffn_hidden"], 4096);
  EXPECT_EQ(d["model"]["norm"], "layernorm");
  EXPECT_EQ(d["model"]["position"], "learned");
  EXPECT_EQ(d["model"]["bias"], true);
  EXPECT_EQ(d["model"]["tied_embeddings"], true);
  EXPECT_EQ(d["model"]["attention"]["kind"], "mha");
  EXPECT_EQ(d["sharding"]["zero_stage"], 0);
  EXPECT_EQ(d["overlap"]["grad_reduce"], false);
  EXPECT_EQ(d["cluster"]["gpus"], 8);
  read(d);
}

// 8 h / 3 = 2730.7, down to a multiple of 64 (arguments.py: int((4 h 2 / 3) / 64) 64).
TEST(MegatronScenario, SwiGluHasTwoThirdsOfTheWidth) {
  EXPECT_EQ(import(kDense + "--swiglu")["model"]["ffn_hidden"], 2688);
}

TEST(MegatronScenario, SplitsAreSaidAsLayoutStrings) {
  const auto stages = [](const std::string& options) {
    const Json d = import(kDense + "--pipeline-model-parallel-size 4 " + options);
    return d["layout"].value("stages", std::string("even"));
  };
  EXPECT_EQ(stages(""), "even");
  EXPECT_EQ(stages("--decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 1"),
            "Et|t*3|t*3|tL");
  EXPECT_EQ(stages("--num-layers-per-virtual-pipeline-stage 1"), "even");
  EXPECT_EQ(stages("--pipeline-model-parallel-layout 'Ettt|t|t|tttL'"), "Ettt|t|t|tttL");
  EXPECT_EQ(import(kDense +
                   "--num-layers 10 --pipeline-model-parallel-size 4 "
                   "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split")["layout"]
                .contains("stages"),
            false);  // what a scenario does by itself
}

TEST(MegatronScenario, LayersWithExperts) {
  const auto moe = [](const std::string& frequency) {
    return import(kDense + "--num-experts 8 --moe-layer-freq '" + frequency + "'")["model"]["moe"];
  };
  EXPECT_EQ(moe("2")["period"], 2);
  EXPECT_EQ(moe("2")["first"], 0);
  EXPECT_EQ(moe("([0]*3+[1]*5)")["dense_layers"], 3);
  EXPECT_EQ(moe("[0,1]*4")["first"], 1);
  EXPECT_THROW(moe("[1,1,0,1,0,0,0,0]"), InputError);
  EXPECT_THROW(moe("[1]*7"), InputError);
  EXPECT_THROW(moe("ones(8)"), InputError);
}

TEST(MegatronScenario, KeepsWhatIsUnfilled) {
  const Json d =
      import(kDense + "--tensor-model-parallel-size ${TP} --micro-batch-size $MBS --sequence-parallel");
  EXPECT_EQ(d["layout"]["tp"], "${TP}");
  EXPECT_EQ(d["batch"]["micro"], "$MBS");
  EXPECT_EQ(d["layout"]["sequence_parallel"], true);
}

TEST(MegatronScenario, SaysWhatItHadToAssume) {
  const std::string options =
      "pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --bf16 "
      "--num-experts 8 --moe-ffn-hidden-size 512 --seq-length 1024 --first-last-layers-bf16";
  const ImportedScenario import = scenario_of(parse_launch_line(options, "line").arguments, "line", "");
  for (const char* what :
       {"--gpus N", "--topology T", "vocabulary", "evenly loaded", "--first-last-layers-bf16"})
    EXPECT_THAT(import.notes, Contains(HasSubstr(what)));
  EXPECT_FALSE(import.document["model"].contains("vocab"));
  EXPECT_FALSE(import.document["cluster"].contains("gpus"));
}

TEST(MegatronScenario, KnowsTokenizers) {
  EXPECT_EQ(tokenizer_vocab("unsloth/DeepSeek-V3"), 129280);
  EXPECT_EQ(tokenizer_vocab("/data/Qwen/Qwen3-30B-A3B"), 151936);
  EXPECT_EQ(tokenizer_vocab("${DATA}/utils/nemotron_2_256k.model"), 256000);
  EXPECT_EQ(tokenizer_vocab("somebody/else"), 0);
  EXPECT_EQ(tokenizer_vocab(""), 0);
}

TEST(MegatronScenario, LaunchLinesAreRefusedForWhatMegatronHasNot) {
  const auto problems = [](const Json& patch) {
    Json scenario = {{"model", "llama-2-7b"},
                     {"cluster", {{"topology", "dgx-h100"}, {"gpus", 8}}},
                     {"batch", {{"seq_len", 2048}, {"global", 64}}}};
    scenario["model"] = (kSource / "scenarios" / "models" / "llama-2-7b.json").string();
    scenario.merge_patch(patch);
    std::vector<Problem> list;
    launch_arguments(read(scenario), list);
    return list;
  };
  EXPECT_TRUE(problems(Json::object()).empty());
  const auto first = [&](const Json& patch) { return problems(patch).at(0).pointer; };
  EXPECT_EQ(first({{"sharding", {{"engine", "deepspeed"}}}}), "/sharding/engine");
  EXPECT_EQ(first({{"precision", {{"recipe", "nvfp4-weights"}}}}), "/precision/recipe");
  EXPECT_EQ(first({{"layout", {{"pp", 2}, {"schedule", "gpipe"}}}}), "/layout/schedule");
}

}  // namespace
}  // namespace stepcast
