// Closed forms for collectives by tier, one transfer at a time on an idle network. N ranks of the group, r of them in
// an NVLink domain, D domains, X bytes of the tensor. Bytes of one rank on the wire: w = X (N - 1) / N for all-gather,
// reduce-scatter and all-to-all, twice that for all-reduce.
//
//   inside a domain    least over NCCL's protocols of base + steps * per_step + w / bus rate; N - 1 steps, all-reduce twice
//   ring over domains  base + (D - 1) hop + w / min(bus rate, r NIC rate): r rings, one through each NIC
//   tree, all-reduce   base + 2 log2(D) hop + w / (0.85 of the ring's rate); the faster of ring and tree is used
//   all-to-all         base + peers * peer time + max(w inside / bus rate, w outside / NIC rate)
//   dispatch, combine  all-to-all of k copies a token; with de-duplication one copy for every distinct rank (NVLink)
//                      and every distinct domain (NIC). Expected distinct groups of G among E experts with k drawn:
//                      G (1 - C(E - E/G, k) / C(E, k)), at most the groups that routing allows
//
// The NIC rate is the line rate times the achieved share, or less where the fabric is oversubscribed at the tier that
// the group crosses. Sources: NCCL's tuner (src/graph/tuning.cc), DeepEP; every number is in a profile or topology.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

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
  // Spans are those of the worst placed of some groups of each kind; both are kept by reference.
  ClosedForms(const Scenario& scenario, const Profile& profile);

  TransferCost cost(const Transfer& transfer) const;

 private:
  Span span(const Transfer& transfer) const;
  TransferCost ring(Collective collective, double bytes, const Span& span, double nic) const;
  TransferCost all_to_all(double bytes, const Span& span, double nic) const;
  TransferCost tokens(const Transfer& transfer, const Span& span) const;
  TransferCost point_to_point(const Transfer& transfer, const Span& span) const;
  double in_domain(const std::vector<LinkLine>& lines, double wire_bytes, double steps, double ranks) const;
  double bus_rate(const std::vector<LinkLine>& lines) const;
  double nic_rate(const Transfer& transfer) const;

  const Scenario& scenario_;
  const Cluster& cluster_;
  const Communication& links_;
  double nvlink_scale_ = 1;  // of this cluster's NVLink against the profile's
  Grid grid_;
  std::array<Span, 13> spans_;                  // by Group
  std::array<double, 13> network_bytes_per_s_;  // by Group: of one GPU, at the tier that the group crosses
};

}  // namespace stepcast
