// Closed forms of collectives: bytes against the domain's oracles, times by hand, and what must be monotone.
#include "network/closed_form.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "unit/graph/scenarios.h"

namespace stepcast::graph_test {
namespace {

// --- expected distinct groups ---

TEST(DistinctGroups, AreTheOracles) {
  EXPECT_NEAR(distinct_groups(256, 8, 2), 1.9930201154318212,
              1.9930201154318212e-12);  // deepep_distinct_E256_k8_G2
  EXPECT_NEAR(distinct_groups(256, 8, 32), 7.2667999173528806,
              7.2667999173528806e-12);  // deepep_distinct_E256_k8_G32
  EXPECT_NEAR(distinct_groups(128, 8, 4), 3.6290109244257005,
              3.6290109244257005e-12);  // deepep_distinct_E128_k8_G4
}

TEST(DistinctGroups, AreExactWhereTheyAreObvious) {
  EXPECT_DOUBLE_EQ(distinct_groups(256, 8, 1), 1);          // all in the only group
  EXPECT_DOUBLE_EQ(distinct_groups(256, 1, 16), 1);         // one expert, one group
  EXPECT_DOUBLE_EQ(distinct_groups(256, 8, 256), 8);        // each expert a group of its own
  EXPECT_DOUBLE_EQ(distinct_groups(8, 8, 4), 4);            // every expert
  EXPECT_DOUBLE_EQ(distinct_groups(8, 7, 4), 4);            // one is left over, no group of two is missed
  EXPECT_DOUBLE_EQ(distinct_groups(4, 2, 2), 2 - 2.0 / 6);  // 2 (1 - C(2, 2) / C(4, 2)) = 5/3
}

TEST(DistinctGroups, GrowWithGroupsAndExperts) {
  for (double k = 1; k <= 8; ++k) {
    for (double groups = 1; groups < 128; groups *= 2) {
      EXPECT_LE(distinct_groups(256, k, groups), distinct_groups(256, k, 2 * groups) + 1e-12);
      EXPECT_LE(distinct_groups(256, k, groups), distinct_groups(256, k + 1, groups) + 1e-12);
      EXPECT_LE(distinct_groups(256, k, groups), std::min(k, groups) + 1e-12);
    }
  }
}

// --- a network with round numbers ---

// One protocol: 10 us and 1 us a step, 100 GB/s on the bus. NICs: 400 Gbit/s = 50 GB/s a GPU, at 0.8 of it:
// 40 GB/s.
Profile round_profile() {
  Profile p;
  p.nvlink_bytes_per_s = 450e9;  // what the cluster has
  const std::vector<LinkLine> one = {{10e-6, 1e-6, 100e9, 2}};
  Communication& c = p.communication;
  c.all_reduce = c.all_gather = c.reduce_scatter = c.all_to_all = c.send_recv = one;
  c.nic_efficiency = 0.8;
  c.rdma_latency_s = 3e-6;
  c.switch_hop_s = 1e-6;
  c.ring_base_s = 20e-6;
  c.ring_hop_s = 5e-6;
  c.tree_base_s = 30e-6;
  c.tree_hop_s = 7e-6;
  c.all_to_all_peer_s = 2e-6;
  c.deepep_sms = 20;
  DispatchRate rate;
  rate.launch_s = 10e-6;
  rate.internode_launch_s = 40e-6;
  rate.nvlink_bytes_per_s = 150e9;
  rate.nvlink_large_domain_bytes_per_s = 300e9;
  rate.nic_efficiency = 0.5;
  c.deepep_dispatch = c.deepep_combine = c.hybridep_dispatch = c.hybridep_combine = rate;
  return p;
}

Transfer transfer(Collective collective, Group group, double bytes) {
  Transfer t;
  t.collective = collective;
  t.group = group;
  t.bytes = bytes;
  return t;
}

Transfer tokens(Collective collective, double count, double token_bytes, double top_k) {
  Transfer t = transfer(collective, Group::kEp, count * token_bytes * top_k);
  t.tokens = count;
  t.token_bytes = token_bytes;
  return t;
}

double sent(const TransferCost& cost) { return cost.nvlink_bytes + cost.network_bytes; }

const Collective kRings[] = {Collective::kAllGather, Collective::kReduceScatter, Collective::kAllReduce};

struct Network {
  explicit Network(const Json& json)
      : scenario(read(json)), profile(round_profile()), forms(scenario, profile) {}
  TransferCost cost(const Transfer& t) const { return forms.cost(t); }
  TransferCost cost(Collective collective, Group group, double bytes) const {
    return cost(transfer(collective, group, bytes));
  }

  Scenario scenario;
  Profile profile;
  ClosedForms forms;
};

TEST(ClosedForms, InsideADomainByHand) {
  const Network net(scenario_json(dense_model(), 8, {{"tp", 4}}));
  // 100 MB over 4 ranks: w = 75 MB, 3 steps: 10 + 3 + 750 us; an all-reduce 2 w and 6 steps: 10 + 6 + 1500
  // us.
  const TransferCost gather = net.cost(Collective::kAllGather, Group::kTp, 100e6);
  EXPECT_DOUBLE_EQ(gather.seconds, 763e-6);
  EXPECT_DOUBLE_EQ(gather.nvlink_bytes, 75e6);
  EXPECT_EQ(gather.network_bytes, 0);
  EXPECT_DOUBLE_EQ(net.cost(Collective::kReduceScatter, Group::kTp, 100e6).seconds, 763e-6);
  EXPECT_DOUBLE_EQ(net.cost(Collective::kAllReduce, Group::kTp, 100e6).seconds, 1516e-6);
  EXPECT_DOUBLE_EQ(net.cost(Collective::kAllReduce, Group::kTp, 100e6).nvlink_bytes, 150e6);
}

TEST(ClosedForms, TakesTheFasterProtocol) {
  Network net(scenario_json(dense_model(), 8, {{"tp", 4}},
                            {{"cluster", {{"overrides", {{"nvlink_latency_s", 0}}}}}}));
  // A low-latency protocol with a tenth of the rate: 1 + 3 x 0.1 us and 10 GB/s. Small tensors take it, large
  // ones not.
  net.profile.communication.all_gather.push_back({1e-6, 0.1e-6, 10e9, 2});
  EXPECT_DOUBLE_EQ(net.cost(Collective::kAllGather, Group::kTp, 4e3).seconds, 1.3e-6 + 0.3e-6);
  EXPECT_DOUBLE_EQ(net.cost(Collective::kAllGather, Group::kTp, 100e6).seconds, 763e-6);
  // A protocol for eight GPUs and more is not for four.
  net.profile.communication.all_gather.push_back({0, 0, 1e15, 8});
  EXPECT_DOUBLE_EQ(net.cost(Collective::kAllGather, Group::kTp, 100e6).seconds, 763e-6);
}

TEST(ClosedForms, OverDomainsByHand) {
  // DP 4, one rank a node (TP 8): rings over the NICs at 40 GB/s. 100 MB: w = 75 MB in 1875 us, 3 hops of 5
  // us.
  const Network net(scenario_json(dense_model(), 32, {{"tp", 8}}));
  const TransferCost gather = net.cost(Collective::kAllGather, Group::kDp, 100e6);
  EXPECT_DOUBLE_EQ(gather.seconds, 20e-6 + 15e-6 + 1875e-6);
  EXPECT_EQ(gather.nvlink_bytes, 0);
  EXPECT_DOUBLE_EQ(gather.network_bytes, 75e6);
  // An all-reduce of 1 KB: the ring takes 20 + 6 x 5 us, the tree 30 + 2 x 2 x 7: the ring. With cheap hops
  // the tree.
  EXPECT_NEAR(net.cost(Collective::kAllReduce, Group::kDp, 1e3).seconds, 50e-6 + 1500 / 40e9, 1e-12);
  Network tree(scenario_json(dense_model(), 32, {{"tp", 8}}));
  tree.profile.communication.tree_base_s = 10e-6;
  EXPECT_NEAR(tree.cost(Collective::kAllReduce, Group::kDp, 1e3).seconds, 38e-6 + 1500 / (0.85 * 40e9),
              1e-12);
}

TEST(ClosedForms, OverDomainsWithSeveralRanksInEach) {
  // DP 16 over two nodes: eight rings, one through each NIC: min(100 GB/s bus, 8 x 40 GB/s).
  const Network net(scenario_json(dense_model(), 16, Json::object()));
  const TransferCost gather = net.cost(Collective::kAllGather, Group::kDp, 160e6);
  EXPECT_DOUBLE_EQ(gather.seconds, 20e-6 + 5e-6 + 150e6 / 100e9);
  // of the 150 MB that a rank sends, one of eight hops leaves the node
  EXPECT_DOUBLE_EQ(gather.network_bytes, 150e6 / 8);
  EXPECT_DOUBLE_EQ(gather.nvlink_bytes, 150e6 * 7 / 8);
}

TEST(ClosedForms, AllToAllByHand) {
  // EP 16 over two nodes: of 160 MB, 7/16 stay in the node and 8/16 leave it.
  const Network net(scenario_json(moe_model(), 16, {{"ep", 16}}));
  const TransferCost cost = net.cost(tokens(Collective::kDispatch, 1000, 40000, 4));
  EXPECT_DOUBLE_EQ(cost.nvlink_bytes, 70e6);
  EXPECT_DOUBLE_EQ(cost.network_bytes, 80e6);
  // 8 peers behind the NIC at 2 us; 70 MB at 100 GB/s beside 80 MB at 40 GB/s
  EXPECT_DOUBLE_EQ(cost.seconds, 20e-6 + 16e-6 + 2000e-6);
}

TEST(ClosedForms, PointToPointByHand) {
  const Network inside(scenario_json(dense_model(), 8, {{"pp", 2}}));
  EXPECT_DOUBLE_EQ(inside.cost(Collective::kSendRecv, Group::kPp, 1e6).seconds, 10e-6 + 1e-6 + 10e-6);
  EXPECT_DOUBLE_EQ(inside.cost(Collective::kSendRecv, Group::kPp, 1e6).nvlink_bytes, 1e6);
  const Network across(scenario_json(dense_model(), 16, {{"pp", 2}}));
  EXPECT_DOUBLE_EQ(across.cost(Collective::kSendRecv, Group::kPp, 1e6).seconds,
                   2.8e-6 + 1e-6 + 20e-6 + 25e-6);
  EXPECT_DOUBLE_EQ(across.cost(Collective::kSendRecv, Group::kPp, 1e6).network_bytes, 1e6);
}

TEST(ClosedForms, DeepEpByHand) {
  const Network net(scenario_json(moe_model(), 16, {{"ep", 16}}, {{"moe", {{"dispatcher", "deepep"}}}}));
  const TransferCost cost = net.cost(tokens(Collective::kDispatch, 1000, 2048, 4));
  // 32 experts, 4 drawn: distinct ranks of 16, and of 2 nodes; a node of two is remote half the time.
  const double ranks = distinct_groups(32, 4, 16), nodes = distinct_groups(32, 4, 2);
  EXPECT_DOUBLE_EQ(cost.network_bytes, 1000 * 2048 * nodes / 2);
  EXPECT_DOUBLE_EQ(cost.nvlink_bytes, 1000 * 2048 * ranks * 15 / 16);
  // 50 GB/s NIC at 0.5: slower than 150 GB/s NVLink
  EXPECT_DOUBLE_EQ(cost.seconds, 40e-6 + 1000 * 2048 * nodes / 2 / 25e9);
}

TEST(ClosedForms, NotifyIsPartOfDispatchOnly) {
  Network net(scenario_json(moe_model(), 8, {{"ep", 8}}, {{"moe", {{"dispatcher", "deepep"}}}}));
  net.profile.communication.deepep_dispatch.notify_s = 9e-6;
  net.profile.communication.deepep_combine.notify_s = 9e-6;
  const double combine = net.cost(tokens(Collective::kCombine, 1000, 2048, 4)).seconds;
  EXPECT_NEAR(net.cost(tokens(Collective::kDispatch, 1000, 2048, 4)).seconds, combine + 9e-6, 1e-15);
}

TEST(ClosedForms, OfNothingCostsNothing) {
  const Network net(scenario_json(dense_model(), 8, {{"tp", 4}}));
  EXPECT_EQ(net.cost(Collective::kAllGather, Group::kTp, 0).seconds, 0);
  EXPECT_EQ(net.cost(Collective::kAllGather, Group::kCp, 1e6).seconds, 0);  // a group of one
  EXPECT_EQ(sent(net.cost(Collective::kAllReduce, Group::kEp, 1e6)), 0);
}

TEST(ClosedForms, FasterNvlinkThanMeasuredIsFaster) {
  const auto seconds = [](double nvlink) {
    const Network net(scenario_json(dense_model(), 8, {{"tp", 4}},
                                    {{"cluster", {{"overrides", {{"nvlink_bytes_per_s", nvlink}}}}}}));
    return net.cost(Collective::kAllGather, Group::kTp, 100e6).seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(900e9), 13e-6 + 375e-6);
  EXPECT_DOUBLE_EQ(seconds(225e9), 13e-6 + 1500e-6);
}

// --- bytes: laws and oracles ---

TEST(RingBytes, FollowTheLaws) {
  for (const std::int64_t n : {2, 4, 8, 16, 64}) {
    const Network net(scenario_json(dense_model(), n, Json::object()));
    const double share = static_cast<double>(n - 1) / static_cast<double>(n);
    EXPECT_DOUBLE_EQ(sent(net.cost(Collective::kAllGather, Group::kDp, 1e9)), 1e9 * share);
    EXPECT_DOUBLE_EQ(sent(net.cost(Collective::kReduceScatter, Group::kDp, 1e9)), 1e9 * share);
    EXPECT_DOUBLE_EQ(sent(net.cost(Collective::kAllReduce, Group::kDp, 1e9)), 2e9 * share);
    EXPECT_DOUBLE_EQ(sent(net.cost(Collective::kAllToAll, Group::kDp, 1e9)), 1e9 * share);
  }
}

// tp_sp_allgather_bytes: s 4096, b 1, h 7168, TP 8, bf16: 4096 x 7168 x 2 x 7/8
TEST(RingBytes, OfATensorParallelGatherAreTheOracle) {
  const Network net(scenario_json(dense_model(), 8, {{"tp", 8}}));
  EXPECT_EQ(sent(net.cost(Collective::kAllGather, Group::kTp, 4096.0 * 7168 * 2)), 51380224);
}

// dp_rs_fp32_llama8b_dp8, dp_ag_bf16_llama8b_dp8: 8030261248 parameters x 4 or 2 bytes x 7/8
TEST(RingBytes, OfDataParallelismAreTheOracles) {
  const Network net(scenario_json(dense_model(), 8, Json::object()));
  EXPECT_EQ(sent(net.cost(Collective::kReduceScatter, Group::kDp, 8030261248.0 * 4)), 28105914368);
  EXPECT_EQ(sent(net.cost(Collective::kAllGather, Group::kDp, 8030261248.0 * 2)), 14052957184);
}

Json deepseek_like(std::int64_t gpus, std::int64_t ep, const Json& changes) {
  Json model = moe_model();
  model["hidden"] = 7168;
  model["attention"] = {{"kind", "mha"}, {"heads", 56}, {"head_dim", 128}};
  model["moe"] = {{"experts", 256}, {"top_k", 8}, {"ffn_hidden", 2048}};
  return scenario_json(model, gpus, {{"ep", ep}, {"etp", 1}}, changes);
}

// a2a_dispatch_bytes_dsv3: 4096 tokens x 8 copies x 7168 x 2 bytes x 63/64 leave the rank
TEST(TokenBytes, OfAllToAllAreTheOracle) {
  const Network net(deepseek_like(64, 64, Json::object()));
  const TransferCost cost = net.cost(tokens(Collective::kDispatch, 4096, 7168 * 2, 8));
  EXPECT_EQ(sent(cost), 462422016);
  EXPECT_EQ(cost.network_bytes, 4096.0 * 8 * 7168 * 2 * 56 / 64);  // eight ranks of 64 are in the node
}

// deepep_rdma_bytes_dsv3: 4096 tokens x 7168 x 2 bytes x D(8 nodes) x 7/8
TEST(TokenBytes, OfDeepEpAreTheOracle) {
  const Network net(deepseek_like(64, 64, {{"moe", {{"dispatcher", "deepep"}}}}));
  const TransferCost cost = net.cost(tokens(Collective::kDispatch, 4096, 7168 * 2, 8));
  EXPECT_NEAR(cost.network_bytes, 272040405.7816999, 272040405.7816999e-9);
}

// With group-limited routing (4 of 8 nodes): at most 4 x 7/8 = 3.5 copies a token (domain 3.2).
TEST(TokenBytes, OfGroupLimitedRoutingAreFewer) {
  Json json = deepseek_like(64, 64, {{"moe", {{"dispatcher", "deepep"}}}});
  json["model"]["moe"]["groups"] = 8;
  json["model"]["moe"]["group_top_k"] = 4;
  EXPECT_DOUBLE_EQ(Network(json).cost(tokens(Collective::kDispatch, 4096, 7168 * 2, 8)).network_bytes,
                   4096 * 7168 * 2 * 3.5);
}

// allgather_dispatch_bytes: 1024 tokens x 4096 x 2 bytes x 7 received
TEST(TokenBytes, OfAnAllGatherAreTheOracle) {
  const Network net(deepseek_like(8, 8, {{"moe", {{"dispatcher", "allgather"}}}}));
  EXPECT_EQ(sent(net.cost(tokens(Collective::kDispatch, 1024, 4096 * 2, 8))), 58720256);
}

// A token crosses to a node once, not once an expert.
TEST(TokenBytes, AreFewerWithoutDuplicates) {
  const Transfer t = tokens(Collective::kDispatch, 4096, 7168 * 2, 8);
  const double every = Network(deepseek_like(64, 64, {{"moe", {{"dispatcher", "deepep"}, {"dedup", false}}}}))
                           .cost(t)
                           .network_bytes;
  const double once =
      Network(deepseek_like(64, 64, {{"moe", {{"dispatcher", "deepep"}}}})).cost(t).network_bytes;
  EXPECT_DOUBLE_EQ(every, 4096.0 * 7168 * 2 * 7);
  EXPECT_LT(once, every);
}

// --- bytes of built graphs ---

// What one rank sends in the transfers of a step that `counts` picks.
double sent_in(const Step& step, const std::function<bool(const Instance&, const Op&)>& counts) {
  const Profile profile = round_profile();
  const ClosedForms forms(step.scenario, profile);
  const auto bytes = [&](const Instance& i, const Op& op) {
    return op.communicates && counts(i, op) ? sent(forms.cost(op.transfer)) : 0;
  };
  return step.sum(bytes, 0);
}

// 64 heads of 128 over 8 KV heads, one layer, sequences of 32768 tokens; TP 8, CP 4. The all-to-all needs four KV
// heads a TP rank (rule 48): 64 heads of 96 over 32 have the same (n + g) d.
Step long_context(const char* cp_comm) {
  Json model = dense_model();
  model["layers"] = 1;
  const bool a2a = std::string(cp_comm) == "a2a";
  model["attention"] = {
      {"kind", "gqa"}, {"heads", 64}, {"kv_heads", a2a ? 32 : 8}, {"head_dim", a2a ? 96 : 128}};
  const Json layout = {{"tp", 8}, {"cp", 4}, {"cp_comm", cp_comm}};
  return Step(scenario_json(model, 32, layout, {{"batch", {{"seq_len", 32768}, {"global", 1}}}}));
}

double cp_bytes(const char* cp_comm, char phase) {
  return sent_in(long_context(cp_comm),
                 [&](const Instance& i, const Op& op) { return i.phase == phase && op.cls == OpClass::kCp; });
}

constexpr double kKv = 8192.0 * 1 * 2 * 128 * 2;  // (s / c) b (g / t) 2 d 2 bytes: K and V of the local chunk

TEST(ContextParallelBytes, AreTheOracles) {
  EXPECT_EQ(cp_bytes("p2p", 'F'), 12582912);  // cp_ring_fwd_bytes: 3 KV
  EXPECT_EQ(cp_bytes("a2a", 'F'), 28311552);  // cp_a2a_fwd_bytes
  EXPECT_EQ(cp_bytes("allgather", 'F'), 3 * kKv);
}

// Domain 3.3. Ring: (c - 1) KV and c dKV, which are as large. All-to-all: the same again. All-gather: KV
// again, and dKV reduced.
TEST(ContextParallelBytes, OfTheBackwardAreThoseOfTheDomain) {
  EXPECT_EQ(cp_bytes("p2p", 'B'), 3 * kKv + 4 * kKv);
  EXPECT_EQ(cp_bytes("a2a", 'B'), 28311552);
  EXPECT_EQ(cp_bytes("allgather", 'B'), 6 * kKv);
}

// Unfused attention needs the other ranks' keys and values too.
TEST(ContextParallelBytes, UnfusedAttentionIsRefused) {
  const Scenario s =
      read(scenario_json(dense_model(), 8, {{"cp", 2}}, {{"kernels", {{"attention", "unfused"}}}}));
  EXPECT_THROW(require_simulated(s), NotSimulated);
}

// pp_p2p_bytes: 4096 / 2 x 7168 x 2
TEST(PipelineBytes, AreTheOracle) {
  Json model = dense_model();
  model["hidden"] = 7168;
  model["attention"] = {{"kind", "mha"}, {"heads", 56}, {"head_dim", 128}};
  const Step step(scenario_json(model, 4, {{"tp", 2}, {"pp", 2}}, {{"batch", {{"seq_len", 4096}}}}));
  const Profile profile = round_profile();
  const ClosedForms forms(step.scenario, profile);
  for (const Instance& instance : step.graph.instances) {
    for (const Message& message : instance.send) {
      if (message.number == kNone) continue;
      ASSERT_NE(message.op, kNone);
      EXPECT_EQ(sent(forms.cost(step.graph.ops[static_cast<std::size_t>(message.op)].transfer)), 29360128);
    }
  }
}

// dp_rs_fp32_llama8b_dp8 and dp_ag_bf16_llama8b_dp8, from the graph of a step (the vocabulary needs no
// padding)
TEST(DataParallelBytes, OfAStepAreTheOracles) {
  const Step step(scenario_json("llama-3-8b", 8, Json::object(), {{"batch", {{"seq_len", 8192}}}}));
  const auto of = [&](Collective collective) {
    return sent_in(step,
                   [&](const Instance&, const Op& op) { return is_transfer(op, collective, Group::kDpCp); });
  };
  EXPECT_NEAR(of(Collective::kReduceScatter), 28105914368, 28105914368e-12);
  EXPECT_NEAR(of(Collective::kAllGather), 14052957184, 14052957184e-12);
}

// a2a_dispatch_bytes_dsv3 and deepep_rdma_bytes_dsv3, from the graph of a step
TEST(TokenBytes, OfAStepAreTheOracles) {
  const auto dispatch = [](const Instance& i, const Op& op) {
    return i.phase == 'F' && op.communicates && op.transfer.collective == Collective::kDispatch;
  };
  Json json = deepseek_like(64, 64, {{"batch", {{"seq_len", 4096}, {"global", 64}}}});
  json["model"]["layers"] = 1;
  EXPECT_EQ(sent_in(Step(json), dispatch), 462422016);
  json["moe"] = {{"dispatcher", "deepep"}};
  const Step step(json);
  const Profile profile = round_profile();
  const ClosedForms forms(step.scenario, profile);
  const double network = step.sum([&](const Instance& i, const Op& op) {
    return dispatch(i, op) ? forms.cost(op.transfer).network_bytes : 0;
  });
  EXPECT_NEAR(network, 272040405.7816999, 272040405.7816999e-9);
}

// allgather_dispatch_bytes, from the graph of a step. The combine sums in the format of the probabilities
// (domain 3.2): FP32 with an FP32 router.
TEST(TokenBytes, OfAStepWithAnAllGatherAreTheDomains) {
  Json model = moe_model();
  model["layers"] = 1;
  model["hidden"] = 4096;
  model["attention"] = {{"kind", "mha"}, {"heads", 32}, {"head_dim", 128}};
  for (const std::string router : {"bf16", "fp32"}) {
    const Step step(scenario_json(model, 8, {{"ep", 8}},
                                  {{"batch", {{"seq_len", 1024}, {"global", 8}}},
                                   {"moe", {{"dispatcher", "allgather"}}},
                                   {"precision", {{"router", router}}}}));
    const auto of = [&](Collective collective) {
      return sent_in(step, [&](const Instance& i, const Op& op) {
        return i.phase == 'F' && op.communicates && op.transfer.collective == collective;
      });
    };
    EXPECT_EQ(of(Collective::kDispatch), 58720256);
    EXPECT_EQ(of(Collective::kCombine), 58720256 * (router == "fp32" ? 2 : 1)) << router;
  }
}

// Over EP 4 x ETP 2 each rank receives the tokens of the 7 others, whatever k (domain 3.2).
TEST(TokenBytes, OfAnAllGatherOverEpAndEtpAreThoseOfAllRanks) {
  for (const std::int64_t top_k : {1, 2, 4}) {
    Json model = moe_model();
    model["layers"] = 1;
    model["moe"]["top_k"] = top_k;
    const Step step(scenario_json(model, 8, {{"ep", 4}, {"etp", 2}},
                                  {{"batch", {{"global", 8}}}, {"moe", {{"dispatcher", "allgather"}}}}));
    const double bytes = sent_in(step, [](const Instance& i, const Op& op) {
      const bool gathers = is_transfer(op, Collective::kDispatch, Group::kEtpEp) ||
                           is_transfer(op, Collective::kAllGather, Group::kEtp);
      return i.phase == 'F' && gathers;
    });
    EXPECT_EQ(bytes, 2048.0 * 1024 * 2 * 7) << top_k;
  }
}

// --- on the shipped profiles ---

struct Shipped {
  Shipped(const std::string& topology, std::int64_t gpus, const Json& layout,
          const Json& changes = Json::object())
      : scenario(read(scenario_json(moe_model(), gpus, layout, changes, topology))),
        profile(
            load_profile(data_folder() / "calib" / "profiles" / (scenario.cluster.calibration + ".json"))),
        forms(scenario, profile) {}

  Scenario scenario;
  Profile profile;
  ClosedForms forms;
};

// One transfer of each kind over each group that the layouts below have.
std::vector<Transfer> transfers(double bytes) {
  std::vector<Transfer> all;
  for (const Group group :
       {Group::kTp, Group::kDp, Group::kDpCp, Group::kEp, Group::kEdp, Group::kWorld, Group::kPp}) {
    for (const Collective collective : kRings) all.push_back(transfer(collective, group, bytes));
    all.push_back(transfer(Collective::kAllToAll, group, bytes));
  }
  all.push_back(transfer(Collective::kSendRecv, Group::kPp, bytes));
  for (const Collective collective : {Collective::kDispatch, Collective::kCombine})
    all.push_back(tokens(collective, bytes / 8192, 2048, 4));
  return all;
}

const std::vector<Json> kLayouts = {{{"ep", 8}},
                                    {{"ep", 32}},
                                    {{"tp", 2}, {"ep", 4}, {"etp", 1}, {"pp", 2}},
                                    {{"tp", 4}, {"ep", 16}, {"etp", 1}}};
const std::vector<std::string> kDispatchers = {"allgather", "alltoall", "deepep", "hybridep"};

TEST(ShippedProfiles, GivePositiveFiniteTimes) {
  for (const std::string& topology : data_names("topologies")) {
    for (const std::string& dispatcher : kDispatchers) {
      const Shipped net(topology, 64, {{"ep", 32}}, {{"moe", {{"dispatcher", dispatcher}}}});
      for (const Transfer& t : transfers(1e6)) {
        const TransferCost cost = net.forms.cost(t);
        EXPECT_TRUE(std::isfinite(cost.seconds)) << topology << ' ' << dispatcher;
        EXPECT_GE(cost.seconds, 0);
        EXPECT_EQ(cost.seconds > 0, sent(cost) > 0)
            << topology << ' ' << dispatcher << ' ' << static_cast<int>(t.collective);
      }
    }
  }
}

TEST(ShippedProfiles, MoreBytesAreNeverFaster) {
  for (const char* topology : {"dgx-a100", "dgx-h100", "dgx-b200", "gb200-nvl72", "host"}) {
    for (const Json& layout : kLayouts) {
      for (const std::string& dispatcher : kDispatchers) {
        const Shipped net(topology, 64, layout, {{"moe", {{"dispatcher", dispatcher}}}});
        for (double bytes = 1e3; bytes < 1e10; bytes *= 3) {
          const std::vector<Transfer> small = transfers(bytes), large = transfers(1.5 * bytes);
          for (std::size_t i = 0; i < small.size(); ++i)
            EXPECT_LE(net.forms.cost(small[i]).seconds, net.forms.cost(large[i]).seconds)
                << topology << ' ' << dispatcher << ' ' << i;
        }
      }
    }
  }
}

TEST(ShippedProfiles, MoreBandwidthIsNeverSlower) {
  for (const Json& layout : kLayouts) {
    for (const std::string& dispatcher : kDispatchers) {
      const Json moe = {{"dispatcher", dispatcher}};
      const Shipped net("dgx-h100", 64, layout, {{"moe", moe}});
      for (const Json& overrides : {Json{{"nvlink_bytes_per_s", 600e9}}, Json{{"nic_gbit_per_s", 800}}}) {
        const Shipped faster("dgx-h100", 64, layout, {{"moe", moe}, {"cluster", {{"overrides", overrides}}}});
        bool any = false;
        for (const Transfer& t : transfers(1e8)) {
          EXPECT_LE(faster.forms.cost(t).seconds, net.forms.cost(t).seconds) << dispatcher;
          any = any || faster.forms.cost(t).seconds < net.forms.cost(t).seconds;
        }
        EXPECT_TRUE(any) << overrides.dump();
      }
    }
  }
}

TEST(ShippedProfiles, AGroupInsideADomainUsesNoNetwork) {
  for (const std::string& dispatcher : kDispatchers) {
    const Shipped net("dgx-h100", 64, {{"tp", 8}, {"ep", 8}, {"etp", 1}},
                      {{"moe", {{"dispatcher", dispatcher}}}});
    for (const Transfer& t : transfers(1e7)) {
      if (t.group != Group::kTp && t.group != Group::kEp) continue;
      EXPECT_EQ(net.forms.cost(t).network_bytes, 0) << dispatcher;
      EXPECT_GT(net.forms.cost(t).nvlink_bytes, 0) << dispatcher;
    }
  }
}

TEST(ShippedProfiles, AGroupWithOneRankADomainUsesNoNvlink) {
  const Shipped net("dgx-h100", 64, {{"tp", 8}, {"ep", 8}, {"etp", 1}});
  for (const Collective collective : kRings) {
    const TransferCost cost = net.forms.cost(transfer(collective, Group::kDp, 1e7));
    EXPECT_EQ(cost.nvlink_bytes, 0);
    EXPECT_GT(cost.network_bytes, 0);
  }
}

}  // namespace
}  // namespace stepcast::graph_test
