// Closed forms for collectives by tier, one transfer at a time on an idle network. Symbols: N ranks of the
// group, r of them in an NVLink domain, D domains, X bytes of the tensor; per-rank bytes on the wire w = X (N
// - 1) / N for all-gather, reduce-scatter and all-to-all, 2 X (N - 1) / N for all-reduce.
//   inside a domain   min over NCCL protocols of base + steps per_step + w / bus rate; steps N - 1 (2 N - 2
//   for all-reduce) ring over domains base + steps between domains hop + w / min(bus rate, r NIC rate): r
//   rings, one through each NIC tree (all-reduce) base + 2 log2(D) hop + (r - 1) ... + w / (0.85 x the ring's
//   rate); the faster of both is used all-to-all        base + peers peer_time + max(w_domain / bus rate,
//   w_network / NIC rate) dispatch, combine all-to-all of k copies a token, or with de-duplication one copy
//   for every distinct rank (NVLink)
//                     and distinct domain (NIC): expected number of distinct groups of G among E experts, k
//                     drawn: G (1 - C(E - E/G, k) / C(E, k)), at most the groups that routing allows
// Sources: NCCL's tuner (src/graph/tuning.cc), DeepEP (distinct groups), profile files for every number.
#pragma once

#include <cstdint>

#include "cost/profile.h"
#include "graph/op.h"
#include "layout/scenario.h"

namespace stepcast {

struct TransferCost {
  double seconds = 0;
  double nvlink_bytes = 0;   // that one rank sends into its domain
  double network_bytes = 0;  // and through its NIC
};

// Expected number of distinct groups, of `groups` equal ones among `experts`, that `top_k` distinct experts
// fall into.
double distinct_groups(double experts, double top_k, double groups);

class ClosedForms {
 public:
  // Spans are those of the first rank's groups; both are kept by reference.
  ClosedForms(const Scenario& scenario, const Profile& profile);

  TransferCost cost(const Transfer& transfer) const;

 private:
  Span span(const Transfer& transfer) const;
  TransferCost ring(Collective collective, double bytes, const Span& span) const;
  TransferCost all_to_all(double bytes, const Span& span) const;
  TransferCost tokens(const Transfer& transfer, const Span& span) const;
  TransferCost point_to_point(const Transfer& transfer, const Span& span) const;
  double in_domain(const std::vector<LinkLine>& lines, double wire_bytes, double steps, double ranks) const;
  double bus_rate(const std::vector<LinkLine>& lines) const;
  double nic_rate() const { return cluster_.network_bytes_per_s_per_gpu() * links_.nic_efficiency; }

  const Scenario& scenario_;
  const Cluster& cluster_;
  const Communication& links_;
  double nvlink_scale_ = 1;  // of this cluster's NVLink against the profile's
  Grid grid_;
  std::array<Span, 13> spans_;  // by Group
};

}  // namespace stepcast
