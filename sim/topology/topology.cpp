#include "topology/topology.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "base/data_folder.h"
#include "base/json.h"
#include "base/schema.h"
#include "base/units.h"

namespace stepcast {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kMaxGpus = 1 << 20;
constexpr double kBytesPerGbit = 1e9 / 8;
constexpr int kSwitchesPerTier = 2;  // the next tier out adds one switch on the way up and one down

// An overridable quantity: its key under `overrides` and its place in a topology document.
struct Override {
  const char* key;
  const char* place;
};

constexpr std::array kOverrides = {
    Override{"gpus_per_node", "/node/gpus"},
    Override{"nics_per_node", "/node/nics"},
    Override{"nic_gbit_per_s", "/node/nic_gbit_per_s"},
    Override{"hbm_bytes", "/gpu/hbm_bytes"},
    Override{"hbm_bytes_per_s", "/gpu/hbm_bytes_per_s"},
    Override{"nvlink_bytes_per_s", "/nvlink/bytes_per_s"},
    Override{"nvlink_latency_s", "/nvlink/latency_s"},
    Override{"gpus_per_domain", "/nvlink/gpus_per_domain"},
    Override{"network_latency_s", "/network/latency_s"},
    Override{"host_link_bytes_per_s", "/node/host_link_bytes_per_s"},
    Override{"in_network_reduction", "/nvlink/in_network_reduction"},
};

bool given(const Json& object, const std::string& key) {
  return object.contains(key) && !object[key].is_null();
}

std::int64_t integer(const Json& document, const char* place) {
  return document.at(Json::json_pointer(place)).get<std::int64_t>();
}

double number(const Json& document, const char* place) {
  const Json::json_pointer pointer(place);
  return document.contains(pointer) ? document.at(pointer).get<double>() : 0;  // absent = none, or not known
}

// ---- the topology file

void check_tiers(const Json& topology, const std::string& file, std::vector<Problem>& problems) {
  const Json& tiers = topology["network"]["tiers"];
  if (tiers.empty()) problems.push_back({file, "/network/tiers", "[]", "at least one tier"});
  std::int64_t inner = 0;
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    const std::int64_t gpus = tiers[i]["gpus"];
    const bool last = i + 1 == tiers.size();
    if (last ? gpus == 0 : gpus > inner) {
      inner = gpus;
      continue;
    }
    problems.push_back({file, fmt::format("/network/tiers/{}/gpus", i), fmt::format("{}", gpus),
                        last ? "0 (all GPUs) in the last tier" : fmt::format("more than {}", inner)});
  }
}

bool nest(std::int64_t a, std::int64_t b) { return a % b == 0 || b % a == 0; }

void check_domain(const Json& topology, const std::string& file, std::vector<Problem>& problems) {
  const std::int64_t node = integer(topology, "/node/gpus");
  for (const char* place : {"/nvlink/gpus_per_domain", "/nvlink/placed_gpus_per_domain"}) {
    if (!topology.contains(Json::json_pointer(place))) continue;
    const std::int64_t domain = integer(topology, place);
    if (nest(domain, node)) continue;
    problems.push_back({file, place, fmt::format("{} GPUs share NVLink and {} a node", domain, node),
                        "whole nodes, or a whole fraction of one"});
  }
}

// With defaults and without nulls; null when there was a problem.
Json load_topology(const fs::path& path, std::vector<Problem>& problems) {
  const std::size_t before = problems.size();
  Json topology = load_json(path);
  check_schema(topology, "topology", path.string(), "", problems);
  if (problems.size() > before) return {};
  topology = with_defaults(topology, "topology");
  check_tiers(topology, path.string(), problems);
  check_domain(topology, path.string(), problems);
  return problems.size() > before ? Json() : topology;
}

std::optional<fs::path> find_topology(const Json& object, const std::string& file, const std::string& prefix,
                                      const fs::path& beside, std::vector<Problem>& problems) {
  const std::string pointer = prefix + "/topology";
  const std::string allowed = fmt::format("one of {}, or a path", fmt::join(data_names("topologies"), ", "));
  if (!given(object, "topology")) {
    problems.push_back({file, pointer, "missing", allowed});
  } else if (!object["topology"].is_string()) {
    problems.push_back({file, pointer, text_of(object["topology"]), allowed});
  } else {
    return resolve_data(object["topology"], "topologies", beside, file, pointer);
  }
  return {};
}

// A shipped topology keeps its name; a path is made absolute, so that an echo means the same anywhere.
std::string lasting_name(const fs::path& path) {
  std::error_code code;
  if (fs::equivalent(path.parent_path(), data_folder() / "topologies", code)) return path.stem().string();
  const fs::path whole = fs::weakly_canonical(path, code);
  return (code ? path : whole).string();
}

// ---- the cluster object

std::int64_t read_gpus(const Json& object, const std::string& file, const std::string& prefix,
                       std::vector<Problem>& problems) {
  const std::string allowed = fmt::format("an integer from 1 to {}", kMaxGpus);
  if (!given(object, "gpus")) {
    problems.push_back({file, prefix + "/gpus", "missing", allowed});
    return 1;
  }
  const Json& gpus = object["gpus"];
  if (gpus.is_number_integer() && gpus.get<double>() >= 1 && gpus.get<double>() <= kMaxGpus) return gpus;
  problems.push_back({file, prefix + "/gpus", text_of(gpus), allowed});
  return 1;
}

void check_override_keys(const Json& overrides, const std::string& file, const std::string& prefix,
                         std::vector<Problem>& problems) {
  std::vector<std::string> known;
  for (const Override& override : kOverrides) known.emplace_back(override.key);
  for (const auto& [key, value] : overrides.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string near = nearest_name(key, known);
    const std::string hint = near.empty() ? "" : fmt::format("did you mean \"{}\"? ", near);
    problems.push_back({file, child_pointer(prefix, key), "unknown key",
                        fmt::format("{}Known keys: {}", hint, fmt::join(known, ", "))});
  }
}

Json read_overrides(const Json& object, const std::string& file, const std::string& prefix,
                    std::vector<Problem>& problems) {
  if (!given(object, "overrides")) return Json::object();
  const Json& overrides = object["overrides"];
  if (!overrides.is_object()) {
    problems.push_back({file, prefix, text_of(overrides), "an object"});
    return Json::object();
  }
  check_override_keys(overrides, file, prefix, problems);
  return overrides;
}

// The topology with the overrides in place. A value that its schema refuses is reported at the override.
Json apply_overrides(Json topology, const Json& overrides, const std::string& file, const std::string& prefix,
                     std::vector<Problem>& problems) {
  for (const auto& [key, place] : kOverrides) {
    if (given(overrides, key)) topology[Json::json_pointer(place)] = overrides[key];
  }
  std::vector<Problem> found;
  check_schema(topology, "topology", file, "", found);
  for (Problem& problem : found) {
    const auto override = std::find_if(kOverrides.begin(), kOverrides.end(),
                                       [&](const Override& one) { return problem.pointer == one.place; });
    if (override != kOverrides.end()) problem.pointer = child_pointer(prefix, override->key);
    problems.push_back(std::move(problem));
  }
  return topology;
}

bool domain_is_node(const Json& topology) {
  return integer(topology, "/nvlink/gpus_per_domain") == integer(topology, "/node/gpus");
}

// What the overrides leave open; see the header.
void follow_overrides(Json& topology, const Json& shipped, const Json& overrides, std::int64_t gpus) {
  const std::int64_t node = integer(topology, "/node/gpus");
  Json& domain = topology["nvlink"]["gpus_per_domain"];
  if (!given(overrides, "nics_per_node"))
    topology["node"]["nics"] =
        ceil_div(integer(shipped, "/node/nics") * node, integer(shipped, "/node/gpus"));
  if (given(overrides, "gpus_per_domain")) return;
  if (domain_is_node(shipped)) domain = node;
  const auto placed = topology["nvlink"].find("placed_gpus_per_domain");
  if (placed != topology["nvlink"].end() && gpus > domain.get<std::int64_t>()) domain = *placed;
}

void check_nesting(const Cluster& cluster, const Json& overrides, const std::string& file,
                   const std::string& prefix, std::vector<Problem>& problems) {
  if (nest(cluster.gpus_per_domain, cluster.gpus_per_node)) return;
  const char* key = given(overrides, "gpus_per_domain") ? "gpus_per_domain" : "gpus_per_node";
  problems.push_back(
      {file, child_pointer(prefix, key),
       fmt::format("{} GPUs share NVLink and {} a node", cluster.gpus_per_domain, cluster.gpus_per_node),
       "gpus_per_domain must be whole nodes, or a whole fraction of one"});
}

// ---- the result

Gpu gpu_of(const Json& topology) {
  Gpu gpu;
  gpu.kind = topology["gpu"]["kind"];
  gpu.compute_capability = number(topology, "/gpu/compute_capability");
  gpu.sms = integer(topology, "/gpu/sms");
  gpu.fp32_flops = number(topology, "/gpu/fp32_flops");
  gpu.tf32_flops = number(topology, "/gpu/tf32_flops");
  gpu.bf16_flops = number(topology, "/gpu/bf16_flops");
  gpu.fp8_flops = number(topology, "/gpu/fp8_flops");
  gpu.fp4_flops = number(topology, "/gpu/fp4_flops");
  gpu.hbm_bytes = std::llround(number(topology, "/gpu/hbm_bytes"));
  gpu.hbm_bytes_per_s = number(topology, "/gpu/hbm_bytes_per_s");
  gpu.tdp_w = number(topology, "/gpu/tdp_w");
  return gpu;
}

void fill_cluster(Cluster& cluster, const Json& topology) {
  cluster.calibration = topology["calibration"];
  cluster.gpu = gpu_of(topology);
  cluster.gpus_per_node = integer(topology, "/node/gpus");
  cluster.nics_per_node = integer(topology, "/node/nics");
  cluster.nic_gbit_per_s = number(topology, "/node/nic_gbit_per_s");
  cluster.nic_bytes_per_s = cluster.nic_gbit_per_s * kBytesPerGbit;
  cluster.gpus_per_domain = integer(topology, "/nvlink/gpus_per_domain");
  cluster.nvlink_bytes_per_s = number(topology, "/nvlink/bytes_per_s");
  cluster.nvlink_latency_s = number(topology, "/nvlink/latency_s");
  cluster.network_latency_s = number(topology, "/network/latency_s");
  cluster.host_link_bytes_per_s = number(topology, "/node/host_link_bytes_per_s");
  cluster.in_network_reduction = topology["nvlink"]["in_network_reduction"];
  cluster.node_max_w = number(topology, "/node/max_w");
  cluster.usd_per_gpu_hour = number(topology, "/price/usd_per_gpu_hour");
}

// GPUs under a switch tier of the file. A switch joins nodes, so on boards it follows the size of a node.
// Rounded down to whole domains, so that tiers nest.
std::int64_t tier_gpus(std::int64_t gpus, const Cluster& cluster, const Json& shipped) {
  if (domain_is_node(shipped)) gpus = gpus * cluster.gpus_per_node / integer(shipped, "/node/gpus");
  return gpus - gpus % std::max(cluster.gpus_per_domain, cluster.gpus_per_node);
}

std::vector<Tier> tiers_of(const Cluster& cluster, const Json& shipped) {
  std::vector<Tier> tiers = {
      {"nvlink", cluster.gpus_per_domain, cluster.nvlink_bytes_per_s, cluster.nvlink_latency_s}};
  const double added_s = kSwitchesPerTier * number(shipped, "/network/switch_latency_s");
  double latency_s = cluster.network_latency_s;
  for (const Json& switches : shipped["network"]["tiers"]) {
    const std::int64_t all = switches["gpus"];
    const std::int64_t gpus = tier_gpus(all, cluster, shipped);
    const double share = cluster.network_bytes_per_s_per_gpu() / switches.value("oversubscription", 1.0);
    if (all == 0 || gpus > tiers.back().gpus) tiers.push_back({switches["name"], gpus, share, latency_s});
    latency_s += added_s;
  }
  return tiers;
}

}  // namespace

Cluster read_cluster(const Json& object, const std::string& file, std::vector<Problem>& problems,
                     const fs::path& beside, const std::string& prefix) {
  Cluster cluster;
  if (!object.is_object()) {
    problems.push_back({file, prefix, text_of(object), "an object with topology and gpus"});
    return cluster;
  }
  const std::size_t before = problems.size();
  const std::string pointer = prefix + "/overrides";
  cluster.gpus = read_gpus(object, file, prefix, problems);
  const Json overrides = read_overrides(object, file, pointer, problems);
  Json shipped;
  try {
    if (const auto path = find_topology(object, file, prefix, beside, problems)) {
      cluster.topology = lasting_name(*path);
      shipped = load_topology(*path, problems);
    }
  } catch (const InputError& error) {
    problems.insert(problems.end(), error.problems().begin(), error.problems().end());
  }
  if (shipped.is_null()) return cluster;
  Json topology = apply_overrides(shipped, overrides, file, pointer, problems);
  if (problems.size() > before) return cluster;
  follow_overrides(topology, shipped, overrides, cluster.gpus);
  fill_cluster(cluster, topology);
  check_nesting(cluster, overrides, file, pointer, problems);
  cluster.tiers = tiers_of(cluster, shipped);
  return cluster;
}

Json cluster_json(const Cluster& cluster) {
  const Json overrides = {
      {"gpus_per_node", cluster.gpus_per_node},
      {"nics_per_node", cluster.nics_per_node},
      {"nic_gbit_per_s", cluster.nic_gbit_per_s},
      {"hbm_bytes", cluster.gpu.hbm_bytes},
      {"hbm_bytes_per_s", cluster.gpu.hbm_bytes_per_s},
      {"nvlink_bytes_per_s", cluster.nvlink_bytes_per_s},
      {"nvlink_latency_s", cluster.nvlink_latency_s},
      {"gpus_per_domain", cluster.gpus_per_domain},
      {"network_latency_s", cluster.network_latency_s},
      {"host_link_bytes_per_s", cluster.host_link_bytes_per_s},
      {"in_network_reduction", cluster.in_network_reduction},
  };
  return {{"topology", cluster.topology}, {"gpus", cluster.gpus}, {"overrides", overrides}};
}

}  // namespace stepcast
