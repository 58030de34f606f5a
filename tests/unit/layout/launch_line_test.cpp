#include "layout/launch_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "base/problem.h"
#include "layout/megatron_flags.h"

namespace stepcast {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

namespace fs = std::filesystem;

const fs::path kData = fs::path(STEPCAST_SOURCE_DIR) / "tests" / "data" / "megatron";

LaunchLine parse(const std::string& text, const Environment& environment = {}) {
  return parse_launch_line(text, "line", environment);
}

MegatronArguments arguments(const std::string& text) { return parse(text).arguments; }

// ---- the table

TEST(MegatronFlags, AreFoundByFlagFieldAndOldName) {
  for (const Flag& flag : megatron_flags()) {
    EXPECT_EQ(find_flag(flag.name), &flag) << flag.name;
    EXPECT_EQ(find_flag(flag.field), &flag) << flag.field;
  }
  EXPECT_EQ(find_flag("--moe_router_padding_for_fp8"), find_flag("moe-router-padding-for-quantization"));
  EXPECT_EQ(find_flag("no-such-flag"), nullptr);
  EXPECT_EQ(find_flag(""), nullptr);
}

TEST(MegatronFlags, NamesAreTakenOnce) {
  std::vector<std::string> names;
  for (const Flag& flag : megatron_flags()) names.emplace_back(flag.name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(MegatronFlags, DefaultsAreNotWrittenButForSizes) {
  std::vector<std::string> flags;
  for (const FlagWords& flag : launch_flags(MegatronArguments{})) flags.push_back(flag.flag);
  EXPECT_THAT(flags,
              ElementsAre("--micro-batch-size", "--tensor-model-parallel-size", "--context-parallel-size",
                          "--pipeline-model-parallel-size", "--ckpt-format"));
}

// Some value that is not the default, for every kind of field.
struct AnyValue {
  std::mt19937& random;
  MegatronArguments& a;
  void operator()(std::int64_t MegatronArguments::*m) const {
    a.*m = 1000 + static_cast<std::int64_t>(random() % 1000);
  }
  void operator()(std::optional<std::int64_t> MegatronArguments::*m) const {
    a.*m = static_cast<std::int64_t>(random() % 1000);
  }
  void operator()(double MegatronArguments::*m) const {
    a.*m = 0.1 + static_cast<double>(random() % 800) / 1000;
  }
  void operator()(std::optional<double> MegatronArguments::*m) const {
    a.*m = static_cast<double>(random() % 1000) / 7;
  }
  void operator()(bool MegatronArguments::*m) const { a.*m = !(a.*m); }
  void operator()(std::string MegatronArguments::*m) const {
    a.*m = "it's [a]*" + std::to_string(random() % 100);
  }
  void operator()(std::vector<std::string> MegatronArguments::*m) const {
    a.*m = {"one", "two" + std::to_string(random() % 9)};
  }
  void operator()(std::vector<std::int64_t> MegatronArguments::*m) const {
    a.*m = {static_cast<std::int64_t>(random() % 9), 2};
  }
};

TEST(MegatronFlags, EveryFieldSurvivesAShellLineAndYaml) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    MegatronArguments a;
    a.world_size = 96;
    a.cuda_device_max_connections = 8;
    for (const Flag& flag : megatron_flags())
      if (random() % 2 == 0) std::visit(AnyValue{random, a}, flag.member);
    EXPECT_EQ(arguments(shell_line(a, 8)), a);
    MegatronArguments from_yaml = arguments(yaml_file(a));
    from_yaml.world_size = a.world_size;  // YAML does not say
    EXPECT_EQ(from_yaml, a);
  }
}

// ---- shell

TEST(LaunchLine, ReadsAShellLine) {
  const MegatronArguments a = arguments(
      "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nnodes=4 --nproc_per_node 8 pretrain_gpt.py --num-layers 32 "
      "--hidden-size=4096 --swiglu --disable-bias-linear --recompute-modules mlp moe_act --bf16");
  EXPECT_EQ(a.world_size, 32);
  EXPECT_EQ(a.cuda_device_max_connections, 1);
  EXPECT_EQ(a.num_layers, 32);
  EXPECT_EQ(a.hidden_size, 4096);
  EXPECT_TRUE(a.swiglu && a.bf16);
  EXPECT_FALSE(a.add_bias_linear);
  EXPECT_THAT(a.recompute_modules, ElementsAre("mlp", "moe_act"));
}

TEST(LaunchLine, ReadsAScriptWithArraysVariablesAndComments) {
  const LaunchLine line = read_launch_line(kData / "mixtral.sh", {{"GBS", "256"}});
  const MegatronArguments& a = line.arguments;
  EXPECT_EQ(a.world_size, 64);
  EXPECT_EQ(a.tensor_model_parallel_size, 2);  // ${TP:-2}
  EXPECT_EQ(a.expert_model_parallel_size, 4);
  EXPECT_EQ(a.ffn_hidden_size, 14336);
  EXPECT_EQ(a.num_experts, 8);
  EXPECT_EQ(a.moe_token_dispatcher_type, "alltoall");
  EXPECT_EQ(a.global_batch_size, 256);
  EXPECT_EQ(virtual_stages(a), 8);
  EXPECT_EQ(a.cuda_device_max_connections, 1);
  EXPECT_THAT(line.unfilled, IsEmpty());
  EXPECT_THAT(line.unrecognised, IsEmpty());
  EXPECT_THAT(line.without_effect, ElementsAre("--lr 1e-4"));
}

TEST(LaunchLine, TheEnvironmentComesBeforeTheFile) {
  EXPECT_EQ(read_launch_line(kData / "mixtral.sh", {{"TP", "4"}, {"GBS", "8"}}).arguments.tp(), 4);
}

TEST(LaunchLine, KeepsAndListsWhatNobodyFillsIn) {
  const LaunchLine line = read_launch_line(kData / "mixtral.sh");
  EXPECT_THAT(line.unfilled, ElementsAre("${GBS} (--global-batch-size)"));
  EXPECT_EQ(line.arguments.unfilled.at("global-batch-size"), "${GBS}");
  EXPECT_EQ(arguments(shell_line(line.arguments, 8)), line.arguments);
  EXPECT_EQ(arguments(yaml_file(line.arguments)).unfilled, line.arguments.unfilled);
}

TEST(LaunchLine, NeverRunsACommand) {
  const LaunchLine line =
      parse("pretrain_gpt.py --num-layers $(touch /tmp/stepcast-ran && echo 4) --hidden-size 64");
  EXPECT_EQ(line.arguments.unfilled.count("num-layers"), 1U);
  EXPECT_EQ(line.arguments.hidden_size, 64);
  EXPECT_FALSE(fs::exists("/tmp/stepcast-ran"));
}

TEST(LaunchLine, VariablesThatNameThemselvesEnd) {
  EXPECT_THAT(parse("A=$B\nB=$A\npretrain_gpt.py --num-layers $A --bf16").unfilled, testing::Not(IsEmpty()));
}

// ---- YAML

TEST(LaunchLine, ReadsYaml) {
  const LaunchLine line = read_launch_line(kData / "deepseek_v3.yaml");
  const MegatronArguments& a = line.arguments;
  EXPECT_EQ(a.num_layers, 61);
  EXPECT_EQ(a.moe_layer_freq, "([0]*3+[1]*58)");
  EXPECT_EQ(a.pipeline_model_parallel_layout, "Et|(tt|)*30mL");
  EXPECT_EQ(virtual_stages(a), 4);
  EXPECT_THAT(a.recompute_modules, ElementsAre("mla_up_proj", "mlp"));
  EXPECT_EQ(a.cuda_device_max_connections, 32);
  EXPECT_EQ(a.fp8_recipe, "blockwise");
  EXPECT_THAT(line.unrecognised, ElementsAre("--a-flag-of-the-future 7"));
  EXPECT_THAT(line.without_effect, Contains(HasSubstr("--lr")));
  EXPECT_THAT(line.without_effect, testing::Not(Contains(HasSubstr("num-zeros"))));  // false: not given
}

TEST(LaunchLine, YamlMayHoldFlagsAlone) {
  EXPECT_EQ(arguments("--num-layers: 4\n--bf16: true\n").num_layers, 4);
  EXPECT_EQ(arguments("num_layers: 4\nbf16: true\n").num_layers, 4);
}

TEST(LaunchLine, FalseIsNotGivenAndQuotesAreTakenOff) {
  const MegatronArguments a = arguments(
      "ARGS:\n  num_layers: 4\n  swiglu: false\n  decoder_first_pipeline_num_layers: false\n"
      "  moe_layer_freq: \"'([0]*1+[1]*3)'\"\n  overlap_p2p_communication: false\n");
  EXPECT_FALSE(a.swiglu);
  EXPECT_FALSE(a.decoder_first_pipeline_num_layers);
  EXPECT_EQ(a.moe_layer_freq, "([0]*1+[1]*3)");
  EXPECT_FALSE(a.overlap_p2p_communication);
}

// ---- the dump of a log

TEST(LaunchLine, ReadsTheDumpOfALog) {
  const LaunchLine line = read_launch_line(kData / "dump.log");
  const MegatronArguments& a = line.arguments;
  EXPECT_EQ(a.world_size, 64);
  EXPECT_EQ(a.num_layers, 16);
  EXPECT_FALSE(a.add_bias_linear);
  EXPECT_EQ(a.attention_backend, "auto");
  EXPECT_EQ(a.exp_avg_dtype, "fp32");
  EXPECT_EQ(a.fp8, "");
  EXPECT_EQ(virtual_stages(a), 2);
  EXPECT_EQ(a.moe_layer_freq, "[0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]");
  EXPECT_EQ(a.padded_vocab_size, 32000);
  EXPECT_TRUE(a.overlap_p2p_communication);
  EXPECT_EQ(line.dumped, 1U);  // some_other_option
  EXPECT_EQ(arguments(shell_line(a, 8)), a);
}

// ---- what is wrong

TEST(LaunchLine, NamesEveryBadValueWithItsPlace) {
  try {
    parse("pretrain_gpt.py --num-layers many \\\n --hidden-size \\\n --swiglu 3 --bf16");
    FAIL();
  } catch (const InputError& error) {
    ASSERT_EQ(error.problems().size(), 3U);
    EXPECT_EQ(error.problems()[0].pointer, "line 1");
    EXPECT_THAT(error.problems()[0].allowed, HasSubstr("a whole number"));
    EXPECT_EQ(error.problems()[1].pointer, "line 2");
  }
}

TEST(LaunchLine, RefusesWhatHoldsNoArguments) {
  for (const char* text : {"", "\n\n", "hello", "{", "a: [", "key: value", "--no-such-flag 3", "\"", "'",
                           "${", "$(", "\\", "ARGS: 3", "- 1\n- 2\n", "--num-layers: {a: 1}\n"})
    EXPECT_THROW(parse(text), InputError) << text;
  EXPECT_THROW(read_launch_line(kData / "none.yaml"), InputError);
  EXPECT_THROW(read_launch_line(kData), InputError);
}

TEST(LaunchLine, SurvivesBrokenText) {
  std::mt19937 random(7);
  const std::string letters = "-- =$(){}[]'\"\\\n:|*#;T num-layers swiglu ARGS .... 3\xff";
  for (int round = 0; round < 3000; ++round) {
    std::string text = round % 3 == 0 ? "ARGS:\n" : "";
    for (std::size_t i = random() % 60; i > 0; --i) text += letters[random() % letters.size()];
    try {
      const LaunchLine line = parse(text);
      shell_line(line.arguments, 8);
    } catch (const InputError&) {
      // refused: fine
    }
  }
}

TEST(Environment, TakesAssignmentsAndFiles) {
  Environment environment;
  add_environment("A=1=2", environment);
  EXPECT_EQ(environment.at("A"), "1=2");
  add_environment((kData / "mixtral.sh").string(), environment);
  EXPECT_EQ(environment.at("EP"), "4");
  EXPECT_THROW(add_environment("no such file", environment), InputError);
}

// Every published argument file, as far as it is filled in: the same arguments come back.
TEST(LaunchLine, PublishedFilesComeBackTheSame) {
  const char* folder = std::getenv("STEPCAST_DATA");
  if (folder == nullptr) GTEST_SKIP() << "STEPCAST_DATA is not set";
  int files = 0;
  for (const char* name : {"megatron_args", "megatron_golden"}) {
    for (const auto& entry : fs::directory_iterator(fs::path(folder) / "inputs" / name)) {
      if (entry.path().extension() != ".yaml") continue;
      const MegatronArguments a = read_launch_line(entry.path()).arguments;
      EXPECT_EQ(arguments(shell_line(a, 8)), a) << entry.path();
      EXPECT_EQ(arguments(yaml_file(a)), a) << entry.path();
      ++files;
    }
  }
  EXPECT_GE(files, 20);
}

}  // namespace
}  // namespace stepcast
