#include "model/parameters.h"

#include <gtest/gtest.h>

#include "unit/model/shipped_model.h"

namespace stepcast {
namespace {

using testing::model_of;
using testing::shipped_json;
using testing::shipped_model;

// Integers of the domain's table of architectures; each is the safetensors total that the publisher's files
// add up to, or the formula of the header where only a rounded figure is public.
struct Expected {
  const char* model;
  std::int64_t total;
  std::int64_t active;
};

constexpr Expected kExpected[] = {
    // 12 L h^2 + 13 L h + (V + s) h + 2 h with h 12288, L 96, V 50257, s 2048
    {"gpt3-175b", 174'604'259'328, 174'604'259'328},
    {"llama-2-7b", 6'738'415'616, 6'738'415'616},
    {"llama-2-70b", 68'976'648'192, 68'976'648'192},
    {"llama-3-8b", 8'030'261'248, 8'030'261'248},
    {"llama-3-70b", 70'553'706'496, 70'553'706'496},
    {"llama-3.1-405b", 405'853'388'800, 405'853'388'800},
    {"mistral-7b", 7'241'732'096, 7'241'732'096},
    {"mixtral-8x7b", 46'702'792'704, 12'879'925'248},
    {"mixtral-8x22b", 140'620'634'112, 39'152'031'744},
    {"qwen1.5-moe-a2.7b", 14'315'784'192, 2'689'173'504},
    {"qwen2-57b-a14b", 57'408'658'944, 14'249'270'784},
    {"qwen3-30b-a3b", 30'532'122'624, 3'353'032'704},
    {"qwen3-235b-a22b", 235'093'634'560, 22'190'763'520},
    {"deepseek-v2-lite", 15'706'484'224, 2'661'150'208},
    {"deepseek-v2", 235'741'434'880, 21'375'800'320},
    {"deepseek-v3", 671'026'419'200, 37'552'297'472},
    {"kimi-k2", 1'026'408'232'448, 32'861'500'928},
    {"glm-4.5", 352'797'829'024, 33'632'266'144},
    {"glm-4.5-air", 106'852'251'264, 13'424'129'664},
    {"grok-1", 315'684'820'992, 83'756'587'008},
    {"dbrx", 131'596'523'520, 36'469'708'800},
    {"gpt-oss-120b", 116'829'156'672, 5'711'982'912},
    {"gpt-oss-20b", 20'914'757'184, 4'187'440'704},
    {"olmoe-1b-7b", 6'919'161'856, 1'282'017'280},
    {"moe-1.8t", 1'801'622'925'312, 51'289'534'464},
};

class ShippedModels : public ::testing::TestWithParam<Expected> {};

TEST_P(ShippedModels, HaveTheirPublishedParameters) {
  const ParameterReport report = count_parameters(shipped_model(GetParam().model));
  EXPECT_EQ(report.total, GetParam().total);
  EXPECT_EQ(report.active, GetParam().active);
}

TEST_P(ShippedModels, AreTheSumOfTheirParts) {
  const Model model = shipped_model(GetParam().model);
  Parameters sum = embedding_parameters(model, model.vocab);
  for (std::int64_t layer = 0; layer < model.layers; ++layer) sum += decoder_layer_parameters(model, layer);
  sum += final_norm_parameters(model);
  sum += head_parameters(model, model.vocab);
  EXPECT_EQ(sum.total(), GetParam().total);
  const double mtp = static_cast<double>(model.mtp_layers * mtp_layer_parameters(model).total());
  EXPECT_EQ(estimate_parameters(model), static_cast<double>(GetParam().total) + mtp);
}

INSTANTIATE_TEST_SUITE_P(Domain, ShippedModels, ::testing::ValuesIn(kExpected), [](const auto& info) {
  std::string name = info.param.model;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
});

TEST(Parameters, FollowTheVocabulary) {
  Model model = shipped_model("mixtral-8x22b");
  model.vocab = 32768;  // the instruct variant: + 2 x 768 x 6144
  EXPECT_EQ(count_parameters(model).total, 140'630'071'296);
}

TEST(Parameters, CountCorrectionBiases) {
  Model model = shipped_model("deepseek-v3");
  model.moe->correction_bias = false;  // 58 x 256 fewer
  EXPECT_EQ(count_parameters(model).total, 671'026'404'352);
}

TEST(Parameters, OfAttention) {
  // h q + q + q n (dn + dr) + h (kv + dr) + kv + kv n (dn + dv) + n dv h
  EXPECT_EQ(attention_parameters(shipped_model("deepseek-v3")).total(), 187'107'328);
  EXPECT_EQ(attention_parameters(shipped_model("llama-2-70b")).total(), 150'994'944);  // 2 h n d + 2 h g d
}

TEST(Parameters, OfMtpAreApart) {
  const Model deepseek = shipped_model("deepseek-v3");
  EXPECT_EQ(mtp_layer_parameters(deepseek).total(), 11'610'068'224);
  EXPECT_EQ(count_parameters(deepseek).mtp, 11'610'068'224);
  EXPECT_EQ(count_parameters(shipped_model("kimi-k2")).mtp, 0);
}

// Hugging Face stores the MTP module with its own copies of embedding and head.
std::int64_t hugging_face_total(const std::string& name) {
  const Model model = shipped_model(name);
  const ParameterReport report = count_parameters(model);
  return report.total + report.mtp + 2 * model.vocab * model.hidden;
}

TEST(Parameters, MatchWholeRepositories) {
  EXPECT_EQ(hugging_face_total("deepseek-v3"), 684'489'845'504);
  EXPECT_EQ(hugging_face_total("glm-4.5"), 358'337'791'296);
  EXPECT_EQ(hugging_face_total("glm-4.5-air"), 110'468'824'832);
}

TEST(Parameters, MatchOpenAiWithoutTheInputTable) {
  for (const auto& [name, expected] :
       {std::pair{"gpt-oss-120b", 5'132'849'472}, {"gpt-oss-20b", 3'608'307'264}}) {
    const Model model = shipped_model(name);
    EXPECT_EQ(count_parameters(model).active - model.vocab * model.hidden, expected) << name;
  }
}

TEST(Parameters, AreSplitAsRanksHoldThem) {
  const std::int64_t h = 7168;
  const Parameters layer = decoder_layer_parameters(shipped_model("deepseek-v3"), 60);
  EXPECT_EQ(layer.experts, 256 * (3 * h * 2048));
  // down-projections and their norms, router with correction bias, two norms
  EXPECT_EQ(layer.replicated, h * (1536 + 512 + 64) + 1536 + 512 + h * 256 + 256 + 2 * h);
  EXPECT_EQ(decoder_layer_parameters(shipped_model("deepseek-v3"), 0).experts, 0);
  // GPT-3: output biases h, norms 4 h; QKV biases 3 h and FFN biases f are split
  const std::int64_t gpt_h = 12288;
  const Parameters gpt = decoder_layer_parameters(shipped_model("gpt3-175b"), 0);
  EXPECT_EQ(gpt.replicated, 6 * gpt_h);
  EXPECT_EQ(gpt.tp_sharded, 12 * gpt_h * gpt_h + 3 * gpt_h + 4 * gpt_h);
  EXPECT_EQ(head_parameters(shipped_model("gpt3-175b"), 50257).total(), 0);
}

TEST(Parameters, OfLatentExpertsUseTheLatentWidth) {
  const Model model = model_of({{"layers", 2},
                                {"hidden", 64},
                                {"vocab", 100},
                                {"attention", {{"heads", 4}}},
                                {"moe", {{"experts", 8}, {"top_k", 2}, {"ffn_hidden", 32}, {"latent", 16}}}});
  const Parameters layer = decoder_layer_parameters(model, 0);
  EXPECT_EQ(layer.experts, 8 * 3 * 16 * 32);
  EXPECT_EQ(layer.replicated, 64 * 8 + 2 * 64 * 16 + 2 * 64);
}

TEST(Parameters, OfBiasedExpertsGrowWithEveryLinearLayer) {
  const Json moe = {{"experts", 8}, {"top_k", 2}, {"ffn_hidden", 32}, {"shared_ffn_hidden", 48}};
  Json object = {{"layers", 1}, {"hidden", 64}, {"vocab", 100}, {"attention", {{"heads", 4}}}, {"moe", moe}};
  const Parameters plain = decoder_layer_parameters(model_of(object), 0);
  object["bias"] = true;
  const Parameters biased = decoder_layer_parameters(model_of(object), 0);
  EXPECT_EQ(biased.experts - plain.experts, 1024);  // 8 (2 x 32 + 64)
  // QKV 3 h and the shared expert's 2 f are split; router E, output h and the shared expert's h are not
  EXPECT_EQ(biased.tp_sharded - plain.tp_sharded, 3 * 64 + 2 * 48);
  EXPECT_EQ(biased.replicated - plain.replicated, 8 + 64 + 64);
}

TEST(Parameters, OfAVisionEncoder) {
  Json object = shipped_json("qwen3-30b-a3b");
  object["vision"] = {
      {"layers", 27}, {"hidden", 1152}, {"ffn_hidden", 4304}, {"heads", 16}, {"deepstack", 3}};
  const std::int64_t h = 1152, f = 4304, q = 4 * h, out = 2048;
  const std::int64_t layer =
      4 * h * h + 4 * h + 2 * h * f + f + h + 4 * h;  // linear layers with biases, LayerNorms
  const std::int64_t merger = q * q + q + q * out + out + 2 * h;
  const std::int64_t patches = 1536 * h + h;  // 3 colours x 2 frames x 16 x 16
  const Model model = model_of(object);
  EXPECT_EQ(vision_parameters(model).total(), 27 * layer + 4 * merger + patches);
  EXPECT_EQ(count_parameters(model).total, 30'532'122'624 + 27 * layer + 4 * merger + patches);
}

struct Padding {
  std::int64_t vocab, divisor, tp, padded;
};

TEST(PaddedVocab, IsAMultipleOfDivisorTimesTp) {
  const Padding cases[] = {
      {128256, 128, 8, 129024},   {32000, 128, 1, 32000},     {129280, 128, 1, 129280},
      {151936, 128, 4, 152064},   {201088, 128, 8, 201728},   {151936, 1187, 2, 151936},
      {163840, 1280, 16, 163840}, {129280, 3232, 8, 129280},  {129280, 3232, 16, 155136},
      {129280, 3232, 32, 206848}, {129280, 3232, 64, 206848},
  };
  for (const Padding& c : cases)
    EXPECT_EQ(padded_vocab(c.vocab, c.divisor, c.tp), c.padded) << c.vocab << " " << c.divisor << " " << c.tp;
}

}  // namespace
}  // namespace stepcast
