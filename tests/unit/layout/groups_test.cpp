// Process groups of the two rank grids, and where they lie.
#include "layout/groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"

namespace stepcast {
namespace {

using Ranks = std::vector<std::int64_t>;

constexpr Group kPartitions[] = {Group::kTp,   Group::kCp,     Group::kTpCp, Group::kDp,
                                 Group::kDpCp, Group::kTpDpCp, Group::kPp,   Group::kEtp,
                                 Group::kEp,   Group::kEtpEp,  Group::kEdp,  Group::kWorld};

Grid grid(std::int64_t world, std::int64_t tp, std::int64_t cp, std::int64_t pp, std::int64_t etp = 1,
          std::int64_t ep = 1) {
  Grid g;
  g.tp = tp;
  g.cp = cp;
  g.pp = pp;
  g.dp = world / (tp * cp * pp);
  g.etp = etp;
  g.ep = ep;
  g.edp = world / (etp * ep * pp);
  return g;
}

std::set<Ranks> all_groups(const Grid& g, Group kind) {
  std::set<Ranks> groups;
  for (std::int64_t rank = 0; rank < g.world(); ++rank) groups.insert(group_of(g, kind, rank));
  return groups;
}

Cluster cluster_of(std::int64_t gpus, std::int64_t per_node, std::int64_t per_domain) {
  Cluster cluster;
  cluster.gpus = gpus;
  cluster.gpus_per_node = per_node;
  cluster.gpus_per_domain = per_domain;
  return cluster;
}

std::vector<Grid> some_grids() {
  std::vector<Grid> grids;
  for (std::int64_t tp : {1, 2, 4})
    for (std::int64_t cp : {1, 2})
      for (std::int64_t pp : {1, 2, 3})
        for (std::int64_t etp : {1, 2})
          for (std::int64_t ep : {1, 4, 8}) grids.push_back(grid(96, tp, cp, pp, etp, ep));
  return grids;
}

// ---- oracles (domain_oracles.json)

TEST(Groups, OracleW16T2P4) {  // groups_w16_t2_p4
  const Grid g = grid(16, 2, 1, 4);
  EXPECT_EQ(group_of(g, Group::kTp, 0), (Ranks{0, 1}));
  EXPECT_EQ(group_of(g, Group::kDp, 0), (Ranks{0, 2}));
  EXPECT_EQ(group_of(g, Group::kDp, 1), (Ranks{1, 3}));
  EXPECT_EQ(group_of(g, Group::kPp, 0), (Ranks{0, 4, 8, 12}));
  EXPECT_EQ(all_groups(g, Group::kDp).size(), 8U);
}

TEST(Groups, OracleW64Folding) {  // groups_w64_folding
  const Grid g = grid(64, 2, 2, 2, 1, 8);
  EXPECT_EQ(g.dp, 8);
  EXPECT_EQ(g.edp, 4);
  EXPECT_EQ(group_of(g, Group::kCp, 0), (Ranks{0, 2}));
  EXPECT_EQ(group_of(g, Group::kDp, 0), (Ranks{0, 4, 8, 12, 16, 20, 24, 28}));
  EXPECT_EQ(group_of(g, Group::kEp, 0), (Ranks{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(group_of(g, Group::kEdp, 0), (Ranks{0, 8, 16, 24}));
  EXPECT_EQ(group_of(g, Group::kPp, 0), (Ranks{0, 32}));
}

TEST(Groups, OracleCpW8T4C2) {  // groups_cp_w8_t4_c2
  EXPECT_EQ(all_groups(grid(8, 4, 2, 1), Group::kCp), (std::set<Ranks>{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(Groups, OracleTpPpDpOrder) {  // groups_tp_pp_dp_order
  Grid g = grid(8, 2, 1, 2);
  g.tp_pp_dp = true;
  EXPECT_EQ(group_of(g, Group::kPp, 0), (Ranks{0, 2}));
  EXPECT_EQ(group_of(g, Group::kDp, 0), (Ranks{0, 4}));
}

TEST(Groups, OracleHierarchicalCp) {  // hierarchical_cp_2_2_4_of_16
  Ranks group(16);
  for (std::int64_t i = 0; i < 16; ++i) group[static_cast<std::size_t>(i)] = i;
  const auto levels = hierarchical_groups(group, {2, 2, 4}, 0);
  EXPECT_EQ(levels, (std::vector<Ranks>{{0, 1}, {0, 2}, {0, 4, 8, 12}}));
  const auto strided = hierarchical_groups({3, 7, 11, 15}, {2, 2}, 11);
  EXPECT_EQ(strided, (std::vector<Ranks>{{11, 15}, {3, 11}}));
}

// Every oracle of the file, by what it asks for: "pp_group_of_0", "cp_groups", "level2_first", ...
Json answer(const Grid& g, const Json& inputs, const std::string& key) {
  static const std::map<std::string, Group> kinds = {{"tp", Group::kTp}, {"cp", Group::kCp},
                                                     {"dp", Group::kDp}, {"pp", Group::kPp},
                                                     {"ep", Group::kEp}, {"edp", Group::kEdp}};
  if (key == "dp") return g.dp;
  if (key == "edp") return g.edp;
  if (key == "num_dp_groups") return all_groups(g, Group::kDp).size();
  if (key == "tp_groups_first") return group_of(g, Group::kTp, 0);
  if (key == "cp_groups") return all_groups(g, Group::kCp);
  if (key.rfind("level", 0) == 0) {
    const auto sizes = inputs["sizes"].get<Ranks>();
    Ranks group(static_cast<std::size_t>(
        std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>())));
    std::iota(group.begin(), group.end(), 0);
    return hierarchical_groups(group, sizes, 0)[static_cast<std::size_t>(key[5] - '1')];
  }
  const std::size_t at = key.find("_group_of_");
  if (at == std::string::npos || !kinds.contains(key.substr(0, at))) return {};
  return group_of(g, kinds.at(key.substr(0, at)), std::stoll(key.substr(at + 10)));
}

TEST(GroupOracles, HaveTheirValues) {
  const char* folder = std::getenv("STEPCAST_DATA");
  if (folder == nullptr) GTEST_SKIP() << "STEPCAST_DATA is not set";
  const Json file = load_json(std::filesystem::path(folder) / "domain_oracles.json");
  for (const Json& entry : file["oracles"]) {
    if (entry["category"] != "groups") continue;
    const Json& in = entry["inputs"];
    const auto size = [&](const char* key) { return in.value(key, std::int64_t{1}); };
    Grid g = grid(size("W"), size("tp"), size("cp"), size("pp"), in.value("etp", size("tp")), size("ep"));
    g.tp_pp_dp = in.value("use_tp_pp_dp_mapping", false);
    for (const auto& [key, expected] : entry["expected"].items())
      EXPECT_EQ(answer(g, in, key), expected) << entry["id"] << " " << key;
  }
}

// ---- properties

TEST(Groups, EachRankIsInExactlyOneGroupOfAKind) {
  for (Grid g : some_grids())
    for (const bool order : {false, true}) {
      g.tp_pp_dp = order;
      for (const Group kind : kPartitions) {
        SCOPED_TRACE(name_of(kind));
        std::vector<int> seen(static_cast<std::size_t>(g.world()), 0);
        for (const Ranks& group : all_groups(g, kind)) {
          ASSERT_TRUE(std::is_sorted(group.begin(), group.end()));
          for (const std::int64_t rank : group) {
            ASSERT_GE(rank, 0);
            ASSERT_LT(rank, g.world());
            ++seen[static_cast<std::size_t>(rank)];
          }
        }
        ASSERT_EQ(std::count(seen.begin(), seen.end(), 1), g.world());
      }
    }
}

TEST(Groups, SizesAreThoseOfTheAxes) {
  for (const Grid& g : some_grids()) {
    const auto size = [&](Group kind) { return static_cast<std::int64_t>(group_of(g, kind, 5).size()); };
    EXPECT_EQ(size(Group::kTpCp), g.tp * g.cp);
    EXPECT_EQ(size(Group::kDpCp), g.dp * g.cp);
    EXPECT_EQ(size(Group::kTpDpCp), g.tp * g.dp * g.cp);
    EXPECT_EQ(size(Group::kPp), g.pp);
    EXPECT_EQ(size(Group::kEtpEp), g.etp * g.ep);
    EXPECT_EQ(size(Group::kEdp), g.edp);
    EXPECT_EQ(size(Group::kWorld), g.world());
  }
}

// The ranks of a PP group agree on every axis of the expert grid too: they take the same place in their
// groups.
TEST(Groups, BothGridsGiveTheSamePpGroups) {
  for (const Grid& g : some_grids())
    for (const Ranks& pipeline : all_groups(g, Group::kPp))
      for (const Group kind : {Group::kEtp, Group::kEp, Group::kEtpEp, Group::kEdp}) {
        std::set<std::int64_t> places;
        for (const std::int64_t rank : pipeline) {
          const Ranks group = group_of(g, kind, rank);
          places.insert(std::find(group.begin(), group.end(), rank) - group.begin());
        }
        ASSERT_EQ(places.size(), 1U);
      }
}

// The expert groups of a rank stay inside its pipeline stage.
TEST(Groups, ExpertGroupsStayInTheStage) {
  for (const Grid& g : some_grids())
    for (std::int64_t rank = 0; rank < g.world(); rank += 7) {
      const Ranks stage = group_of(g, Group::kTpDpCp, rank);
      for (const Group kind : {Group::kEtpEp, Group::kEdp}) {
        const Ranks group = group_of(g, kind, rank);
        ASSERT_TRUE(std::includes(stage.begin(), stage.end(), group.begin(), group.end()));
      }
    }
}

TEST(Groups, EmbeddingJoinsTheEndsOfAPipeline) {
  Grid g = grid(16, 2, 1, 4);
  EXPECT_EQ(group_of(g, Group::kEmbedding, 0), (Ranks{0, 12}));
  EXPECT_EQ(group_of(g, Group::kEmbedding, 13), (Ranks{1, 13}));
  EXPECT_TRUE(group_of(g, Group::kEmbedding, 4).empty());
  g.v_shaped = true;
  EXPECT_EQ(group_of(g, Group::kEmbedding, 0), (Ranks{0}));
  EXPECT_TRUE(group_of(g, Group::kEmbedding, 12).empty());
  EXPECT_EQ(group_of(grid(8, 2, 1, 1), Group::kEmbedding, 3), (Ranks{3}));
}

TEST(Groups, GridOfALayout) {
  Layout layout;
  layout.tp = 2;
  layout.pp = 2;
  layout.dp = 4;
  layout.ep = 8;
  layout.edp = 1;
  layout.schedule = "zb-v";
  const Grid g = grid_of(layout);
  EXPECT_EQ(g.world(), 16);
  EXPECT_EQ(group_of(g, Group::kEp, 9), (Ranks{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_TRUE(g.v_shaped);
}

// ---- where they lie

TEST(Span, CountsNodesAndDomains) {
  const Grid g = grid(1024, 2, 1, 8, 1, 64);
  const Cluster h100 = cluster_of(1024, 8, 8);
  const Span tp = span_of(g, Group::kTp, 0, h100);
  EXPECT_EQ(tp.size, 2);
  EXPECT_EQ(tp.nodes, 1);
  EXPECT_EQ(tp.ranks_per_domain, 2);
  const Span ep = span_of(g, Group::kEp, 0, h100);
  EXPECT_EQ(ep.nodes, 8);
  EXPECT_EQ(ep.domains, 8);
  EXPECT_EQ(ep.ranks_per_node, 8);
  const Span dp = span_of(g, Group::kDp, 0, h100);  // stride 2: four in each of 16 nodes
  EXPECT_EQ(dp.size, 64);
  EXPECT_EQ(dp.nodes, 16);
  EXPECT_EQ(dp.ranks_per_node, 4);
  const Span pp = span_of(g, Group::kPp, 0, h100);
  EXPECT_EQ(pp.nodes, 8);
  EXPECT_EQ(pp.ranks_per_domain, 1);
}

TEST(Span, NvlinkDomainsMayHoldManyNodes) {
  const Span ep = span_of(grid(256, 1, 1, 4, 1, 64), Group::kEp, 70, cluster_of(256, 4, 64));
  EXPECT_EQ(ep.nodes, 16);
  EXPECT_EQ(ep.domains, 1);
  EXPECT_EQ(ep.ranks_per_node, 4);
  EXPECT_EQ(ep.ranks_per_domain, 64);
}

TEST(Span, UnevenDomainsGiveTheLargest) {
  const Span world = span_of(grid(100, 1, 1, 1), Group::kWorld, 0, cluster_of(100, 8, 72));
  EXPECT_EQ(world.size, 100);
  EXPECT_EQ(world.nodes, 13);
  EXPECT_EQ(world.domains, 2);
  EXPECT_EQ(world.ranks_per_domain, 72);
  EXPECT_EQ(span_of(Ranks{}, cluster_of(8, 8, 8)).nodes, 0);
}

}  // namespace
}  // namespace stepcast
