#include "network/closed_form.h"

#include <algorithm>
#include <cmath>

namespace stepcast {
namespace {

double d(std::int64_t value) { return static_cast<double>(value); }

// A tree carries about 0.85 of a ring's rate (NCCL tuner: tree pattern factor).
constexpr double kTreeRate = 0.85;

}  // namespace

double distinct_groups(double experts, double top_k, double groups) {
  const double per_group = experts / groups;
  double none = 1;  // probability that no chosen expert lies in a given group
  for (double i = 0; i < top_k; ++i) none *= std::max(0.0, experts - per_group - i) / (experts - i);
  return groups * (1 - none);
}

ClosedForms::ClosedForms(const Scenario& scenario, const Profile& profile)
    : scenario_(scenario),
      cluster_(scenario.cluster),
      links_(profile.communication),
      grid_(grid_of(scenario.layout)) {
  if (profile.nvlink_bytes_per_s > 0)
    nvlink_scale_ = cluster_.nvlink_bytes_per_s / profile.nvlink_bytes_per_s;
  for (std::size_t g = 0; g < spans_.size(); ++g)
    spans_[g] = span_of(grid_, static_cast<Group>(g), 0, cluster_);
}

Span ClosedForms::span(const Transfer& transfer) const {
  Span span = spans_[static_cast<std::size_t>(transfer.group)];
  if (transfer.part == Transfer::Part::kInNode) {
    span.size = span.ranks_per_domain = std::min(span.size, span.ranks_per_node);
    span.nodes = span.domains = 1;
  } else if (transfer.part == Transfer::Part::kAcrossNodes) {
    span.size = span.domains = span.nodes;
    span.ranks_per_domain = span.ranks_per_node = 1;
  }
  return span;
}

double ClosedForms::in_domain(const std::vector<LinkLine>& lines, double wire, double steps,
                              double ranks) const {
  double best = 1e30;
  for (const LinkLine& line : lines) {
    if (ranks < line.min_gpus) continue;
    best =
        std::min(best, line.base_s + steps * line.per_step_s + wire / (line.bus_bytes_per_s * nvlink_scale_));
  }
  return best < 1e30 ? best : wire / (cluster_.nvlink_bytes_per_s);
}

double ClosedForms::bus_rate(const std::vector<LinkLine>& lines) const {
  double rate = 0;
  for (const LinkLine& line : lines)
    if (line.min_gpus <= 2) rate = std::max(rate, line.bus_bytes_per_s);
  return rate * nvlink_scale_;
}

TransferCost ClosedForms::ring(Collective collective, double bytes, const Span& span) const {
  const double n = d(span.size);
  const bool reduces_all = collective == Collective::kAllReduce;
  const double passes = reduces_all ? 2 : 1;
  const double wire = passes * bytes * (n - 1) / n;
  const auto& lines = reduces_all                            ? links_.all_reduce
                      : collective == Collective::kAllGather ? links_.all_gather
                                                             : links_.reduce_scatter;
  if (span.domains == 1) return {in_domain(lines, wire, passes * (n - 1), n), wire, 0};
  const double r = std::max(1.0, n / d(span.domains));
  const double bus = r > 1 ? std::min(bus_rate(lines), r * nic_rate()) : nic_rate();
  const double between = passes * (d(span.domains) - 1);
  double seconds = links_.ring_base_s + between * links_.ring_hop_s + wire / bus;
  if (reduces_all) {
    const double tree = links_.tree_base_s + 2 * std::ceil(std::log2(d(span.domains))) * links_.tree_hop_s +
                        wire / (kTreeRate * bus);
    seconds = std::min(seconds, tree);
  }
  return {seconds, wire * (r - 1) / r, wire / r};
}

TransferCost ClosedForms::all_to_all(double bytes, const Span& span) const {
  const double n = d(span.size);
  const double r = d(span.ranks_per_domain);
  const double inside = bytes * (r - 1) / n;
  const double outside = bytes * (n - r) / n;
  if (span.domains == 1) return {in_domain(links_.all_to_all, inside, n - 1, n), inside, 0};
  const double seconds = links_.ring_base_s + (n - r) * links_.all_to_all_peer_s +
                         std::max(inside / bus_rate(links_.all_to_all), outside / nic_rate());
  return {seconds, inside, outside};
}

TransferCost ClosedForms::tokens(const Transfer& t, const Span& span) const {
  const Moe& moe = *scenario_.model.moe;
  const bool dispatch = t.collective == Collective::kDispatch;
  const double n = d(span.size);
  if (scenario_.moe.dispatcher == Dispatcher::kAllGather)
    return ring(dispatch ? Collective::kAllGather : Collective::kReduceScatter, n * t.tokens * t.token_bytes,
                span);
  if (!scenario_.moe.dedup) return all_to_all(t.bytes, span);

  const double experts = d(moe.experts);
  const double domains = d(span.domains);
  const double ranks = distinct_groups(experts, d(moe.top_k), n);
  double remote_domains = distinct_groups(experts, d(moe.top_k), domains);
  if (moe.group_top_k > 0) remote_domains = std::min(remote_domains, d(moe.group_top_k));
  remote_domains *= (domains - 1) / domains;

  const bool deepep = scenario_.moe.dispatcher == Dispatcher::kDeepEp;
  const DispatchRate& rate = deepep ? (dispatch ? links_.deepep_dispatch : links_.deepep_combine)
                                    : (dispatch ? links_.hybridep_dispatch : links_.hybridep_combine);
  const double sent = t.tokens * t.token_bytes;
  const double nvlink_bytes = sent * ranks * (n - 1) / n;
  const double network_bytes = sent * remote_domains;
  const bool large = d(span.ranks_per_domain) > 8;
  const double link =
      (large ? rate.nvlink_large_domain_bytes_per_s : rate.nvlink_bytes_per_s) * nvlink_scale_;
  const double nic = cluster_.network_bytes_per_s_per_gpu() * rate.nic_efficiency;
  // DeepEP's link rate counts the own rank's copy
  double busy = std::max((deepep ? sent * ranks : nvlink_bytes) / link, network_bytes / nic);
  const double sm_rate = domains > 1 ? rate.internode_sm_bytes_per_s : rate.sm_bytes_per_s;
  if (deepep && sm_rate > 0) {
    const double copied =
        t.tokens * ((ranks + rate.token_copies) * t.token_bytes + ranks * rate.message_bytes);
    busy = std::max(busy, copied / (sm_rate * links_.deepep_sms));
  }
  const double launch = domains > 1 ? rate.internode_launch_s : rate.launch_s;
  return {launch + (dispatch ? rate.notify_s : 0) + busy, nvlink_bytes, network_bytes};
}

TransferCost ClosedForms::point_to_point(const Transfer& t, const Span& span) const {
  if (span.domains == 1) return {in_domain(links_.send_recv, t.bytes, 1, 2), t.bytes, 0};
  return {links_.rdma_latency_s + links_.switch_hop_s + links_.ring_base_s + t.bytes / nic_rate(), 0,
          t.bytes};
}

TransferCost ClosedForms::cost(const Transfer& t) const {
  const Span s = span(t);
  if (s.size <= 1 || t.bytes <= 0) return {};
  switch (t.collective) {
    case Collective::kAllToAll:
      return all_to_all(t.bytes, s);
    case Collective::kDispatch:
    case Collective::kCombine:
      return tokens(t, s);
    case Collective::kSendRecv:
      return point_to_point(t, s);
    default:
      return ring(t.collective, t.bytes, s);
  }
}

}  // namespace stepcast
