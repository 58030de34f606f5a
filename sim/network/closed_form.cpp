#include "network/closed_form.h"

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace stepcast {
namespace {

// A tree carries about 0.85 of a ring's rate (NCCL tuner: tree pattern factor).
constexpr double kTreeRate = 0.85;

double transfer_etp(const Scenario& s) { return real(s.layout.etp); }

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
  // Groups of one kind may lie differently (TP 3 on nodes of 8): the worst of eight spread over the job.
  constexpr std::int64_t kSamples = 8;
  for (std::size_t g = 0; g < spans_.size(); ++g) {
    const std::int64_t samples =
        static_cast<Group>(g) == Group::kWorld ? 1 : std::min(kSamples, grid_.world());
    std::int64_t reach = 1;
    for (std::int64_t i = 0; i < samples; ++i) {
      const auto ranks = group_of(grid_, static_cast<Group>(g), i * (grid_.world() / samples));
      if (ranks.empty()) continue;
      const Span span = span_of(ranks, cluster_);
      if (span.domains > spans_[g].domains || span.size > spans_[g].size) spans_[g] = span;
      reach = std::max(reach, ranks.back() - ranks.front() + 1);
    }
    network_bytes_per_s_[g] = cluster_.network_bytes_per_s_per_gpu();
    for (const Tier& tier : cluster_.tiers) {
      if (&tier == &cluster_.tiers.front()) continue;  // the NVLink domain
      network_bytes_per_s_[g] = std::min(network_bytes_per_s_[g], tier.bytes_per_s);
      if (tier.gpus == 0 || reach <= tier.gpus) break;
    }
  }
}

double ClosedForms::nic_rate(const Transfer& transfer) const {
  return network_bytes_per_s_[static_cast<std::size_t>(transfer.group)] * links_.nic_efficiency;
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
    if (line.min_gpus > 2 && !cluster_.in_network_reduction) continue;  // NVLink SHARP
    best =
        std::min(best, line.base_s + steps * line.per_step_s + wire / (line.bus_bytes_per_s * nvlink_scale_));
  }
  if (best >= 1e30) best = wire / cluster_.nvlink_bytes_per_s;
  return std::max(best, cluster_.nvlink_latency_s);
}

double ClosedForms::bus_rate(const std::vector<LinkLine>& lines) const {
  double rate = 0;
  for (const LinkLine& line : lines)
    if (line.min_gpus <= 2) rate = std::max(rate, line.bus_bytes_per_s);
  return rate * nvlink_scale_;
}

TransferCost ClosedForms::ring(Collective collective, double bytes, const Span& span, double nic) const {
  const double n = real(span.size);
  const bool reduces_all = collective == Collective::kAllReduce;
  const double passes = reduces_all ? 2 : 1;
  const double wire = passes * bytes * (n - 1) / n;
  const auto& lines = reduces_all                            ? links_.all_reduce
                      : collective == Collective::kAllGather ? links_.all_gather
                                                             : links_.reduce_scatter;
  if (span.domains == 1) return {in_domain(lines, wire, passes * (n - 1), n), wire, 0};
  const double r = std::max(1.0, n / real(span.domains));
  const double bus = r > 1 ? std::min(bus_rate(lines), r * nic) : nic;
  const double between = passes * (real(span.domains) - 1);
  const double hop = std::max(links_.ring_hop_s, cluster_.network_latency_s);
  double seconds = links_.ring_base_s + between * hop + wire / bus;
  if (reduces_all) {
    const double tree = links_.tree_base_s +
                        2 * std::ceil(std::log2(real(span.domains))) *
                            std::max(links_.tree_hop_s, cluster_.network_latency_s) +
                        wire / (kTreeRate * bus);
    seconds = std::min(seconds, tree);
  }
  return {seconds, wire * (r - 1) / r, wire / r};
}

TransferCost ClosedForms::all_to_all(double bytes, const Span& span, double nic) const {
  const double n = real(span.size);
  const double r = real(span.ranks_per_domain);
  const double inside = bytes * (r - 1) / n;
  const double outside = bytes * (n - r) / n;
  if (span.domains == 1) return {in_domain(links_.all_to_all, inside, n - 1, n), inside, 0};
  const double seconds = links_.ring_base_s + (n - r) * links_.all_to_all_peer_s +
                         std::max(inside / bus_rate(links_.all_to_all), outside / nic);
  return {seconds, inside, outside};
}

TransferCost ClosedForms::tokens(const Transfer& t, const Span& span) const {
  const Moe& moe = *scenario_.model.moe;
  const bool dispatch = t.collective == Collective::kDispatch;
  const double n = real(span.size);
  if (scenario_.moe.dispatcher == Dispatcher::kAllGather)
    return ring(dispatch ? Collective::kAllGather : Collective::kReduceScatter, n * t.tokens * t.token_bytes,
                span, nic_rate(t));
  if (!scenario_.moe.dedup) return all_to_all(t.bytes, span, nic_rate(t));

  const double experts = real(moe.experts);
  const double domains = real(span.domains);
  // an expert lives on all ranks of its ETP group
  const double etp = transfer_etp(scenario_);
  const double ranks = etp * distinct_groups(experts, real(moe.top_k), n / etp);
  double remote_domains = distinct_groups(experts, real(moe.top_k), domains);
  if (moe.group_top_k > 0) remote_domains = std::min(remote_domains, real(moe.group_top_k));
  remote_domains *= (domains - 1) / domains;

  const bool deepep = scenario_.moe.dispatcher == Dispatcher::kDeepEp;
  const DispatchRate& rate = deepep ? (dispatch ? links_.deepep_dispatch : links_.deepep_combine)
                                    : (dispatch ? links_.hybridep_dispatch : links_.hybridep_combine);
  const double sent = t.tokens * t.token_bytes;
  const double nvlink_bytes = sent * ranks * (n - 1) / n;
  const double network_bytes = sent * remote_domains;
  const bool large = real(span.ranks_per_domain) > 8;
  const double link =
      (large ? rate.nvlink_large_domain_bytes_per_s : rate.nvlink_bytes_per_s) * nvlink_scale_;
  const double nic = network_bytes_per_s_[static_cast<std::size_t>(t.group)] * rate.nic_efficiency;
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
  bool inside = span.domains == 1;
  if (t.from >= 0) inside = t.from / cluster_.gpus_per_domain == t.to / cluster_.gpus_per_domain;
  if (inside) return {in_domain(links_.send_recv, t.bytes, 1, 2), t.bytes, 0};
  const double latency = cluster_.network_latency_s + links_.switch_hop_s + links_.ring_base_s;
  return {latency + t.bytes / nic_rate(t), 0, t.bytes};
}

TransferCost ClosedForms::cost(const Transfer& t) const {
  const Span s = span(t);
  if (s.size <= 1 || t.bytes <= 0) return {};
  // across nodes each rank has the shard of its node's part
  const Span& whole = spans_[static_cast<std::size_t>(t.group)];
  const double bytes =
      t.part == Transfer::Part::kAcrossNodes ? t.bytes / real(whole.ranks_per_node) : t.bytes;
  switch (t.collective) {
    case Collective::kAllToAll:
      return all_to_all(bytes, s, nic_rate(t));
    case Collective::kDispatch:
    case Collective::kCombine:
      return tokens(t, s);
    case Collective::kSendRecv:
      return point_to_point(t, s);
    default:
      return ring(t.collective, bytes, s, nic_rate(t));
  }
}

}  // namespace stepcast
