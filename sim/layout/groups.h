// Process groups of Megatron's two rank grids (order tp-cp-ep-dp-pp, leftmost fastest):
//   dense  rank = i_tp + t (i_cp + c (i_dp + dp i_pp))
//   expert rank = i_etp + et (i_ep + e (i_edp + edp i_pp))
// The group of a set of axes = all ranks that agree on every other axis.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layout/scenario.h"

namespace stepcast {

enum class Group { kTp, kCp, kTpCp, kDp, kDpCp, kTpDpCp, kPp, kEmbedding, kEp, kEtp, kEtpEp, kEdp, kWorld };

struct Grid {
  std::int64_t tp = 1, cp = 1, dp = 1, pp = 1;  // dense
  std::int64_t etp = 1, ep = 1, edp = 1;        // expert
  bool tp_pp_dp = false;                        // --use-tp-pp-dp-mapping: order tp-cp-ep-pp-dp
  bool v_shaped = false;                        // the first and the last stage lie on the same rank

  std::int64_t world() const { return tp * cp * dp * pp; }
};

Grid grid_of(const Layout& layout);

// The ranks of the group of `kind` that holds `rank`, ascending. Empty only for kEmbedding (first and last
// rank of a pipeline) and a rank between them.
std::vector<std::int64_t> group_of(const Grid& grid, Group kind, std::int64_t rank);

// Hierarchical groups (of CP under "a2a+p2p"): `sizes` multiply to the group's size, the first varies
// fastest. One list of ranks a level: those of `group` that differ from `rank` at that level only.
std::vector<std::vector<std::int64_t>> hierarchical_groups(const std::vector<std::int64_t>& group,
                                                           const std::vector<std::int64_t>& sizes,
                                                           std::int64_t rank);

// Where a group lies: how many ranks, over how many nodes and NVLink domains, and how many of them share one.
// Nodes and domains are filled in rank order.
struct Span {
  std::int64_t size = 1;
  std::int64_t nodes = 1;
  std::int64_t domains = 1;
  std::int64_t ranks_per_domain = 1;  // the largest number of the group's ranks in one domain
  std::int64_t ranks_per_node = 1;
};

Span span_of(const std::vector<std::int64_t>& ranks, const Cluster& cluster);
Span span_of(const Grid& grid, Group kind, std::int64_t rank, const Cluster& cluster);

// "TP", "DP-CP", "EP", ...
std::string name_of(Group kind);

}  // namespace stepcast
