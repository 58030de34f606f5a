// The cluster: one kind of GPU, nodes of them, and the network in tiers. From topologies/NAME.json and the
// scenario's `cluster` object. Bandwidths are per direction and per GPU, bytes/s; latencies in seconds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/problem.h"

namespace stepcast {

struct Gpu {
  std::string kind;               // h100-sxm
  double compute_capability = 0;  // 9.0
  std::int64_t sms = 0;
  double fp32_flops = 0;  // dense peaks; 0 = no such units
  double tf32_flops = 0;
  double bf16_flops = 0;
  double fp8_flops = 0;
  double fp4_flops = 0;
  std::int64_t hbm_bytes = 0;  // as the driver reports it to frameworks
  double hbm_bytes_per_s = 0;
  double tdp_w = 0;
};

// A tier joins `gpus` GPUs (0 = all). A transfer crosses the innermost tier that holds both ends.
struct Tier {
  std::string name;
  std::int64_t gpus = 0;
  double bytes_per_s = 0;  // one GPU's share, per direction
  double latency_s = 0;    // end to end, small message
};

struct Cluster {
  std::string topology;     // name of a shipped one, or absolute path
  std::string calibration;  // profile for this GPU kind
  Gpu gpu;
  std::int64_t gpus = 0;
  std::int64_t gpus_per_node = 0;
  std::int64_t nics_per_node = 0;
  double nic_gbit_per_s = 0;         // line rate of one NIC, as given
  double nic_bytes_per_s = 0;        // the same in bytes/s
  std::int64_t gpus_per_domain = 0;  // that share NVLink: divides a node, or is whole nodes
  double nvlink_bytes_per_s = 0;     // of one GPU
  double nvlink_latency_s = 0;
  double network_latency_s = 0;       // NIC to NIC under one switch
  double host_link_bytes_per_s = 0;   // PCIe or C2C, of one GPU
  bool in_network_reduction = false;  // NVLink SHARP inside a domain
  double node_max_w = 0;              // 0 = not known
  double usd_per_gpu_hour = 0;        // 0 = not known
  std::vector<Tier> tiers;  // innermost first: NVLink domain ("nvlink"), then the network; the last joins all

  double network_bytes_per_s_per_gpu() const {
    return nic_bytes_per_s * static_cast<double>(nics_per_node) / static_cast<double>(gpus_per_node);
  }
  std::int64_t nodes() const { return (gpus + gpus_per_node - 1) / gpus_per_node; }
};

// Reads topologies/NAME.json (or a path, relative to the folder `beside`), applies the `cluster` object of a
// scenario (topology, gpus, overrides) and appends every problem found; the cluster is meaningful only when
// none was. `prefix` is the pointer of the object in `file`. What overrides leave open follows them:
// - gpus_per_node: NICs per GPU stay what they were (rounded up), the NVLink domain of a board is the node,
//   switches join as many nodes as before;
// - gpus_per_domain of a rack (NVL72): the whole rack while the job fits in it, else what is placed in one.
Cluster read_cluster(const Json& object, const std::string& file, std::vector<Problem>& problems,
                     const std::filesystem::path& beside, const std::string& prefix = "/cluster");

// `cluster` as the result echoes it: topology, gpus and every overridable quantity with its value in force.
// Reading it gives the same cluster.
Json cluster_json(const Cluster& cluster);

}  // namespace stepcast
