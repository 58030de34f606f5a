#include "model/hf_import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "model/parameters.h"
#include "unit/model/shipped_model.h"

namespace stepcast {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::model_of;
using ::testing::Not;
using testing::source_folder;
using ::testing::UnorderedElementsAre;

Json fixture(const std::string& name) {
  return load_json(source_folder() / "tests" / "data" / "hf" / (name + ".json"));
}

Model imported(const std::string& name) { return model_of(import_hf(fixture(name), name + ".json").model); }

// `config` with one key replaced; null removes it.
Json with(Json config, const std::string& key, const Json& value) {
  config[key] = value;
  if (value.is_null()) config.erase(key);
  return config;
}

std::vector<Problem> problems_of(const Json& config) {
  try {
    import_hf(config, "config.json");
  } catch (const InputError& error) {
    return error.problems();
  }
  return {};
}

std::vector<std::string> pointers_of(const Json& config) {
  std::vector<std::string> pointers;
  for (const Problem& problem : problems_of(config)) pointers.push_back(problem.pointer);
  return pointers;
}

TEST(HfImport, ReadsEveryModelType) {
  for (std::string type : supported_model_types()) {
    std::replace(type.begin(), type.end(), '-', '_');
    const HfImport import = import_hf(fixture(type), type + ".json");
    EXPECT_THAT(import.unrecognised, IsEmpty()) << type;
    const Model model = model_of(import.model);
    EXPECT_EQ(model.name, type);
    EXPECT_EQ(model.layers, 6) << type;
    EXPECT_EQ(model.hidden, 64) << type;
    EXPECT_EQ(model.vocab, 1000) << type;
    EXPECT_EQ(model.max_positions, 512) << type;
    EXPECT_EQ(model.attention.heads, 8) << type;
    EXPECT_EQ(model.tied_embeddings, type == "llama" || type == "grok_1") << type;
    EXPECT_FALSE(model.bias) << type;
  }
}

TEST(HfImport, ReadsDenseModels) {
  const Model llama = imported("llama");
  EXPECT_EQ(llama.ffn_hidden, 176);
  EXPECT_EQ(llama.attention.kv_heads, 2);
  EXPECT_EQ(llama.attention.head_dim, 8);
  EXPECT_FALSE(llama.moe);
  EXPECT_EQ(imported("mistral").attention.head_dim, 16);
  EXPECT_EQ(imported("mistral").attention.window, 128);
  EXPECT_TRUE(imported("qwen2").attention.qkv_bias);
  EXPECT_EQ(imported("qwen2").attention.window, 0);
  EXPECT_EQ(imported("qwen3").attention.qk_norm, QkNorm::kHead);
}

TEST(HfImport, ReadsLlamaBiases) {
  const Json both = with(with(fixture("llama"), "attention_bias", true), "mlp_bias", true);
  EXPECT_TRUE(model_of(import_hf(both, "x").model).bias);
  const Model attention = model_of(import_hf(with(fixture("llama"), "attention_bias", true), "x").model);
  EXPECT_TRUE(attention.attention.qkv_bias && attention.attention.out_bias && !attention.bias);
  EXPECT_THAT(pointers_of(with(fixture("llama"), "mlp_bias", true)), ElementsAre("/mlp_bias"));
}

TEST(HfImport, ReadsExpertsByTheKeysOfEachFamily) {
  struct Expected {
    const char* name;
    std::int64_t experts, top_k, ffn_hidden, shared, dense_layers, period, first;
  };
  const Expected cases[] = {
      {"mixtral", 8, 2, 96, 0, 0, 1, 0},       {"qwen2_moe", 12, 4, 24, 96, 3, 2, 1},
      {"qwen3_moe", 16, 4, 24, 0, 0, 1, 0},    {"deepseek_v2", 16, 4, 24, 48, 1, 1, 0},
      {"deepseek_v3", 16, 4, 24, 24, 3, 1, 0}, {"kimi_k2", 16, 4, 24, 24, 1, 1, 0},
      {"gpt_oss", 8, 4, 64, 0, 0, 1, 0},       {"glm4_moe", 16, 4, 24, 24, 1, 1, 0},
      {"olmoe", 16, 4, 32, 0, 0, 1, 0},        {"dbrx", 16, 4, 96, 0, 0, 1, 0},
      {"grok_1", 8, 2, 512, 0, 0, 1, 0},
  };
  for (const Expected& expected : cases) {
    const Model model = imported(expected.name);
    ASSERT_TRUE(model.moe) << expected.name;
    EXPECT_EQ(model.moe->experts, expected.experts) << expected.name;
    EXPECT_EQ(model.moe->top_k, expected.top_k) << expected.name;
    EXPECT_EQ(model.moe->ffn_hidden, expected.ffn_hidden) << expected.name;
    EXPECT_EQ(model.moe->shared_ffn_hidden, expected.shared) << expected.name;
    EXPECT_EQ(model.moe->dense_layers, expected.dense_layers) << expected.name;
    EXPECT_EQ(model.moe->period, expected.period) << expected.name;
    EXPECT_EQ(model.moe->first, expected.first) << expected.name;
  }
  EXPECT_TRUE(imported("qwen2_moe").moe->shared_gate);
  EXPECT_TRUE(imported("qwen2_moe").attention.qkv_bias);
  EXPECT_EQ(imported("qwen3_moe").attention.qk_norm, QkNorm::kHead);
  EXPECT_EQ(imported("olmoe").attention.qk_norm, QkNorm::kProjection);
  EXPECT_EQ(imported("grok_1").norms_per_layer, 4);
  EXPECT_EQ(imported("dbrx").attention.kv_heads, 2);
}

TEST(HfImport, ReadsLatentAttention) {
  const Attention lite = imported("deepseek_v2").attention;
  EXPECT_TRUE(lite.mla());
  EXPECT_EQ(lite.q_lora_rank, 0);
  EXPECT_EQ(lite.kv_heads, 8);
  const Model v3 = imported("deepseek_v3");
  EXPECT_EQ(v3.attention.q_lora_rank, 20);
  EXPECT_EQ(v3.attention.kv_lora_rank, 16);
  EXPECT_EQ(v3.attention.qk_dim(), 16);
  EXPECT_EQ(v3.attention.v_head_dim, 10);
  EXPECT_EQ(v3.ffn_hidden, 176);
  EXPECT_EQ(v3.mtp_layers, 1);
  EXPECT_TRUE(v3.moe->correction_bias);
  EXPECT_EQ(v3.moe->groups, 4);
  EXPECT_EQ(v3.moe->group_top_k, 2);
  EXPECT_EQ(imported("kimi_k2").moe->groups, 0);
  EXPECT_EQ(imported("kimi_k2").mtp_layers, 0);
  EXPECT_FALSE(imported("deepseek_v2").moe->correction_bias);
  EXPECT_EQ(imported("deepseek_v2").moe->groups, 0);
  EXPECT_THAT(pointers_of(with(fixture("deepseek_v3"), "attention_bias", true)),
              ElementsAre("/attention_bias"));
}

TEST(HfImport, ReadsGptOss) {
  const Model model = imported("gpt_oss");
  const Attention& a = model.attention;
  EXPECT_TRUE(a.qkv_bias && a.out_bias && a.sinks && model.moe->expert_bias && model.moe->router_bias);
  EXPECT_EQ(a.window, 128);
  EXPECT_EQ(a.window_period, 2);
  EXPECT_EQ(a.window_offset, 0);
  EXPECT_EQ(a.head_dim, 16);
  const Json by_default = with(fixture("gpt_oss"), "layer_types", nullptr);
  EXPECT_EQ(import_hf(by_default, "gpt_oss.json").model, import_hf(fixture("gpt_oss"), "gpt_oss.json").model);
  EXPECT_THAT(pointers_of(with(fixture("gpt_oss"), "experts_per_token", 3)),
              ElementsAre("/experts_per_token"));
  const Json last = Json::array({"full_attention", "full_attention", "sliding_attention", "full_attention",
                                 "full_attention", "sliding_attention"});
  const Model third = model_of(import_hf(with(fixture("gpt_oss"), "layer_types", last), "x").model);
  EXPECT_EQ(third.attention.window_period, 3);
  EXPECT_EQ(third.attention.window_offset, 2);
}

TEST(HfImport, ReadsQwensLayerPatterns) {
  Json config = with(fixture("qwen3_moe"), "mlp_only_layers", Json::array({0, 1}));
  EXPECT_EQ(model_of(import_hf(config, "x").model).moe->dense_layers, 2);
  config["mlp_only_layers"] = Json::array({3});
  EXPECT_THAT(pointers_of(config), ElementsAre("/mlp_only_layers"));
  config["mlp_only_layers"] = Json::array({0, 1, 2, 3, 4, 5});
  EXPECT_THAT(pointers_of(config), ElementsAre("/mlp_only_layers"));
  config["mlp_only_layers"] = Json::array({6});
  EXPECT_THAT(pointers_of(config), ElementsAre("/mlp_only_layers"));
  config = with(fixture("qwen2"), "use_sliding_window", true);
  EXPECT_EQ(model_of(import_hf(config, "x").model).attention.window, 0);  // from layer 6 of 6 on
  config["max_window_layers"] = 0;
  EXPECT_EQ(model_of(import_hf(config, "x").model).attention.window, 128);
  config["max_window_layers"] = 3;
  EXPECT_THAT(pointers_of(config), ElementsAre("/sliding_window"));
}

TEST(HfImport, TakesTheTextModelOfANestedConfig) {
  const HfImport import = import_hf(fixture("nested"), "nested.json");
  Json plain = import_hf(fixture("qwen3_moe"), "nested.json").model;
  EXPECT_EQ(import.model, plain);
  EXPECT_THAT(import.unrecognised,
              UnorderedElementsAre("image_token_id", "text_config.mrope_section", "vision_config"));
  EXPECT_THAT(import.understood, Contains("text_config.num_hidden_layers 6 -> layers 6"));
  Json broken = fixture("nested");
  broken["text_config"].erase("hidden_size");
  broken["text_config"]["num_experts"] = "many";
  EXPECT_THAT(pointers_of(broken), ElementsAre("/text_config/hidden_size", "/text_config/num_experts"));
  broken["text_config"]["model_type"] = "some_text";
  EXPECT_THAT(pointers_of(broken), ElementsAre("/text_config/model_type"));
}

TEST(HfImport, SaysWhatItUsedAndWhatNot) {
  const HfImport import = import_hf(with(fixture("deepseek_v3"), "index_topk", 2048), "config.json");
  EXPECT_THAT(import.understood, Contains("n_routed_experts 16 -> moe.experts 16"));
  EXPECT_THAT(import.understood, Contains("n_shared_experts 1 -> moe.shared_ffn_hidden 24"));
  EXPECT_THAT(import.understood, Contains("attention_bias false -> nothing to set"));
  EXPECT_THAT(import.ignored, Contains("torch_dtype"));
  EXPECT_THAT(import.ignored, Contains("num_key_value_heads"));
  EXPECT_THAT(import.ignored, Contains("index_topk"));
  EXPECT_THAT(import.ignored, Not(Contains("hidden_size")));
  EXPECT_THAT(import.unrecognised, ElementsAre("index_topk"));
  EXPECT_THAT(import_hf(fixture("dbrx"), "x").ignored, Contains("attn_config.clip_qkv"));
}

TEST(HfImport, NamesTheModelAfterTheFile) {
  EXPECT_EQ(import_hf(fixture("llama"), "some/folder/Llama-3.json").model["name"], "Llama-3");
  EXPECT_EQ(import_hf(fixture("llama"), "some/Llama-3/config.json").model["name"], "Llama-3");
}

TEST(HfImport, RefusesOtherModelTypes) {
  const auto problems = problems_of(with(fixture("llama"), "model_type", "mamba"));
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].pointer, "/model_type");
  EXPECT_THAT(problems[0].found, HasSubstr("\"mamba\" is not supported"));
  for (const std::string& type : supported_model_types()) EXPECT_THAT(problems[0].allowed, HasSubstr(type));
  EXPECT_THAT(pointers_of(with(fixture("llama"), "model_type", nullptr)), ElementsAre("/model_type"));
  EXPECT_THAT(pointers_of(with(fixture("llama"), "model_type", 3)), ElementsAre("/model_type"));
  EXPECT_THAT(pointers_of(Json::array()), ElementsAre(""));
  EXPECT_THAT(pointers_of(nullptr), ElementsAre(""));
  EXPECT_FALSE(is_hf_config(Json::array()));
  EXPECT_FALSE(is_hf_config({{"layers", 3}}));
  EXPECT_TRUE(is_hf_config(fixture("nested")));
}

TEST(HfImport, ReportsEveryMissingKeyAtOnce) {
  EXPECT_THAT(pointers_of({{"model_type", "deepseek_v3"}}),
              ElementsAre("/num_hidden_layers", "/hidden_size", "/vocab_size", "/num_attention_heads",
                          "/kv_lora_rank", "/qk_nope_head_dim", "/qk_rope_head_dim", "/v_head_dim",
                          "/n_routed_experts", "/num_experts_per_tok", "/moe_intermediate_size"));
  Json config = fixture("deepseek_v3");
  config.erase("intermediate_size");  // the width of the dense layers
  EXPECT_THAT(pointers_of(config), ElementsAre("/intermediate_size"));
  config["first_k_dense_replace"] = 0;
  EXPECT_THAT(pointers_of(config), IsEmpty());
}

TEST(HfImport, ReportsWrongValuesAtTheirKeys) {
  const std::pair<const char*, Json> cases[] = {
      {"num_hidden_layers", "many"},
      {"num_hidden_layers", 0},
      {"num_hidden_layers", 1e300},
      {"num_hidden_layers", -1},
      {"num_hidden_layers", 6.5},
      {"num_hidden_layers", 18446744073709551615U},
      {"num_hidden_layers", 1000000},
      {"hidden_size", Json::array()},
      {"hidden_size", Json::object()},
      {"hidden_size", true},
      {"vocab_size", 16777217},
      {"num_attention_heads", 0},
      {"num_key_value_heads", 3},
      {"head_dim", -1},
      {"tie_word_embeddings", "no"},
      {"num_experts", 0},
      {"num_experts", 100000},
      {"num_experts_per_tok", 17},
      {"moe_intermediate_size", 0},
      {"decoder_sparse_step", 0},
      {"decoder_sparse_step", "x"},
      {"mlp_only_layers", 3},
      {"mlp_only_layers", Json::array({-1})},
      {"mlp_only_layers", Json::array({1.5})},
      {"attention_bias", 1},
      {"use_sliding_window", "yes"},
      {"max_position_embeddings", -5},
      {"layer_types", 3},
      {"layer_types", Json::array({1, 2})},
  };
  for (const auto& [key, value] : cases)
    EXPECT_THAT(pointers_of(with(fixture("qwen3_moe"), key, value)), ElementsAre(std::string("/") + key))
        << key << " " << value;
  EXPECT_THAT(pointers_of(with(fixture("mistral"), "sliding_window", "wide")),
              ElementsAre("/sliding_window"));
  EXPECT_THAT(pointers_of(with(fixture("deepseek_v3"), "n_shared_experts", 1.5)),
              ElementsAre("/n_shared_experts"));
  EXPECT_THAT(pointers_of(with(fixture("deepseek_v3"), "n_group", 5)), ElementsAre("/n_group"));
  EXPECT_THAT(pointers_of(with(fixture("deepseek_v3"), "topk_group", "x")), ElementsAre("/topk_group"));
  EXPECT_THAT(pointers_of(with(fixture("dbrx"), "attn_config", 3)), ElementsAre("/attn_config/kv_n_heads"));
  EXPECT_THAT(pointers_of(with(fixture("nested"), "text_config", 3)), ElementsAre("/model_type"));
}

TEST(HfImport, PutsThePrefixBeforePointers) {
  try {
    import_hf(with(fixture("llama"), "hidden_size", 0), "scenario.json", "/model");
    FAIL();
  } catch (const InputError& error) {
    ASSERT_EQ(error.problems().size(), 1U);
    EXPECT_EQ(error.problems()[0].pointer, "/model/hidden_size");
  }
}

// Any value at any key either works or is refused as bad input.
TEST(HfImport, SurvivesOddValues) {
  const Json odd[] = {nullptr,
                      true,
                      -1,
                      0,
                      1,
                      3,
                      7,
                      1e300,
                      0.5,
                      18446744073709551615U,
                      "",
                      "x",
                      Json::array(),
                      Json::array({0, -1, "x"}),
                      Json::object(),
                      {{"a", 1}}};
  for (const auto& entry : std::filesystem::directory_iterator(source_folder() / "tests" / "data" / "hf")) {
    const Json config = load_json(entry.path());
    for (const auto& [key, unused] : config.items()) {
      for (const Json& value : odd) {
        Json changed = config;
        changed[key] = value;
        EXPECT_NO_THROW(problems_of(changed)) << entry.path() << " " << key << " " << value;
      }
    }
  }
}

// The real files, when they are there.
TEST(HfImport, ReadsPublishersFiles) {
  const char* data = std::getenv("STEPCAST_DATA");
  if (data == nullptr) GTEST_SKIP() << "STEPCAST_DATA is not set";
  const std::pair<const char*, std::int64_t> cases[] = {
      {"deepseek-ai--DeepSeek-V3", 671'026'419'200},    {"moonshotai--Kimi-K2-Instruct", 1'026'408'232'448},
      {"Qwen--Qwen3-235B-A22B", 235'093'634'560},       {"Qwen--Qwen3-30B-A3B", 30'532'122'624},
      {"mistralai--Mixtral-8x7B-v0.1", 46'702'792'704}, {"mistralai--Mixtral-8x22B-v0.1", 140'620'634'112},
      {"openai--gpt-oss-120b", 116'829'156'672},        {"meta-llama--Meta-Llama-3.1-405B", 405'853'388'800},
  };
  for (const auto& [name, total] : cases) {
    const auto path = std::filesystem::path(data) / "inputs" / "hf_config" / (std::string(name) + ".json");
    const HfImport import = import_hf(load_json(path), path.string());
    EXPECT_EQ(count_parameters(model_of(import.model)).total, total) << name;
    EXPECT_THAT(import.unrecognised, IsEmpty()) << name;
  }
  for (const char* name :
       {"deepseek-ai--DeepSeek-V4-Pro", "meta-llama--Llama-4-Maverick-17B-128E-Instruct"}) {
    const auto path = std::filesystem::path(data) / "inputs" / "hf_config" / (std::string(name) + ".json");
    EXPECT_THROW(import_hf(load_json(path), path.string()), InputError) << name;
  }
}

}  // namespace
}  // namespace stepcast
