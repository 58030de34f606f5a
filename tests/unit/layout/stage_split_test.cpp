// Which layers each stage holds: layout strings, automatic splits, mappings.
#include "layout/stage_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

namespace stepcast {
namespace {

using Counts = std::vector<std::int64_t>;

Model model_of(std::int64_t layers, std::int64_t mtp_layers = 0) {
  Model model;
  model.layers = layers;
  model.mtp_layers = mtp_layers;
  return model;
}

StageSplit split_or_fail(const Model& model, std::int64_t pp, std::int64_t chunks,
                         const std::string& text = "", bool v_shaped = false) {
  std::vector<Problem> problems;
  StageSplit split = split_stages(model, pp, chunks, v_shaped, text, "f", "/layout/stages", problems);
  for (const Problem& problem : problems) ADD_FAILURE() << to_string(problem);
  return split;
}

Counts layers_per_rank(const StageSplit& split) {
  Counts layers;
  for (std::int64_t rank = 0; rank < split.pp; ++rank) layers.push_back(split.layers_of_rank(rank));
  return layers;
}

Counts layers_per_stage(const StageSplit& split) {
  Counts layers;
  for (const Stage& stage : split.stages) layers.push_back(stage.layers);
  return layers;
}

std::vector<std::string> expanded(const std::string& text) {
  std::vector<Problem> problems;
  std::vector<std::string> stages = expand_layout_string(text, "f", "/layout/stages", problems);
  EXPECT_TRUE(problems.empty()) << text << ": " << problems.front().found;
  return stages;
}

std::string grammar_error(const std::string& text) {
  std::vector<Problem> problems;
  EXPECT_TRUE(expand_layout_string(text, "f", "/layout/stages", problems).empty()) << text;
  if (problems.size() != 1) {
    ADD_FAILURE() << problems.size() << " problems for " << text;
    return "";
  }
  EXPECT_EQ(problems[0].file, "f");
  EXPECT_EQ(problems[0].pointer, "/layout/stages");
  EXPECT_FALSE(problems[0].allowed.empty());
  return problems[0].found;
}

std::string rule_17(const std::string& text, const Model& model, std::int64_t pp, std::int64_t chunks) {
  std::vector<Problem> problems;
  const StageSplit split = split_stages(model, pp, chunks, false, text, "f", "/layout/stages", problems);
  EXPECT_EQ(static_cast<std::int64_t>(split.stages.size()), pp * chunks) << "no usable split after a problem";
  std::string found;
  for (const Problem& problem : problems) found += problem.found + "; ";
  return found;
}

// ---- oracles (domain_oracles.json)

struct PublishedSplit {
  const char* id;
  std::int64_t layers, mtp, pp, vpp;
  const char* text;  // empty = automatic
  Counts per_rank;
};

TEST(StageSplit, PublishedLayouts) {
  const std::vector<PublishedSplit> oracles = {
      {"layout_pub_dsv3_h100_1024", 61, 1, 8, 4, "Et|(tt|)*30mL", {7, 8, 8, 8, 8, 8, 8, 6}},
      {"layout_pub_dsv3_b200_256", 61, 1, 8, 4, "Et|(tt|)*30mL", {7, 8, 8, 8, 8, 8, 8, 6}},
      {"layout_pub_dsv3_h100_256_4k", 61, 1, 8, 4, "Et*2|(tt|)*22t|(tt|)*7mL", {8, 8, 8, 8, 8, 8, 8, 5}},
      {"layout_pub_dsv3_h100_256_128k", 61, 1, 8, 4, "Et*2|(tt|)*22t|(tt|)*7mL", {8, 8, 8, 8, 8, 8, 8, 5}},
      {"layout_pub_kimi_k2_gb200_128_128k", 61, 0, 2, 16, "Et|t|(tt|)*29tL", {31, 30}},
      {"layout_pub_qwen3_235b_h100_256", 94, 0, 8, 4, "", {11, 12, 12, 12, 12, 12, 12, 11}},
      {"layout_pub_mixtral_8x22b_h100_128", 56, 0, 8, 7, "", {7, 7, 7, 7, 7, 7, 7, 7}},
      {"layout_pub_mixtral_8x7b_h100_64", 32, 0, 4, 8, "", {8, 8, 8, 8}},
      // domain 2.3, no oracle: DeepSeek-V3 on 256 GB200
      {"dsv3_gb200_256", 61, 1, 4, 4, "Et*4|(tttt|)*14tmL", {16, 16, 16, 13}},
  };
  for (const PublishedSplit& oracle : oracles) {
    SCOPED_TRACE(oracle.id);
    const Model model = model_of(oracle.layers, oracle.mtp);
    const StageSplit split = split_or_fail(model, oracle.pp, oracle.vpp, oracle.text);
    EXPECT_EQ(static_cast<std::int64_t>(split.stages.size()), oracle.pp * oracle.vpp);
    EXPECT_EQ(layers_per_rank(split), oracle.per_rank);
  }
}

TEST(StageSplit, LayoutStringParseOracle) {  // layout_string_parse
  const StageSplit split = split_or_fail(model_of(61, 1), 16, 2, "Et*3|(tt|)*29,m|L");
  ASSERT_EQ(split.stages.size(), 32U);
  const auto mtp =
      std::find_if(split.stages.begin(), split.stages.end(), [](const Stage& s) { return s.mtp; });
  const std::int64_t mtp_stage = mtp - split.stages.begin();
  EXPECT_EQ(mtp_stage, 30);
  EXPECT_EQ(split.rank_of(mtp_stage), 14);
  EXPECT_EQ(split.rank_of(31), 15);
  EXPECT_TRUE(split.stages[31].head);
  EXPECT_EQ(split.stages[31].first_layer, 61);
  EXPECT_EQ(split.how, "layout string");
}

// ---- grammar

TEST(LayoutString, Expands) {
  EXPECT_EQ(expanded("Et|tt|tL"), (std::vector<std::string>{"Et", "tt", "tL"}));
  EXPECT_EQ(expanded("Et*3|(t*2|)*2mL"), (std::vector<std::string>{"Ettt", "tt", "tt", "mL"}));
  EXPECT_EQ(expanded("E,t*1,2|L"),
            (std::vector<std::string>{"Etttttttttttt", "L"}));  // as Megatron: commas go first
  EXPECT_EQ(expanded("E||tL"), (std::vector<std::string>{"E", "", "tL"}));
  EXPECT_EQ(expanded("E|*3L"), (std::vector<std::string>{"E", "", "", "L"}));
  EXPECT_EQ(expanded("Et*0L"), (std::vector<std::string>{"EL"}));
  EXPECT_EQ(expanded("E(t|)*0L"), (std::vector<std::string>{"EL"}));
  EXPECT_EQ(expanded("E(t*2|t)*2L"), (std::vector<std::string>{"Ett", "ttt", "tL"}));
  EXPECT_EQ(expanded("(|tt)*2"), (std::vector<std::string>{"", "tt", "tt"}));
}

TEST(LayoutString, GrammarErrors) {
  EXPECT_NE(grammar_error("Ex|L").find("unknown symbol at character 2"), std::string::npos);
  EXPECT_NE(grammar_error("Et L").find("unknown symbol"), std::string::npos);
  EXPECT_NE(grammar_error("Et3L").find("unknown symbol"), std::string::npos);
  EXPECT_NE(grammar_error("e|l").find("unknown symbol"), std::string::npos);
  EXPECT_NE(grammar_error("E(tt|").find("( without )"), std::string::npos);
  EXPECT_NE(grammar_error("Ett|)*3L").find(") without ("), std::string::npos);
  EXPECT_NE(grammar_error("E(t(t|)*2)*2L").find("group inside a group"), std::string::npos);
  EXPECT_NE(grammar_error("E(tt|)L").find("group without *n"), std::string::npos);
  EXPECT_NE(grammar_error("E()*3L").find("empty group"), std::string::npos);
  EXPECT_NE(grammar_error("Et*L").find("* without a number"), std::string::npos);
  EXPECT_NE(grammar_error("Et*").find("* without a number"), std::string::npos);
  EXPECT_NE(grammar_error("Et*-1L").find("* without a number"), std::string::npos);
  EXPECT_NE(grammar_error("*3tL").find("neither a symbol nor a group"), std::string::npos);
  EXPECT_NE(grammar_error("Et*2*3L").find("neither a symbol nor a group"), std::string::npos);
  EXPECT_NE(grammar_error("E(*3)*2L").find("neither a symbol nor a group"), std::string::npos);
}

TEST(LayoutString, HostileStringsAreCheap) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_NE(grammar_error("t*999999999").find("more than 100000 symbols"), std::string::npos);
  EXPECT_NE(grammar_error("t*99999999999999999999999999").find("more than 100000 symbols"),
            std::string::npos);
  EXPECT_NE(grammar_error("(t*99999|)*99999").find("more than 100000 symbols"), std::string::npos);
  EXPECT_NE(grammar_error(std::string(200'000, 't')).find("more than 100000 symbols"), std::string::npos);
  EXPECT_NE(grammar_error(std::string(1'000'000, '(')).find("group inside a group"), std::string::npos);
  EXPECT_NE(grammar_error(std::string(1'000'000, ')')).find(") without ("), std::string::npos);
  EXPECT_EQ(expanded("(t*0)*999999999").size(), 1U);
  EXPECT_EQ(expanded("|*100000").size(), 100'001U);
  EXPECT_LT(grammar_error("E" + std::string(1'000'000, 'x')).size(), 200U);
  const std::string many_mtp = rule_17("E(m|)*40000tL", model_of(1, 1), 8, 4);
  EXPECT_LT(many_mtp.size(), 1000U);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

// ---- rule 17: each demand broken once

TEST(LayoutString, Rule17) {
  const Model model = model_of(4, 1);
  EXPECT_EQ(rule_17("Et|t|t|tmL", model, 2, 2), "");
  EXPECT_NE(rule_17("Et|t|ttmL", model, 2, 2).find("3 stages do not divide over pp 2"), std::string::npos);
  EXPECT_NE(rule_17("Et|t|t|tmL", model, 4, 2).find("4 stages over pp 4 are 1 a rank, but vpp is 2"),
            std::string::npos);
  EXPECT_NE(rule_17("tE|t|t|tmL", model, 2, 2).find("the first symbol is not E"), std::string::npos);
  EXPECT_NE(rule_17("|Ett|t|tmL", model, 2, 2).find("the first symbol is not E"), std::string::npos);
  EXPECT_NE(rule_17("Et|t|t|tLm", model, 2, 2).find("the last symbol is not L"), std::string::npos);
  EXPECT_NE(rule_17("Et|tt|tmL|", model, 2, 2).find("the last symbol is not L"), std::string::npos);
  EXPECT_NE(rule_17("Et|tE|t|tmL", model, 2, 2).find("2 E (embedding)"), std::string::npos);
  EXPECT_NE(rule_17("Et|t|tL|tmL", model, 2, 2).find("2 L (loss)"), std::string::npos);
  EXPECT_NE(rule_17("Et|t|t|mL", model, 2, 2).find("3 t (decoder layers)"), std::string::npos);
  EXPECT_NE(rule_17("Et|t|t|tL", model, 2, 2).find("0 m (MTP layers)"), std::string::npos);
  EXPECT_NE(rule_17("Et|t|tm|tL", model, 2, 2).find("a t follows an m"), std::string::npos);
  EXPECT_NE(rule_17("Et|t|t|mtL", model, 2, 2).find("a t follows an m"), std::string::npos);
  EXPECT_NE(
      rule_17("Ettt|tm||L", model, 2, 2).find("stage 1 holds an MTP layer and is not the last of its rank"),
      std::string::npos);
  EXPECT_EQ(rule_17("Ett|tt|m|L", model, 2, 2), "");  // the last stage of PP rank 0
  EXPECT_NE(rule_17("Ett|tt|m|mL", model_of(4, 2), 2, 2).find("MTP layers lie in 2 stages"),
            std::string::npos);
  EXPECT_EQ(rule_17("Ett|tt|mm|L", model_of(4, 2), 2, 2), "");
  EXPECT_NE(rule_17("Et|(t|", model, 2, 2).find("(rule 17)"), std::string::npos);
}

// ---- splits without a string

TEST(StageSplit, EvenWhenLayersDivide) {
  const StageSplit split = split_or_fail(model_of(32, 1), 4, 2);
  EXPECT_EQ(split.how, "even");
  EXPECT_EQ(layers_per_stage(split), Counts(8, 4));
  EXPECT_TRUE(split.stages.front().embedding);
  EXPECT_EQ(split.stages.back().mtp, 1);
  EXPECT_TRUE(split.stages.back().head);
}

TEST(StageSplit, EmbeddingLossAndMtpCountWhenThatDivides) {
  const StageSplit dsv3 = split_or_fail(model_of(61, 1), 16, 1);  // 64 places
  EXPECT_EQ(dsv3.how, "embedding, loss and MTP layers count as layers");
  EXPECT_EQ(layout_string(dsv3), "Et*3|(t*4|)*14ttmL");
  const StageSplit qwen = split_or_fail(model_of(94), 8, 4);
  EXPECT_EQ(qwen.how, "embedding and loss count as layers");
  EXPECT_EQ(layout_string(qwen), "Ett|(t*3|)*30ttL");
}

TEST(StageSplit, MtpLayersThatDoNotFitTheLastStageDoNotCount) {
  const StageSplit split =
      split_or_fail(model_of(7, 3), 4, 1);  // 12 places, 3 each; MTP and loss would need 4
  EXPECT_EQ(split.how, "balanced, outer stages lightest");
  EXPECT_EQ(layers_per_stage(split), (Counts{2, 2, 2, 1}));
}

TEST(StageSplit, BalancedWithOuterStagesLightest) {
  const StageSplit split = split_or_fail(model_of(61), 8, 1);
  EXPECT_EQ(split.how, "balanced, outer stages lightest");
  EXPECT_EQ(layers_per_stage(split), (Counts{7, 7, 8, 8, 8, 8, 8, 7}));
}

TEST(StageSplit, FewerLayersThanStages) {
  const StageSplit split = split_or_fail(model_of(3), 4, 2);
  EXPECT_EQ(layers_per_stage(split), (Counts{0, 0, 0, 0, 1, 1, 1, 0}));
  EXPECT_EQ(contents_of(split.stages[1]), "(empty)");
  EXPECT_EQ(layers_per_stage(split_or_fail(model_of(1), 1, 1)), Counts{1});
}

TEST(StageSplit, TooManyStagesAreRefused) {
  std::vector<Problem> problems;
  const StageSplit split = split_stages(model_of(61), 1'000'000, 1'000'000, false, "", "f", "/p", problems);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(split.stages.size(), 1U);
}

TEST(StageSplit, EveryAutomaticSplitHoldsEachLayerOnce) {
  for (std::int64_t layers = 1; layers <= 40; ++layers)
    for (std::int64_t mtp = 0; mtp <= 2; ++mtp)
      for (std::int64_t pp = 1; pp <= 9; ++pp)
        for (std::int64_t chunks = 1; chunks <= 3; ++chunks) {
          SCOPED_TRACE(testing::Message() << layers << "+" << mtp << " over " << pp << "x" << chunks);
          const StageSplit split = split_or_fail(model_of(layers, mtp), pp, chunks);
          ASSERT_EQ(static_cast<std::int64_t>(split.stages.size()), pp * chunks);
          std::int64_t next = 0;
          std::int64_t most = 0;
          std::int64_t least = layers;
          for (const Stage& stage : split.stages) {
            ASSERT_EQ(stage.first_layer, next);
            next += stage.layers;
            most = std::max(most, stage.layers);
            least = std::min(least, stage.layers);
          }
          ASSERT_EQ(next, layers);
          ASSERT_LE(split.stages.front().layers, most);
          ASSERT_EQ(split.stages.back().layers, least) << "the last stage is the lightest";
          ASSERT_LE(most - least, split.how.find("count") != std::string::npos ? 1 + mtp : 1);
          ASSERT_EQ(split.stages.back().mtp, mtp);
        }
}

// ---- mapping and round trip

TEST(StageSplit, InterleavedMapping) {
  const StageSplit split = split_or_fail(model_of(32), 4, 2);
  EXPECT_EQ(split.rank_of(5), 1);
  EXPECT_EQ(split.chunk_of(5), 1);
  EXPECT_EQ(split.stage_of(1, 1), 5);
}

TEST(StageSplit, VShapedMapping) {
  const StageSplit split = split_or_fail(model_of(32), 4, 2, "", true);
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(split.stage_of(rank, 0), rank);
    EXPECT_EQ(split.stage_of(rank, 1), 7 - rank);
  }
  EXPECT_EQ(split.rank_of(7), 0);
}

TEST(StageSplit, RankAndChunkInvertStage) {
  for (const bool v_shaped : {false, true})
    for (std::int64_t pp = 1; pp <= 6; ++pp) {
      const StageSplit split = split_or_fail(model_of(24), pp, 2, "", v_shaped);
      std::int64_t layers = 0;
      for (std::int64_t rank = 0; rank < pp; ++rank) layers += split.layers_of_rank(rank);
      EXPECT_EQ(layers, 24);
      for (std::int64_t q = 0; q < 2 * pp; ++q)
        EXPECT_EQ(split.stage_of(split.rank_of(q), split.chunk_of(q)), q);
    }
}

void expect_same(const StageSplit& a, const StageSplit& b) {
  ASSERT_EQ(a.stages.size(), b.stages.size());
  for (std::size_t q = 0; q < a.stages.size(); ++q) {
    EXPECT_EQ(a.stages[q].embedding, b.stages[q].embedding);
    EXPECT_EQ(a.stages[q].first_layer, b.stages[q].first_layer);
    EXPECT_EQ(a.stages[q].layers, b.stages[q].layers);
    EXPECT_EQ(a.stages[q].mtp, b.stages[q].mtp);
    EXPECT_EQ(a.stages[q].head, b.stages[q].head);
  }
}

TEST(StageSplit, LayoutStringRoundTrip) {
  for (std::int64_t layers : {1, 2, 7, 32, 61, 94, 126})
    for (std::int64_t mtp : {0, 1})
      for (std::int64_t pp : {1, 2, 4, 7, 16})
        for (std::int64_t chunks : {1, 2, 4}) {
          const Model model = model_of(layers, mtp);
          const StageSplit split = split_or_fail(model, pp, chunks);
          SCOPED_TRACE(layout_string(split));
          expect_same(split, split_or_fail(model, pp, chunks, layout_string(split)));
        }
}

TEST(StageSplit, LayoutStringIsFoldedAsPeopleWriteIt) {
  for (const char* text : {"Et|(tt|)*30mL", "Et*3|(t*4|)*14ttmL", "Et|t|(tt|)*29tL", "Ett|(ttt|)*6ttL"}) {
    const std::vector<std::string> stages = expanded(text);
    std::int64_t layers = 0;
    std::int64_t mtp = 0;
    for (const std::string& stage : stages) {
      layers += std::count(stage.begin(), stage.end(), 't');
      mtp += std::count(stage.begin(), stage.end(), 'm');
    }
    const auto pp = static_cast<std::int64_t>(stages.size());
    const std::string folded = layout_string(split_or_fail(model_of(layers, mtp), pp, 1, text));
    EXPECT_EQ(folded, std::string(text) == "Ett|(ttt|)*6ttL" ? "Ett|(t*3|)*6ttL" : text);
  }
}

TEST(StageSplit, Contents) {
  EXPECT_EQ(contents_of({true, 0, 4, 0, false}), "E t*4");
  EXPECT_EQ(contents_of({false, 4, 1, 0, false}), "t");
  EXPECT_EQ(contents_of({false, 60, 0, 1, true}), "m L");
  EXPECT_EQ(contents_of({false, 58, 2, 2, true}), "t*2 m*2 L");
}

}  // namespace
}  // namespace stepcast
