// `import megatron` and `export megatron` as their users meet them.
#include <gtest/gtest.h>

#include <string>

#include "base/json.h"
#include "support/run_program.h"

namespace stepcast {
namespace {

using test::Answer;
using test::run_program;
using test::write_temporary;

const std::string kDeepSeek = "tests/data/megatron/deepseek_v3.yaml";
const std::string kMixtral = "tests/data/megatron/mixtral.sh";

Json document(const Answer& answer) {
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  return answer.exit_code == 0 ? Json::parse(answer.out) : Json();
}

TEST(ImportMegatron, HasTheKeysOfTheContract) {
  const Json j =
      document(run_program("import megatron " + kDeepSeek + " --gpus 1024 --topology dgx-h100 --json"));
  EXPECT_EQ(j.begin().key(), "schema");
  EXPECT_EQ(j["schema"], "stepcast/import/1");
  EXPECT_EQ(j["kind"], "megatron");
  EXPECT_EQ(j["document"]["schema"], "stepcast/scenario/1");
  EXPECT_EQ(j["document"]["cluster"]["topology"], "dgx-h100");
  EXPECT_EQ(j["document"]["cluster"]["gpus"], 1024);
  EXPECT_EQ(j["document"]["layout"]["stages"], "Et|(tt|)*30mL");
  EXPECT_EQ(j["document"]["model"]["moe"]["dense_layers"], 3);
  EXPECT_EQ(j["document"]["model"]["vocab"], 129280);
  bool listed = false;
  for (const Json& entry : j["ignored"]) listed = listed || entry["what"] == "--a-flag-of-the-future 7";
  EXPECT_TRUE(listed);
}

TEST(ImportMegatron, TheScenarioRunsAndExportsToTheSameAgain) {
  const Answer first =
      run_program("import megatron " + kDeepSeek + " --gpus 1024 --topology dgx-h100 --json");
  const Json scenario = document(first)["document"];
  const std::string file = write_temporary("imported.json", scenario.dump());
  EXPECT_NE(document(run_program("simulate " + file + " --json"))["step_time_s"], 0);
  const std::string line = write_temporary("launch.sh", run_program("export megatron " + file).out);
  Json again = document(run_program("import megatron " + line + " --topology dgx-h100 --json"))["document"];
  again["name"] = scenario["name"];
  again["model"]["name"] = scenario["model"]["name"];
  EXPECT_EQ(again, scenario);
}

TEST(ImportMegatron, ListsAndKeepsVariables) {
  const Json j = document(run_program("import megatron " + kMixtral + " --json"));
  EXPECT_EQ(j["unfilled"], Json::array({"${GBS} (--global-batch-size)"}));
  EXPECT_EQ(j["document"]["batch"]["global"], "${GBS}");
  EXPECT_EQ(document(run_program("import megatron " + kMixtral +
                                 " --env GBS=128 --json"))["document"]["batch"]["global"],
            128);
}

TEST(ImportMegatron, IsReadable) {
  const Answer answer = run_program("import megatron " + kMixtral);
  EXPECT_EQ(answer.exit_code, 0);
  for (const char* part :
       {"Understood", "--num-layers 32", "without effect", "nobody filled in", "Assumed", "Scenario"})
    EXPECT_NE(answer.out.find(part), std::string::npos) << part;
}

TEST(ImportMegatron, RefusesWhatMegatronRefuses) {
  const Answer answer = run_program("import megatron " + kDeepSeek + " --gpus 1000 --json");
  EXPECT_EQ(answer.exit_code, 2);
  const Json read = Json::parse(answer.out);  // there to be mended
  EXPECT_EQ(read["document"]["layout"]["stages"], "Et|(tt|)*30mL");
  EXPECT_FALSE(read["refused"].empty());
  EXPECT_NE(answer.err.find("(rule 1)"), std::string::npos) << answer.err;
  EXPECT_NE(answer.err.find("--pipeline-model-parallel-size"), std::string::npos) << answer.err;
}

TEST(ImportMegatron, BadInputIsNamed) {
  for (const std::string& text :
       {std::string(""), std::string("num_layers: [1, {a: 2}]\n"), std::string("--num-layers x")}) {
    const Answer answer = run_program("import megatron " + write_temporary("bad.txt", text));
    EXPECT_EQ(answer.exit_code, 2) << text;
    EXPECT_NE(answer.err.find("error: "), std::string::npos);
    EXPECT_TRUE(answer.out.empty());
  }
  EXPECT_EQ(run_program("import megatron nowhere.yaml").exit_code, 2);
  EXPECT_EQ(run_program("import megatron " + kDeepSeek + " --gpus 0").exit_code, 2);
  EXPECT_EQ(run_program("import megatron " + kDeepSeek + " --topology nowhere").exit_code, 2);
  EXPECT_EQ(run_program("import megatron " + kDeepSeek + " --env nowhere").exit_code, 2);
}

TEST(ExportMegatron, PrintsALineToPaste) {
  const Answer answer = run_program("export megatron scenarios/moe-1.8t-1024xh100.json");
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  for (const char* part : {"torchrun --nnodes 128 --nproc-per-node 8 pretrain_gpt.py", "--num-experts 128",
                           "--fp8-recipe blockwise", "--use-distributed-optimizer", "--moe-grouped-gemm"})
    EXPECT_NE(answer.out.find(part), std::string::npos) << part << "\n" << answer.out;
  const Json j = document(run_program("export megatron scenarios/moe-1.8t-1024xh100.json --json"));
  EXPECT_EQ(j["launch"], answer.out);
  EXPECT_EQ(j["arguments"]["--num-experts"], "128");
  EXPECT_EQ(j["arguments"]["--bf16"], true);
}

TEST(ExportMegatron, RefusesWhatMegatronHasNot) {
  const Answer answer =
      run_program("export megatron scenarios/moe-1.8t-1024xh100.json --set /sharding/engine=deepspeed");
  EXPECT_EQ(answer.exit_code, 2);
  EXPECT_NE(answer.err.find("/sharding/engine"), std::string::npos) << answer.err;
}

}  // namespace
}  // namespace stepcast
