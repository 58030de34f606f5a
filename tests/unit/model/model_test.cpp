#include "model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/data_folder.h"
#include "unit/model/shipped_model.h"

namespace stepcast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::model_of;
using testing::shipped_model;
using ::testing::SizeIs;

Json small() {
  return {{"layers", 4}, {"hidden", 64}, {"vocab", 100}, {"ffn_hidden", 128}, {"attention", {{"heads", 4}}}};
}

Json small_moe() {
  Json object = small();
  object["moe"] = {{"experts", 8}, {"top_k", 2}, {"ffn_hidden", 32}};
  return object;
}

Json small_mla() {
  Json object = small();
  object["attention"] = {{"kind", "mla"},         {"heads", 4},
                         {"kv_lora_rank", 16},    {"qk_nope_head_dim", 8},
                         {"qk_rope_head_dim", 4}, {"v_head_dim", 8}};
  return object;
}

// `object` with the value at a pointer replaced.
Json with(Json object, const std::string& pointer, const Json& value) {
  object[Json::json_pointer(pointer)] = value;
  return object;
}

std::vector<Problem> problems_of(const Json& object) {
  std::vector<Problem> problems;
  read_model(object, "model.json", "/model", problems);
  return problems;
}

std::vector<std::string> pointers_of(const Json& object) {
  std::vector<std::string> pointers;
  for (const Problem& problem : problems_of(object)) pointers.push_back(problem.pointer);
  return pointers;
}

TEST(Model, FillsInWhatFollows) {
  const Model model = model_of(small());
  EXPECT_EQ(model.attention.kind, AttentionKind::kMha);
  EXPECT_EQ(model.attention.kv_heads, 4);
  EXPECT_EQ(model.attention.head_dim, 16);
  EXPECT_EQ(model.activation, "silu");
  EXPECT_EQ(model.vocab_divisor, 128);
  EXPECT_EQ(model.norms_per_layer, 2);
  EXPECT_FALSE(model.moe);
  EXPECT_FALSE(model.vision);
  EXPECT_EQ(model_of(with(small(), "/attention/kv_heads", 2)).attention.kind, AttentionKind::kGqa);
  EXPECT_EQ(model_of(with(small(), "/gated_ffn", false)).activation, "gelu");
  Json mla = small_mla();
  mla["attention"].erase("kind");
  EXPECT_TRUE(model_of(mla).attention.mla());
  EXPECT_EQ(model_of(mla).attention.qk_dim(), 12);
}

TEST(Model, TakesNullForNotGiven) {
  Json object = small();
  for (const char* pointer :
       {"/moe", "/vision", "/norm", "/mtp_layers", "/attention/head_dim", "/attention/window"})
    object = with(object, pointer, nullptr);
  EXPECT_EQ(model_of(object), model_of(small()));
}

TEST(Model, SaysWhichLayersHaveExperts) {
  const auto moe_layers = [](const Json& object) {
    const Model model = model_of(object);
    std::vector<int> layers;
    for (int layer = 0; layer < model.layers; ++layer)
      if (model.is_moe(layer)) layers.push_back(layer);
    EXPECT_EQ(model.moe_layers(), static_cast<std::int64_t>(layers.size()));
    return layers;
  };
  Json object = with(small_moe(), "/layers", 6);
  EXPECT_THAT(moe_layers(object), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(moe_layers(with(object, "/moe/dense_layers", 3)), ElementsAre(3, 4, 5));
  object = with(object, "/moe/period", 2);
  EXPECT_THAT(moe_layers(object), ElementsAre(0, 2, 4));
  EXPECT_THAT(moe_layers(with(object, "/moe/dense_layers", 1)), ElementsAre(2, 4));
  EXPECT_FALSE(model_of(object).mtp_is_moe());
  object = with(object, "/moe/first", 1);
  EXPECT_THAT(moe_layers(object), ElementsAre(1, 3, 5));
  EXPECT_TRUE(model_of(object).mtp_is_moe());
}

TEST(Model, SaysWhichLayersHaveAWindow) {
  Attention attention;
  EXPECT_FALSE(attention.windowed(0));
  attention.window = 128;
  EXPECT_TRUE(attention.windowed(3));
  attention.window_period = 2;
  attention.window_offset = 1;
  EXPECT_FALSE(attention.windowed(0));
  EXPECT_TRUE(attention.windowed(1));
}

TEST(Model, IsTheSameAfterWritingAndReading) {
  for (const std::string& name : data_names("scenarios/models")) {
    const Model model = shipped_model(name);
    EXPECT_EQ(model_of(model_json(model)), model) << name;
    EXPECT_FALSE(model.name.empty()) << name;
  }
  Json object = with(small_moe(), "/attention/qk_norm", "projection");
  object["vision"] = {
      {"layers", 2}, {"hidden", 32}, {"ffn_hidden", 64}, {"heads", 2}, {"patches_per_sequence", 64}};
  object["position"] = "alibi";
  EXPECT_EQ(model_of(model_json(model_of(object))), model_of(object));
}

// Any value at any key either works or is a problem.
TEST(Model, SurvivesOddValues) {
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
  Json complete = model_json(shipped_model("deepseek-v3"));
  complete["vision"] = {{"layers", 2}, {"hidden", 32}, {"ffn_hidden", 64}, {"heads", 2}};
  const Json flat = complete.flatten();
  for (const auto& [pointer, unused] : flat.items())
    for (const Json& value : odd)
      EXPECT_NO_THROW(problems_of(with(complete, pointer, value))) << pointer << " " << value;
}

struct Wrong {
  Json object;
  const char* pointer;
  const char* found;
};

TEST(Model, RefusesValuesThatTheSchemaForbids) {
  const Wrong cases[] = {
      {with(small(), "/layers", 1e300), "/model/layers", "1e+300"},
      {with(small(), "/layers", 4096.5), "/model/layers", "4096.5"},
      {with(small(), "/layers", 0), "/model/layers", "0"},
      {with(small(), "/layers", -3), "/model/layers", "-3"},
      {with(small(), "/layers", 10001), "/model/layers", "10001"},
      {with(small(), "/layers", "4"), "/model/layers", "\"4\""},
      {with(small(), "/layers", true), "/model/layers", "true"},
      {with(small(), "/layers", Json::array({4})), "/model/layers", "[4]"},
      {with(small(), "/layers", Json::object()), "/model/layers", "{}"},
      {with(small(), "/layers", nullptr), "/model/layers", "missing"},
      {with(small(), "/hidden", 18446744073709551615U), "/model/hidden", ""},
      {with(small(), "/hidden", 9223372036854775807), "/model/hidden", "9223372036854775807"},
      {with(small(), "/bias", 1), "/model/bias", "1"},
      {with(small(), "/norm", "batchnorm"), "/model/norm", "batchnorm"},
      {with(small(), "/name", 3), "/model/name", "3"},
      {with(small(), "/attention", 3), "/model/attention", "3"},
      {with(small(), "/attention", Json::array()), "/model/attention", "[]"},
      {with(small(), "/attention/heads", "many"), "/model/attention/heads", "many"},
      {with(small(), "/attention/head_dims", 3), "/model/attention/head_dims", "unknown"},
      {with(small(), "/moe", Json::object()), "/model/moe/experts", "missing"},
      {with(small(), "/vision", 1), "/model/vision", "1"},
      {Json::array(), "/model", "[]"},
      {3, "/model", "3"},
      {nullptr, "/model", "null"},
  };
  for (const Wrong& wrong : cases) {
    const auto problems = problems_of(wrong.object);
    ASSERT_FALSE(problems.empty()) << wrong.object;
    EXPECT_EQ(problems[0].pointer, wrong.pointer) << wrong.object;
    EXPECT_THAT(problems[0].found, HasSubstr(wrong.found)) << wrong.object;
    EXPECT_EQ(problems[0].file, "model.json");
  }
}

TEST(Model, NamesTheNearestKey) {
  const auto problems = problems_of(with(small(), "/ffn_hiden", 3));
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_THAT(problems[0].allowed, HasSubstr("did you mean \"ffn_hidden\""));
}

TEST(Model, ReportsEveryProblemAtOnce) {
  Json object = with(small(), "/layers", 0);
  object["vocab"] = "big";
  object["attention"]["heads"] = -1;
  object["extra"] = 1;
  EXPECT_THAT(problems_of(object), SizeIs(4));
  object = with(small_moe(), "/moe/top_k", 9);
  object["attention"]["kv_heads"] = 3;
  object["moe"]["groups"] = 3;
  EXPECT_THAT(problems_of(object), SizeIs(3));
}

TEST(Model, RefusesContradictions) {
  Json no_ffn = small();
  no_ffn.erase("ffn_hidden");
  EXPECT_THAT(pointers_of(no_ffn), ElementsAre("/model/ffn_hidden"));
  Json moe = small_moe();
  moe.erase("ffn_hidden");
  EXPECT_THAT(pointers_of(moe), IsEmpty());
  EXPECT_THAT(pointers_of(with(moe, "/moe/dense_layers", 1)), ElementsAre("/model/ffn_hidden"));
  EXPECT_THAT(pointers_of(with(small_moe(), "/moe/dense_layers", 4)), ElementsAre("/model/moe/dense_layers"));

  EXPECT_THAT(pointers_of(with(small(), "/attention/heads", 5)), ElementsAre("/model/attention/head_dim"));
  EXPECT_THAT(pointers_of(with(small(), "/attention/kv_heads", 3)), ElementsAre("/model/attention/kv_heads"));
  EXPECT_THAT(pointers_of(with(small(), "/attention/kv_heads", 8)), ElementsAre("/model/attention/kv_heads"));
  Json mha = with(small(), "/attention/kind", "mha");
  EXPECT_THAT(pointers_of(with(mha, "/attention/kv_heads", 2)), ElementsAre("/model/attention/kv_heads"));
  EXPECT_THAT(pointers_of(with(small(), "/attention/window_offset", 1)),
              ElementsAre("/model/attention/window_offset"));

  EXPECT_THAT(pointers_of(with(small(), "/attention/kind", "mla")),
              ElementsAre("/model/attention/kv_lora_rank", "/model/attention/qk_nope_head_dim",
                          "/model/attention/v_head_dim"));
  EXPECT_THAT(pointers_of(with(small_mla(), "/attention/kv_heads", 1)),
              ElementsAre("/model/attention/kv_heads"));
  EXPECT_THAT(pointers_of(with(small_mla(), "/attention/qkv_bias", true)),
              ElementsAre("/model/attention/qkv_bias"));
  EXPECT_THAT(pointers_of(with(small_mla(), "/attention/qk_norm", "head")),
              ElementsAre("/model/attention/qk_norm"));
  EXPECT_THAT(pointers_of(with(mha, "/attention/v_head_dim", 8)), ElementsAre("/model/attention/v_head_dim"));

  EXPECT_THAT(pointers_of(with(small_moe(), "/moe/top_k", 9)), ElementsAre("/model/moe/top_k"));
  EXPECT_THAT(pointers_of(with(small_moe(), "/moe/groups", 3)), ElementsAre("/model/moe/groups"));
  EXPECT_THAT(pointers_of(with(small_moe(), "/moe/group_top_k", 2)), ElementsAre("/model/moe/group_top_k"));
  EXPECT_THAT(pointers_of(with(small_moe(), "/moe/shared_gate", true)),
              ElementsAre("/model/moe/shared_gate"));
  Json groups = with(with(small_moe(), "/moe/groups", 8), "/moe/group_top_k", 1);
  EXPECT_THAT(pointers_of(groups), ElementsAre("/model/moe/top_k"));  // 2 experts out of one group of 1
  EXPECT_THAT(pointers_of(with(groups, "/moe/group_top_k", 9)), ElementsAre("/model/moe/group_top_k"));

  Json vision = {
      {"layers", 2}, {"hidden", 30}, {"ffn_hidden", 64}, {"heads", 4}, {"patches_per_sequence", 63}};
  EXPECT_THAT(pointers_of(with(small(), "/vision", vision)),
              ElementsAre("/model/vision/heads", "/model/vision/patches_per_sequence"));
}

TEST(Model, RefusesMoreParametersThanCanBeCounted) {
  Json object = with(small_moe(), "/hidden", 1048576);
  object["layers"] = 10000;
  object["ffn_hidden"] = 16777216;
  object["moe"] = {{"experts", 65536}, {"top_k", 1}, {"ffn_hidden", 16777216}};
  const auto problems = problems_of(object);
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_THAT(problems[0].found, HasSubstr("3.46e+22 parameters"));  // 1e4 x 65536 x 3 h f
  EXPECT_THAT(problems[0].allowed, HasSubstr("1e+15"));
}

TEST(Model, ReadsThePublishedRecords) {
  const char* data = std::getenv("STEPCAST_DATA");
  if (data == nullptr) GTEST_SKIP() << "STEPCAST_DATA is not set";
  int records = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(data) / "runs")) {
    if (entry.path().extension() != ".json") continue;
    const Json document = load_json(entry.path());
    std::vector<Problem> problems;
    for (const Json& run : document["runs"]) {
      read_model(run["scenario"]["model"], entry.path().string(), "", problems);
      ++records;
    }
    throw_if_any(problems);
  }
  EXPECT_GE(records, 1326);
}

}  // namespace
}  // namespace stepcast
