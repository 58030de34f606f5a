#include "layout/groups.h"

#include <algorithm>
#include <array>

namespace stepcast {
namespace {

struct Axis {
  std::int64_t size = 1;
  std::int64_t stride = 1;
};

using Axes = std::array<Axis, 4>;  // in the order of the sizes given to `axes`

constexpr std::size_t kPpAxis = 3;

// The axes of a grid from its three data axes and PP: leftmost fastest, PP last or before the third.
Axes axes(std::int64_t first, std::int64_t second, std::int64_t third, std::int64_t pp,
          bool pp_before_third) {
  Axes result = {Axis{first, 1}, Axis{second, first}, Axis{third, first * second}, Axis{pp, first * second}};
  if (pp_before_third)
    result[2].stride *= pp;
  else
    result[kPpAxis].stride *= third;
  return result;
}

struct FreeAxes {
  bool expert = false;  // of the expert grid (ETP, EP, EDP, PP) instead of the dense one (TP, CP, DP, PP)
  std::vector<std::size_t> places;  // axes on which the ranks of a group may differ
};

FreeAxes free_axes(Group kind) {
  switch (kind) {
    case Group::kTp:
      return {false, {0}};
    case Group::kCp:
      return {false, {1}};
    case Group::kTpCp:
      return {false, {0, 1}};
    case Group::kDp:
      return {false, {2}};
    case Group::kDpCp:
      return {false, {1, 2}};
    case Group::kTpDpCp:
      return {false, {0, 1, 2}};
    case Group::kPp:
    case Group::kEmbedding:
      return {false, {kPpAxis}};
    case Group::kEtp:
      return {true, {0}};
    case Group::kEp:
      return {true, {1}};
    case Group::kEtpEp:
      return {true, {0, 1}};
    case Group::kEdp:
      return {true, {2}};
    case Group::kWorld:
      break;
  }
  return {false, {0, 1, 2, kPpAxis}};
}

// All ranks that agree with `rank` on every other axis, ascending.
std::vector<std::int64_t> ranks_along(std::vector<Axis> axes, std::int64_t rank) {
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  std::int64_t base = rank;
  for (const Axis& axis : axes) base -= rank / axis.stride % axis.size * axis.stride;
  std::vector<std::int64_t> ranks = {base};
  for (const Axis& axis : axes) {
    const std::size_t inner = ranks.size();
    for (std::int64_t i = 1; i < axis.size; ++i)
      for (std::size_t j = 0; j < inner; ++j) ranks.push_back(ranks[j] + i * axis.stride);
  }
  return ranks;
}

std::vector<std::int64_t> ends_of(const std::vector<std::int64_t>& pipeline, bool v_shaped,
                                  std::int64_t rank) {
  std::vector<std::int64_t> ends = {pipeline.front()};
  if (pipeline.size() > 1 && !v_shaped) ends.push_back(pipeline.back());
  const bool member = std::find(ends.begin(), ends.end(), rank) != ends.end();
  return member ? ends : std::vector<std::int64_t>{};
}

struct Blocks {
  std::int64_t count = 0;
  std::int64_t largest = 0;
};

// Over how many blocks of `size` consecutive ranks ascending ranks lie, and how many lie in one at most.
Blocks blocks_of(const std::vector<std::int64_t>& ranks, std::int64_t size) {
  Blocks blocks;
  std::int64_t in_block = 0;
  std::int64_t block = -1;
  for (const std::int64_t rank : ranks) {
    if (rank / size != block) {
      block = rank / size;
      in_block = 0;
      ++blocks.count;
    }
    blocks.largest = std::max(blocks.largest, ++in_block);
  }
  return blocks;
}

}  // namespace

Grid grid_of(const Layout& layout) {
  Grid grid;
  grid.tp = layout.tp;
  grid.cp = layout.cp;
  grid.dp = layout.dp;
  grid.pp = layout.pp;
  grid.etp = layout.etp;
  grid.ep = layout.ep;
  grid.edp = layout.edp;
  grid.v_shaped = is_v_shaped(layout.schedule);
  return grid;
}

std::vector<std::int64_t> group_of(const Grid& grid, Group kind, std::int64_t rank) {
  const FreeAxes free = free_axes(kind);
  const Axes all = free.expert ? axes(grid.etp, grid.ep, grid.edp, grid.pp, grid.tp_pp_dp)
                               : axes(grid.tp, grid.cp, grid.dp, grid.pp, grid.tp_pp_dp);
  std::vector<Axis> along;
  for (const std::size_t place : free.places) along.push_back(all[place]);
  std::vector<std::int64_t> ranks = ranks_along(std::move(along), rank);
  return kind == Group::kEmbedding ? ends_of(ranks, grid.v_shaped, rank) : ranks;
}

std::vector<std::vector<std::int64_t>> hierarchical_groups(const std::vector<std::int64_t>& group,
                                                           const std::vector<std::int64_t>& sizes,
                                                           std::int64_t rank) {
  const auto place = std::find(group.begin(), group.end(), rank) - group.begin();
  std::vector<std::vector<std::int64_t>> levels;
  std::int64_t stride = 1;
  for (const std::int64_t size : sizes) {
    levels.emplace_back();
    for (const std::int64_t member : ranks_along({{size, stride}}, place))
      levels.back().push_back(group[static_cast<std::size_t>(member)]);
    stride *= size;
  }
  return levels;
}

Span span_of(const std::vector<std::int64_t>& ranks, const Cluster& cluster) {
  const Blocks nodes = blocks_of(ranks, std::max<std::int64_t>(1, cluster.gpus_per_node));
  const Blocks domains = blocks_of(ranks, std::max<std::int64_t>(1, cluster.gpus_per_domain));
  Span span;
  span.size = static_cast<std::int64_t>(ranks.size());
  span.nodes = nodes.count;
  span.domains = domains.count;
  span.ranks_per_domain = domains.largest;
  span.ranks_per_node = nodes.largest;
  return span;
}

Span span_of(const Grid& grid, Group kind, std::int64_t rank, const Cluster& cluster) {
  return span_of(group_of(grid, kind, rank), cluster);
}

std::string name_of(Group kind) {
  switch (kind) {
    case Group::kTp:
      return "TP";
    case Group::kCp:
      return "CP";
    case Group::kTpCp:
      return "TP-CP";
    case Group::kDp:
      return "DP";
    case Group::kDpCp:
      return "DP-CP";
    case Group::kTpDpCp:
      return "TP-DP-CP";
    case Group::kPp:
      return "PP";
    case Group::kEmbedding:
      return "embedding";
    case Group::kEp:
      return "EP";
    case Group::kEtp:
      return "ETP";
    case Group::kEtpEp:
      return "ETP-EP";
    case Group::kEdp:
      return "EDP";
    case Group::kWorld:
      break;
  }
  return "world";
}

}  // namespace stepcast
