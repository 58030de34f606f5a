// Kernel speeds of one GPU kind: calib/profiles/NAME.json (schema stepcast/profile/1). Rates in FLOP/s and
// bytes/s, times in seconds. What each number rests on (fitted, published, scaled, datasheet) stays in the
// file.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "cost/op.h"

namespace stepcast {

struct GemmRate {
  bool present = false;  // false = no such tensor cores on this GPU
  double flops_per_s = 0;
  double k_half = 0;  // depth K at which half the rate is reached
  double launch_s = 0;
  double hbm_bytes_per_s = 0;
  double tile_m = 128;
  double tile_n = 128;
  double wave_exponent = 0;  // 0 = no loss to partial tiles and waves, 1 = all of it
  double operand_bytes = 2;
  double result_bytes = 2;
  double dgrad_factor = 1;
  double wgrad_factor = 1;
  std::string status;  // fitted-public, published, scaled, datasheet
};

struct AttentionRate {
  double fwd_flops_per_s = 0;
  double seq_half = 0;
  double launch_s = 0;
  double bwd_rate_factor = 1;
  std::string status;
};

struct LinkLine {  // one protocol of NCCL: time = base + steps per_step + bytes on the bus / bus rate
  double base_s = 0;
  double per_step_s = 0;
  double bus_bytes_per_s = 0;
  double min_gpus = 2;
};

// DeepEP: limited by the link, or by what its SMs copy: t = launch + max(W / (sm rate x SMs), bytes / link
// rate), with b bytes a token, r distinct destination ranks (own rank included), W = tokens ((r +
// token_copies) b + r message_bytes). HybridEP has no SM limit here (its rates were measured at its default
// SMs).
struct DispatchRate {
  double launch_s = 0;
  double nvlink_bytes_per_s = 0;
  double nvlink_large_domain_bytes_per_s = 0;
  double token_copies = 0;
  double message_bytes = 0;
  double sm_bytes_per_s = 0;  // of one SM; 0 = no limit
  double internode_sm_bytes_per_s = 0;
  double internode_launch_s = 0;
  double nic_efficiency = 0;
  double notify_s = 0;  // exchange of the layout before the first transfer
};

struct Communication {
  std::vector<LinkLine> all_reduce, all_gather, reduce_scatter, all_to_all,
      send_recv;  // inside an NVLink domain
  double nic_efficiency = 0.9;
  double rdma_latency_s = 0;
  double switch_hop_s = 0;
  double ring_base_s = 0;  // NCCL's own model constants, Simple protocol
  double ring_hop_s = 0;
  double tree_base_s = 0;
  double tree_hop_s = 0;
  double all_to_all_peer_s = 0;
  double deepep_sms = 20;
  DispatchRate deepep_dispatch, deepep_combine, hybridep_dispatch, hybridep_combine;
};

struct Profile {
  std::string name;
  std::string kind;    // measured, fitted-public, datasheet
  std::string sha256;  // of the file
  double sms = 0;
  double nvlink_bytes_per_s = 0;  // of the measured GPUs, per direction
  double hbm_bytes_per_s = 0;     // their data sheet
  double host_link_bytes_per_s = 0;
  std::array<GemmRate, 7> gemm;          // by Dtype
  std::array<GemmRate, 7> grouped_gemm;  // by Dtype
  // by AttentionVariant and head-dimension class (64, 128, 256, MLA's 192/128)
  std::array<std::array<AttentionRate, 4>, 4> attention;
  AttentionVariant auto_attention = AttentionVariant::kFlash2;
  double memory_launch_s = 0;
  std::array<double, 6> memory_bytes_per_s{};  // by MemoryKind; host copies last
  double sustained_clock = 1;                  // sustained training speed over these burst measurements
  Communication communication;
};

// Throws InputError when the file is malformed.
Profile load_profile(const std::filesystem::path& file);

// The same kernels with this memory and host link bandwidth (bytes/s): memory-bound rates scale with them.
Profile with_bandwidth(Profile profile, double hbm_bytes_per_s, double host_link_bytes_per_s);

}  // namespace stepcast
