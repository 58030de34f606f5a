#include "topology/topology.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/data_folder.h"
#include "base/json.h"
#include "base/problem.h"

namespace stepcast {
namespace {

namespace fs = std::filesystem;

const fs::path kBeside = "/";

Json cluster_object(const std::string& topology, std::int64_t gpus, const Json& overrides = Json::object()) {
  return {{"topology", topology}, {"gpus", gpus}, {"overrides", overrides}};
}

Cluster read(const Json& object, const fs::path& beside = kBeside) {
  std::vector<Problem> problems;
  const Cluster cluster = read_cluster(object, "test.json", problems, beside);
  throw_if_any(problems);
  return cluster;
}

Cluster read(const std::string& topology, std::int64_t gpus, const Json& overrides = Json::object()) {
  return read(cluster_object(topology, gpus, overrides));
}

std::vector<Problem> problems_of(const Json& object, const fs::path& beside = kBeside) {
  std::vector<Problem> problems;
  read_cluster(object, "test.json", problems, beside);
  return problems;
}

Problem only_problem(const Json& object) {
  const std::vector<Problem> problems = problems_of(object);
  EXPECT_EQ(problems.size(), 1u) << object.dump();
  return problems.empty() ? Problem{} : problems.front();
}

Problem only_problem(const Json& overrides, const char* topology) {
  return only_problem(cluster_object(topology, 16, overrides));
}

void expect_equal(const Cluster& a, const Cluster& b) {
  EXPECT_EQ(a.topology, b.topology);
  EXPECT_EQ(a.calibration, b.calibration);
  EXPECT_EQ(a.gpu.kind, b.gpu.kind);
  EXPECT_EQ(a.gpu.bf16_flops, b.gpu.bf16_flops);
  EXPECT_EQ(a.gpu.hbm_bytes, b.gpu.hbm_bytes);
  EXPECT_EQ(a.gpu.hbm_bytes_per_s, b.gpu.hbm_bytes_per_s);
  EXPECT_EQ(a.gpus, b.gpus);
  EXPECT_EQ(a.gpus_per_node, b.gpus_per_node);
  EXPECT_EQ(a.nics_per_node, b.nics_per_node);
  EXPECT_EQ(a.nic_gbit_per_s, b.nic_gbit_per_s);
  EXPECT_EQ(a.nic_bytes_per_s, b.nic_bytes_per_s);
  EXPECT_EQ(a.gpus_per_domain, b.gpus_per_domain);
  EXPECT_EQ(a.nvlink_bytes_per_s, b.nvlink_bytes_per_s);
  EXPECT_EQ(a.nvlink_latency_s, b.nvlink_latency_s);
  EXPECT_EQ(a.network_latency_s, b.network_latency_s);
  EXPECT_EQ(a.host_link_bytes_per_s, b.host_link_bytes_per_s);
  EXPECT_EQ(a.in_network_reduction, b.in_network_reduction);
  ASSERT_EQ(a.tiers.size(), b.tiers.size());
  for (std::size_t i = 0; i < a.tiers.size(); ++i) {
    EXPECT_EQ(a.tiers[i].name, b.tiers[i].name);
    EXPECT_EQ(a.tiers[i].gpus, b.tiers[i].gpus);
    EXPECT_EQ(a.tiers[i].bytes_per_s, b.tiers[i].bytes_per_s);
    EXPECT_EQ(a.tiers[i].latency_s, b.tiers[i].latency_s);
  }
}

class TemporaryFolder {
 public:
  TemporaryFolder() : path_(fs::temp_directory_path() / ("stepcast_topology_" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }
  fs::path write(const std::string& name, const Json& document) const {
    std::ofstream(path_ / name) << document.dump();
    return path_ / name;
  }

 private:
  fs::path path_;
};

Json shipped(const std::string& name) { return load_json(data_folder() / "topologies" / (name + ".json")); }

// ---- shipped topologies

struct Fact {
  const char* topology;
  const char* calibration;
  double compute_capability;
  std::int64_t sms;
  double tf32, bf16, fp8, fp4;  // TFLOP/s, dense
  double hbm_gb;                // 1e9 bytes
  double hbm_tb_per_s, tdp_w;
  std::int64_t gpus_per_node;
  double nic_gbit_per_s, nvlink_gb_per_s;
  bool in_network_reduction;
};

// Data sheets, device properties and reference architectures as named in the `sources` of the files.
constexpr Fact kFacts[] = {
    {"dgx-a100", "a100-sxm", 8.0, 108, 156, 312, 0, 0, 85.0, 2.039, 400, 8, 200, 300, false},
    {"dgx-a100-40g", "a100-sxm-40g", 8.0, 108, 156, 312, 0, 0, 42.3, 1.555, 400, 8, 200, 300, false},
    {"dgx-h100", "h100-sxm", 9.0, 132, 494.7, 989.4, 1978.9, 0, 85.03, 3.35, 700, 8, 400, 450, true},
    {"dgx-h800", "h800-sxm", 9.0, 132, 494.7, 989, 1978, 0, 84.94, 3.35, 700, 8, 400, 200, true},
    {"dgx-h200", "h200-sxm", 9.0, 132, 494.5, 989, 1979, 0, 150.11, 4.8, 700, 8, 400, 450, true},
    {"dgx-b200", "b200-sxm", 10.0, 148, 1125, 2250, 4500, 9000, 191.5, 7.67, 1000, 8, 400, 900, true},
    {"dgx-b300", "b300-sxm", 10.3, 148, 1125, 2250, 4500, 14000, 287.2, 7.75, 1100, 8, 800, 900, true},
    {"gb200-nvl72", "gb200", 10.0, 152, 1250, 2500, 5000, 10000, 197.9, 8.0, 1200, 4, 400, 900, true},
    {"gb300-nvl72", "gb300", 10.3, 152, 1250, 2500, 5000, 15000, 296.8, 8.0, 1400, 4, 800, 900, true},
};

class ShippedTopology : public testing::TestWithParam<Fact> {};

TEST_P(ShippedTopology, SaysWhatItsSourcesSay) {
  const Fact& fact = GetParam();
  const Cluster cluster = read(fact.topology, 64);
  EXPECT_EQ(cluster.calibration, fact.calibration);
  EXPECT_DOUBLE_EQ(cluster.gpu.compute_capability, fact.compute_capability);
  EXPECT_EQ(cluster.gpu.sms, fact.sms);
  EXPECT_DOUBLE_EQ(cluster.gpu.tf32_flops, fact.tf32 * 1e12);
  EXPECT_DOUBLE_EQ(cluster.gpu.bf16_flops, fact.bf16 * 1e12);
  EXPECT_DOUBLE_EQ(cluster.gpu.fp8_flops, fact.fp8 * 1e12);
  EXPECT_DOUBLE_EQ(cluster.gpu.fp4_flops, fact.fp4 * 1e12);
  EXPECT_NEAR(static_cast<double>(cluster.gpu.hbm_bytes), fact.hbm_gb * 1e9, 1e-3 * fact.hbm_gb * 1e9);
  EXPECT_NEAR(cluster.gpu.hbm_bytes_per_s, fact.hbm_tb_per_s * 1e12, 1e-3 * fact.hbm_tb_per_s * 1e12);
  EXPECT_DOUBLE_EQ(cluster.gpu.tdp_w, fact.tdp_w);
  EXPECT_EQ(cluster.gpus_per_node, fact.gpus_per_node);
  EXPECT_EQ(cluster.nics_per_node, fact.gpus_per_node);
  EXPECT_DOUBLE_EQ(cluster.network_bytes_per_s_per_gpu(), fact.nic_gbit_per_s * 1e9 / 8);
  EXPECT_DOUBLE_EQ(cluster.nvlink_bytes_per_s, fact.nvlink_gb_per_s * 1e9);
  EXPECT_EQ(cluster.in_network_reduction, fact.in_network_reduction);
}

INSTANTIATE_TEST_SUITE_P(Facts, ShippedTopology, testing::ValuesIn(kFacts), [](const auto& row) {
  std::string name = row.param.topology;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Topologies, AllNamesOfTheContractAreThereAndLoad) {
  const std::vector<std::string> names = data_names("topologies");
  for (const Fact& fact : kFacts)
    EXPECT_NE(std::find(names.begin(), names.end(), fact.topology), names.end());
  EXPECT_NE(std::find(names.begin(), names.end(), "host"), names.end());
  for (const std::string& name : names) {
    const Cluster cluster = read(name, 1);
    EXPECT_EQ(cluster.topology, name);
    EXPECT_GT(cluster.gpu.bf16_flops, 0) << "MFU is over this peak";
  }
}

// Pointers of all numbers and booleans of a document.
void collect_values(const Json& value, const std::string& pointer, std::vector<std::string>& pointers) {
  if (value.is_structured()) {
    for (const auto& [key, member] : value.items())
      collect_values(member, child_pointer(pointer, key), pointers);
  } else if (!value.is_string()) {
    pointers.push_back(pointer);
  }
}

bool has_source(const Json& sources, std::string pointer) {
  for (; !pointer.empty(); pointer.resize(pointer.rfind('/'))) {
    if (sources.contains(pointer)) return true;
  }
  return false;
}

TEST(Topologies, EveryValueHasASource) {
  for (const std::string& name : data_names("topologies")) {
    const Json document = shipped(name);
    std::vector<std::string> pointers;
    collect_values(document, "", pointers);
    EXPECT_GT(pointers.size(), 20u);
    for (const std::string& pointer : pointers)
      EXPECT_TRUE(has_source(document["sources"], pointer)) << name << " " << pointer;
    for (const auto& [pointer, text] : document["sources"].items())
      EXPECT_TRUE(document.contains(Json::json_pointer(pointer))) << name << " " << pointer;
  }
}

TEST(Topologies, SchemaDescribesEveryKey) {
  const Json schema = load_json(data_folder() / "scenarios" / "schemas" / "topology.schema.json");
  const auto check = [](const auto& self, const Json& node, const std::string& where) -> void {
    if (node.contains("items")) self(self, node["items"], where + "/items");
    if (!node.contains("properties")) return;
    EXPECT_EQ(node["additionalProperties"], false) << where;
    for (const auto& [key, member] : node["properties"].items()) {
      EXPECT_TRUE(member.contains("description")) << where << "/" << key;
      self(self, member, where + "/" + key);
    }
  };
  check(check, schema, "");
}

TEST(Topologies, HostIsTwoCoresWithoutTensorCores) {
  const Cluster host = read("host", 2);
  EXPECT_EQ(host.nodes(), 1);
  EXPECT_EQ(host.gpus_per_domain, 2);
  EXPECT_EQ(host.gpu.fp8_flops, 0);
  EXPECT_EQ(host.gpu.hbm_bytes, 8'000'000'000);
}

// ---- tiers

TEST(Tiers, FollowTheFabric) {
  const Cluster cluster = read("dgx-h100", 1024);
  ASSERT_EQ(cluster.tiers.size(), 4u);
  EXPECT_EQ(cluster.tiers[0].name, "nvlink");
  EXPECT_EQ(cluster.tiers[0].gpus, 8);
  EXPECT_DOUBLE_EQ(cluster.tiers[0].bytes_per_s, 450e9);
  EXPECT_EQ(cluster.tiers[1].gpus, 256);  // 32 nodes on a rail leaf
  EXPECT_EQ(cluster.tiers[2].gpus, 2048);
  EXPECT_EQ(cluster.tiers[3].gpus, 0);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_DOUBLE_EQ(cluster.tiers[i].bytes_per_s, 50e9);
}

TEST(Tiers, LatencyGrowsByTwoSwitches) {
  const Cluster cluster = read("dgx-h800", 2048);
  ASSERT_EQ(cluster.tiers.size(), 3u);
  EXPECT_DOUBLE_EQ(cluster.tiers[0].latency_s, 3.33e-6);
  EXPECT_DOUBLE_EQ(cluster.tiers[1].latency_s, 2.8e-6);  // same leaf
  EXPECT_DOUBLE_EQ(cluster.tiers[2].latency_s, 3.7e-6);  // across leaves
}

TEST(Tiers, NestAndEndWithAllGpus) {
  for (const std::string& name : data_names("topologies")) {
    for (const std::int64_t gpus : {1, 72, 73, 4096}) {
      const Cluster cluster = read(name, gpus);
      ASSERT_GE(cluster.tiers.size(), 2u);
      EXPECT_EQ(cluster.tiers.back().gpus, 0);
      for (std::size_t i = 1; i + 1 < cluster.tiers.size(); ++i) {
        EXPECT_GT(cluster.tiers[i].gpus, cluster.tiers[i - 1].gpus);
        EXPECT_EQ(cluster.tiers[i].gpus % cluster.gpus_per_domain, 0);
      }
    }
  }
}

TEST(Tiers, OversubscriptionDividesTheShare) {
  const TemporaryFolder folder;
  Json document = shipped("dgx-h100");
  document["network"]["tiers"][2]["oversubscription"] = 7;
  folder.write("pod.json", document);
  const Cluster cluster = read(cluster_object("pod.json", 4096), folder.path());
  EXPECT_DOUBLE_EQ(cluster.tiers[2].bytes_per_s, 50e9);
  EXPECT_DOUBLE_EQ(cluster.tiers[3].bytes_per_s, 50e9 / 7);
}

TEST(Tiers, ThoseInsideAnNvlinkDomainVanish) {
  const Cluster cluster = read("dgx-h100", 512, {{"gpus_per_domain", 256}});
  ASSERT_EQ(cluster.tiers.size(), 3u);
  EXPECT_EQ(cluster.tiers[0].gpus, 256);
  EXPECT_EQ(cluster.tiers[1].name, "spine");
}

// ---- overrides

TEST(Overrides, ChangeWhatTheyName) {
  const Cluster cluster = read("dgx-h100", 16,
                               {{"nics_per_node", 4},
                                {"nic_gbit_per_s", 200},
                                {"hbm_bytes", 100.5e9},
                                {"hbm_bytes_per_s", 2.4e12},
                                {"nvlink_bytes_per_s", 200e9},
                                {"nvlink_latency_s", 1e-6},
                                {"network_latency_s", 5e-6},
                                {"host_link_bytes_per_s", 25e9},
                                {"in_network_reduction", false}});
  EXPECT_DOUBLE_EQ(cluster.network_bytes_per_s_per_gpu(), 12.5e9);
  EXPECT_EQ(cluster.gpu.hbm_bytes, 100'500'000'000);
  EXPECT_DOUBLE_EQ(cluster.gpu.hbm_bytes_per_s, 2.4e12);
  EXPECT_DOUBLE_EQ(cluster.nvlink_bytes_per_s, 200e9);
  EXPECT_DOUBLE_EQ(cluster.host_link_bytes_per_s, 25e9);
  EXPECT_FALSE(cluster.in_network_reduction);
  EXPECT_DOUBLE_EQ(cluster.tiers[0].bytes_per_s, 200e9);
  EXPECT_DOUBLE_EQ(cluster.tiers[0].latency_s, 1e-6);
  EXPECT_DOUBLE_EQ(cluster.tiers[1].bytes_per_s, 12.5e9);
  EXPECT_DOUBLE_EQ(cluster.tiers[1].latency_s, 5e-6);
  EXPECT_DOUBLE_EQ(cluster.tiers[2].latency_s, 5.9e-6);
}

TEST(Overrides, SmallerNodeKeepsNicsPerGpuAndIsItsOwnDomain) {
  const Cluster cluster = read("dgx-h200", 32, {{"gpus_per_node", 4}});
  EXPECT_EQ(cluster.nodes(), 8);
  EXPECT_EQ(cluster.nics_per_node, 4);
  EXPECT_EQ(cluster.gpus_per_domain, 4);
  EXPECT_DOUBLE_EQ(cluster.network_bytes_per_s_per_gpu(), 50e9);
  EXPECT_EQ(cluster.tiers[1].gpus, 128);  // still 32 nodes on a leaf
}

TEST(Overrides, DomainCanDifferFromTheNode) {
  const Cluster cluster = read("dgx-h200", 32, {{"gpus_per_node", 4}, {"gpus_per_domain", 32}});
  EXPECT_EQ(cluster.gpus_per_node, 4);
  EXPECT_EQ(cluster.gpus_per_domain, 32);
  EXPECT_EQ(read("dgx-h100", 32, {{"gpus_per_domain", 4}}).gpus_per_domain, 4);
}

TEST(Overrides, NullMeansNotGiven) {
  expect_equal(read("dgx-h100", 64, {{"gpus_per_node", nullptr}, {"hbm_bytes", nullptr}}),
               read("dgx-h100", 64));
  expect_equal(read({{"topology", "dgx-h100"}, {"gpus", 64}, {"overrides", nullptr}}), read("dgx-h100", 64));
}

TEST(Nvl72, RackWhileTheJobFitsElse64) {
  for (const char* name : {"gb200-nvl72", "gb300-nvl72"}) {
    EXPECT_EQ(read(name, 8).gpus_per_domain, 72);
    EXPECT_EQ(read(name, 72).gpus_per_domain, 72);
    EXPECT_EQ(read(name, 73).gpus_per_domain, 64);
    EXPECT_EQ(read(name, 256).gpus_per_domain, 64);
    EXPECT_EQ(read(name, 256, {{"gpus_per_domain", 72}}).gpus_per_domain, 72);
    EXPECT_EQ(read(name, 256, {{"gpus_per_domain", 4}}).gpus_per_domain, 4);
    EXPECT_EQ(read(name, 256).nodes(), 64);
  }
}

TEST(Cluster, PartOfANodeCountsAsOne) {
  EXPECT_EQ(read("dgx-h100", 1).nodes(), 1);
  EXPECT_EQ(read("dgx-h100", 12).nodes(), 2);
  EXPECT_EQ(read("dgx-h100", 1 << 20).nodes(), 1 << 17);
}

// ---- echo

TEST(Echo, GivesTheSameClusterWhenReadAgain) {
  const Json awkward = {{"gpus_per_node", 4}, {"nic_gbit_per_s", 0.3}, {"hbm_bytes_per_s", 1.0 / 3e-12}};
  for (const std::string& name : data_names("topologies")) {
    for (const std::int64_t gpus : {1, 8, 72, 256}) {
      for (const Json& overrides : {Json::object(), awkward}) {
        const Cluster cluster = read(name, gpus, overrides);
        const Json echo = cluster_json(cluster);
        expect_equal(read(parse_json(echo.dump(), "echo")), cluster);
        EXPECT_EQ(cluster_json(read(echo)).dump(), echo.dump());
      }
    }
  }
}

TEST(Echo, HoldsEveryQuantityInForce) {
  const Json echo = cluster_json(read("gb200-nvl72", 256));
  EXPECT_EQ(echo["topology"], "gb200-nvl72");
  EXPECT_EQ(echo["gpus"], 256);
  EXPECT_EQ(echo["overrides"]["gpus_per_domain"], 64);
  EXPECT_EQ(echo["overrides"]["nic_gbit_per_s"], 400);
  // the scenario's schema must know every key of the echo
  const Json schema = load_json(data_folder() / "scenarios" / "schemas" / "scenario.schema.json");
  const Json& known = schema["properties"]["cluster"]["properties"]["overrides"]["properties"];
  EXPECT_EQ(known.size(), echo["overrides"].size());
  for (const auto& [key, value] : echo["overrides"].items()) EXPECT_TRUE(known.contains(key)) << key;
}

TEST(Echo, OfATopologyByPathRunsFromAnyFolder) {
  const TemporaryFolder folder;
  folder.write("mine.json", shipped("dgx-h100"));
  const Cluster cluster = read(cluster_object("mine.json", 16), folder.path());
  EXPECT_TRUE(fs::path(cluster.topology).is_absolute());
  expect_equal(read(cluster_json(cluster), "/usr"), cluster);
}

// ---- bad input

TEST(BadCluster, UnknownTopologyListsTheKnownOnes) {
  const Problem problem = only_problem(cluster_object("dgx-h101", 8));
  EXPECT_EQ(problem.file, "test.json");
  EXPECT_EQ(problem.pointer, "/cluster/topology");
  EXPECT_NE(problem.found.find("dgx-h101"), std::string::npos);
  for (const Fact& fact : kFacts) EXPECT_NE(problem.allowed.find(fact.topology), std::string::npos);
}

TEST(BadCluster, TopologyOfTheWrongKind) {
  for (const Json& value : {Json(7), Json::array(), Json(true), Json("")}) {
    EXPECT_EQ(only_problem({{"topology", value}, {"gpus", 8}}).pointer, "/cluster/topology");
  }
  EXPECT_EQ(only_problem(cluster_object("/tmp", 8)).pointer, "/cluster/topology");
  EXPECT_EQ(only_problem(cluster_object(std::string(100'000, 'x'), 8)).pointer, "/cluster/topology");
}

TEST(BadCluster, GpusMustBeACount) {
  for (const Json& gpus : {Json(0), Json(-8), Json(1.5), Json("8"), Json(1e30), Json((1 << 20) + 1),
                           Json(18446744073709551615u), Json::array({8})}) {
    EXPECT_EQ(only_problem({{"topology", "dgx-h100"}, {"gpus", gpus}}).pointer, "/cluster/gpus") << gpus;
  }
}

TEST(BadCluster, MissingKeysAreAllReported) {
  const std::vector<Problem> problems = problems_of(Json::object());
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_EQ(problems[0].pointer, "/cluster/gpus");
  EXPECT_EQ(problems[1].pointer, "/cluster/topology");
  EXPECT_EQ(only_problem(Json(3)).pointer, "/cluster");
  EXPECT_EQ(only_problem({{"topology", "dgx-h100"}, {"gpus", 8}, {"overrides", 3}}).pointer,
            "/cluster/overrides");
}

TEST(BadOverride, IsNamedWithItsRange) {
  const Problem problem = only_problem({{"nics_per_node", 0}}, "dgx-h100");
  EXPECT_EQ(to_string(problem), "test.json: /cluster/overrides/nics_per_node: 0; an integer from 1 to 1024");
}

TEST(BadOverride, ZeroNegativeHugeOrOfTheWrongType) {
  const std::vector<std::string> integers = {"gpus_per_node", "nics_per_node", "gpus_per_domain"};
  const std::vector<std::string> numbers = {"nic_gbit_per_s", "hbm_bytes", "hbm_bytes_per_s",
                                            "nvlink_bytes_per_s", "host_link_bytes_per_s"};
  const std::vector<std::string> latencies = {"nvlink_latency_s", "network_latency_s"};
  const auto expect_refused = [](const std::string& key, const Json& value) {
    const Problem problem = only_problem({{key, value}}, "dgx-h100");
    EXPECT_EQ(problem.pointer, "/cluster/overrides/" + key) << value;
    EXPECT_FALSE(problem.allowed.empty());
  };
  const std::vector<Json> bad = {Json(-1),   Json(1e300),    Json("4"),
                                 Json(true), Json::object(), Json::array({1})};
  for (const auto& keys : {integers, numbers, latencies}) {
    for (const std::string& key : keys) {
      for (const Json& value : bad) expect_refused(key, value);
    }
  }
  for (const std::string& key : integers) {
    expect_refused(key, 0);
    expect_refused(key, 2.5);
    expect_refused(key, 18446744073709551615u);
  }
  for (const std::string& key : numbers) expect_refused(key, 0);
  expect_refused("in_network_reduction", 1);
}

TEST(BadCluster, PointersStartAtThePrefix) {
  std::vector<Problem> problems;
  read_cluster(cluster_object("dgx-h101", 0, {{"nics_per_node", 1}, {"spam", 1}}), "runs.json", problems,
               kBeside, "/runs/3/scenario/cluster");
  ASSERT_EQ(problems.size(), 3u);
  for (const Problem& problem : problems)
    EXPECT_EQ(problem.pointer.rfind("/runs/3/scenario/cluster/", 0), 0u);
}

TEST(BadOverride, UnknownKeyNamesTheNearest) {
  const Problem problem = only_problem({{"nic_per_node", 8}}, "dgx-h100");
  EXPECT_EQ(problem.pointer, "/cluster/overrides/nic_per_node");
  EXPECT_NE(problem.allowed.find("did you mean \"nics_per_node\"?"), std::string::npos);
  EXPECT_NE(problem.allowed.find("in_network_reduction"), std::string::npos);
}

TEST(BadOverride, AllAreReportedAtOnce) {
  const Json overrides = {{"nics_per_node", 0}, {"hbm_bytes", -1}, {"spam", 1}};
  EXPECT_EQ(problems_of(cluster_object("dgx-h100", 0, overrides)).size(), 4u);
}

TEST(BadOverride, DomainMustBeWholeNodesOrAFractionOfOne) {
  EXPECT_EQ(only_problem({{"gpus_per_domain", 12}}, "dgx-h100").pointer,
            "/cluster/overrides/gpus_per_domain");
  EXPECT_EQ(only_problem({{"gpus_per_node", 16}}, "gb200-nvl72").pointer, "/cluster/overrides/gpus_per_node");
}

TEST(BadTopologyFile, IsNamedWithItsOwnPointer) {
  const TemporaryFolder folder;
  const auto problem_after = [&](const char* pointer, const Json& value) {
    Json document = shipped("dgx-h100");
    document[Json::json_pointer(pointer)] = value;
    const std::string file = folder.write("bad.json", document).string();
    const std::vector<Problem> problems = problems_of(cluster_object("bad.json", 8), folder.path());
    EXPECT_EQ(problems.size(), 1u) << pointer;
    EXPECT_EQ(problems.empty() ? "" : problems[0].file, file) << pointer;
    return problems.empty() ? "" : problems[0].pointer;
  };
  EXPECT_EQ(problem_after("/gpu/bf16_flops", -1), "/gpu/bf16_flops");
  EXPECT_EQ(problem_after("/gpu/bf16_flops", nullptr), "/gpu/bf16_flops");
  EXPECT_EQ(problem_after("/gpu/tdp_w", 0), "/gpu/tdp_w");
  EXPECT_EQ(problem_after("/node/gpu", 8), "/node/gpu");
  EXPECT_EQ(problem_after("/schema", "stepcast/scenario/1"), "/schema");
  EXPECT_EQ(problem_after("/nvlink/gpus_per_domain", 12), "/nvlink/gpus_per_domain");
  EXPECT_EQ(problem_after("/network/tiers", Json::array()), "/network/tiers");
  EXPECT_EQ(problem_after("/network/tiers/0/gpus", 4096), "/network/tiers/1/gpus");
  EXPECT_EQ(problem_after("/network/tiers/2/gpus", 4096), "/network/tiers/2/gpus");
  EXPECT_EQ(problem_after("/network/tiers/1/oversubscription", 0.5), "/network/tiers/1/oversubscription");
  EXPECT_EQ(problem_after("/sources/~1gpu~1sms", 3), "/sources/~1gpu~1sms");
}

TEST(TopologyFile, NullMeansNotGiven) {
  const TemporaryFolder folder;
  Json document = shipped("gb200-nvl72");
  document["nvlink"]["placed_gpus_per_domain"] = nullptr;
  document["price"] = nullptr;
  document["sources"] = nullptr;
  folder.write("nulls.json", document);
  const Cluster cluster = read(cluster_object("nulls.json", 144), folder.path());
  EXPECT_EQ(cluster.gpus_per_domain, 72);
  EXPECT_EQ(cluster.usd_per_gpu_hour, 0);
}

TEST(BadTopologyFile, ThatIsNoJsonObject) {
  const TemporaryFolder folder;
  for (const char* text : {"", "[1, 2]", "{", "3"}) {
    std::ofstream(folder.path() / "bad.json") << text;
    EXPECT_FALSE(problems_of(cluster_object("bad.json", 8), folder.path()).empty()) << text;
  }
}

}  // namespace
}  // namespace stepcast
