// What the graph of a step holds: collectives of a layer, FLOPs of the passes, what recompute repeats.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/build.h"
#include "model/flops.h"
#include "model/parameters.h"
#include "unit/graph/scenarios.h"

namespace stepcast::graph_test {
namespace {

Json with_layers(Json model, std::int64_t layers) {
  model["layers"] = layers;
  return model;
}

bool is_gemm(const Op& op) { return !op.communicates && op.cls == OpClass::kGemm; }
bool is_named(const Op& op, const char* name) { return std::strcmp(op.name, name) == 0; }

// Every micro-batch and rank weighs the same, so a count or sum of an instance phase is one of all of them.
double count(const Step& step, char phase, const std::function<bool(const Op&)>& counts) {
  return step.sum([&](const Instance& i, const Op& op) { return i.phase == phase && counts(op) ? 1 : 0; });
}

double flops(const Step& step, char phase, const std::function<bool(const Op&)>& counts) {
  return step.sum([&](const Instance& i, const Op& op) {
    return i.phase == phase && !op.communicates && counts(op) ? op.kernel.flops() : 0;
  });
}

// --- collectives of a layer ---

// What one decoder layer adds to the graph, a micro-batch: the difference between models of 9 and 8 layers.
double of_a_layer(const Json& model, const Json& layout, const Json& changes, char phase,
                  const std::function<double(const Op&)>& value) {
  const auto sum = [&](std::int64_t layers) {
    const Step step(scenario_json(with_layers(model, layers), 8, layout, changes));
    const double total =
        step.sum([&](const Instance& i, const Op& op) { return i.phase == phase ? value(op) : 0; });
    return total / static_cast<double>(step.scenario.microbatches());
  };
  return sum(9) - sum(8);
}

double collectives_of_a_layer(const Json& model, const Json& layout, char phase, Collective collective,
                              Group group, const Json& changes = Json::object()) {
  return of_a_layer(model, layout, changes, phase,
                    [&](const Op& op) { return is_transfer(op, collective, group) ? 1 : 0; });
}

// tp_sp_layer_collectives_fwd, and domain 3.1: backward gathers the gradient and, for the weight gradient,
// the saved input again, and reduces the input gradient, in attention and in the FFN.
TEST(Layer, HasTheCollectivesOfSequenceParallelism) {
  const Json layout = {{"tp", 4}};
  EXPECT_EQ(collectives_of_a_layer(dense_model(), layout, 'F', Collective::kAllGather, Group::kTp), 2);
  EXPECT_EQ(collectives_of_a_layer(dense_model(), layout, 'F', Collective::kReduceScatter, Group::kTp), 2);
  EXPECT_EQ(collectives_of_a_layer(dense_model(), layout, 'B', Collective::kAllGather, Group::kTp), 4);
  EXPECT_EQ(collectives_of_a_layer(dense_model(), layout, 'B', Collective::kReduceScatter, Group::kTp), 2);
  EXPECT_EQ(collectives_of_a_layer(dense_model(), layout, 'F', Collective::kAllReduce, Group::kTp), 0);
  EXPECT_EQ(collectives_of_a_layer(dense_model(), layout, 'B', Collective::kAllReduce, Group::kTp), 0);
}

// Without it: an all-reduce after the output projection and after FC2; backward before QKV and before FC1.
TEST(Layer, HasTheCollectivesOfPlainTensorParallelism) {
  const Json layout = {{"tp", 4}}, off = {{"layout", {{"sequence_parallel", false}}}};
  for (const char phase : {'F', 'B'}) {
    EXPECT_EQ(collectives_of_a_layer(dense_model(), layout, phase, Collective::kAllReduce, Group::kTp, off),
              2);
    EXPECT_EQ(collectives_of_a_layer(dense_model(), layout, phase, Collective::kAllGather, Group::kTp, off),
              0);
    EXPECT_EQ(
        collectives_of_a_layer(dense_model(), layout, phase, Collective::kReduceScatter, Group::kTp, off), 0);
  }
}

TEST(Layer, HasNoneWithoutTensorParallelism) {
  for (const Collective c : {Collective::kAllGather, Collective::kReduceScatter, Collective::kAllReduce})
    for (const char phase : {'F', 'B'})
      EXPECT_EQ(collectives_of_a_layer(dense_model(), Json::object(), phase, c, Group::kTp), 0);
}

// Routed experts work on the sequence shard: only attention gathers and reduces; a shared expert is sharded
// over TP.
TEST(Layer, OfExpertsHasThoseOfAttentionOnly) {
  const Json layout = {{"tp", 4}, {"ep", 2}, {"etp", 1}};
  Json shared = moe_model();
  shared["moe"]["shared_ffn_hidden"] = 512;
  EXPECT_EQ(collectives_of_a_layer(moe_model(), layout, 'F', Collective::kAllGather, Group::kTp), 1);
  EXPECT_EQ(collectives_of_a_layer(moe_model(), layout, 'F', Collective::kReduceScatter, Group::kTp), 1);
  EXPECT_EQ(collectives_of_a_layer(shared, layout, 'F', Collective::kAllGather, Group::kTp), 2);
  EXPECT_EQ(collectives_of_a_layer(shared, layout, 'F', Collective::kReduceScatter, Group::kTp), 2);
  EXPECT_EQ(collectives_of_a_layer(shared, layout, 'B', Collective::kAllGather, Group::kTp), 4);
}

// More TP ranks than KV heads: the whole of the mixed QKV output is gathered as well (domain 3.1).
TEST(Layer, GathersQkvWhenThereAreFewerKvHeadsThanRanks) {
  EXPECT_EQ(collectives_of_a_layer(dense_model(), {{"tp", 8}}, 'F', Collective::kAllGather, Group::kTp), 3);
}

TEST(Layer, DispatchesAndCombinesOnceEachWay) {
  const Json layout = {{"ep", 4}};
  for (const char phase : {'F', 'B'})
    for (const Collective c : {Collective::kDispatch, Collective::kCombine})
      EXPECT_EQ(collectives_of_a_layer(moe_model(), layout, phase, c, Group::kEp), 1);
}

// Each collective moves the whole activation tensor of a micro-batch: s b / c x h x 2 bytes, in one piece or
// in four.
TEST(Layer, MovesOneActivationTensorACollective) {
  for (const bool overlaps : {false, true}) {
    const double bytes = of_a_layer(dense_model(), {{"tp", 4}}, {{"overlap", {{"tp", overlaps}}}}, 'F',
                                    [](const Op& op) { return op.communicates ? op.transfer.bytes : 0; });
    EXPECT_EQ(bytes, 4 * 2048.0 * 1024 * 2) << overlaps;
  }
}

// T k copies of h bf16 each way (domain 3.2), T the tokens of the sequence shard.
TEST(Layer, SendsACopyOfATokenForEachExpert) {
  const double bytes =
      of_a_layer(moe_model(), {{"tp", 2}, {"ep", 4}, {"etp", 1}}, Json::object(), 'F', [](const Op& op) {
        return is_transfer(op, Collective::kDispatch, Group::kEp) ? op.transfer.bytes : 0;
      });
  EXPECT_EQ(bytes, 2048.0 / 2 * 4 * 1024 * 2);
}

// Padded to a capacity, every expert takes exactly that many rows, and they are all sent (domain 3.2, 7.2).
TEST(Layer, OfPaddedExpertsHasTheRowsOfItsCapacity) {
  const auto of = [](double capacity, const std::function<double(const Op&)>& value) {
    const Json changes = {{"moe", {{"capacity_factor", capacity}, {"pad_to_capacity", true}}}};
    return of_a_layer(moe_model(), {{"ep", 4}}, changes, 'F', value);
  };
  const auto expert_flops = [](const Op& op) { return is_named(op, "expert_fc1") ? op.kernel.flops() : 0; };
  const auto sent = [](const Op& op) {
    return is_transfer(op, Collective::kDispatch, Group::kEp) ? op.transfer.bytes : 0;
  };
  EXPECT_DOUBLE_EQ(of(1.5, expert_flops), 1.5 * of(1, expert_flops));
  EXPECT_DOUBLE_EQ(of(1.5, sent), 1.5 * of(1, sent));
}

// The host needs the token counts before it can launch the experts, unless shapes are static
// (domain 3.2, 6.3).
TEST(Layer, OfDroplessExpertsSynchronisesTheHostOnce) {
  const auto syncs = [](const Json& changes, char phase) {
    const Step step(scenario_json(moe_model(), 8, {{"ep", 4}}, changes));
    double total = 0;
    step.for_each([&](const Instance& i, const Task& task, const Op&) {
      total += i.phase == phase && task.host_sync ? 1 : 0;
    });
    return total / static_cast<double>(step.scenario.microbatches());
  };
  EXPECT_EQ(syncs(Json::object(), 'F'), 8);
  EXPECT_EQ(syncs(Json::object(), 'B'), 0);
  EXPECT_EQ(syncs({{"moe", {{"capacity_factor", 1}, {"pad_to_capacity", true}}}}, 'F'), 0);
}

// --- FLOPs ---

// FLOPs of all forwards of a step on all GPUs, without the router (which the convention does not count).
double forward_flops(const Step& step) {
  const double of_ranks = flops(step, 'F', [](const Op& op) { return !is_named(op, "router"); });
  return of_ranks * static_cast<double>(step.scenario.cluster.gpus / step.scenario.layout.pp);
}

// A third of domain 1.3's forward + backward.
double model_forward_flops(const Scenario& s) {
  const std::int64_t rows = padded_vocab(s.model.vocab, s.model.vocab_divisor, s.layout.tp);
  return model_flops_per_token(s.model, s.batch.seq_len, rows) / 3 * s.tokens_per_step();
}

TEST(Flops, OfForwardsAreTheModels) {
  const auto check = [](const Json& model, std::int64_t gpus, const Json& layout,
                        const Json& changes = Json::object()) {
    const Step step(scenario_json(model, gpus, layout, changes));
    EXPECT_NEAR(forward_flops(step) / model_forward_flops(step.scenario), 1, 1e-12)
        << layout.dump() << changes.dump();
  };
  check(dense_model(), 8, Json::object());
  check(dense_model(), 8, {{"tp", 4}});
  check(dense_model(), 8, {{"tp", 8}});
  check(dense_model(), 16, {{"tp", 2}, {"pp", 4}});
  check(dense_model(), 16, {{"cp", 2}, {"pp", 2}});
  check(dense_model(), 16, {{"cp", 4}, {"cp_comm", "a2a"}});
  check(dense_model(), 16, {{"cp", 4}, {"cp_comm", "allgather"}});
  check(dense_model(), 8, {{"pp", 4}, {"vpp", 2}});
  check(dense_model(), 8, {{"tp", 4}}, {{"overlap", {{"tp", true}}}});
  check(moe_model(), 8, Json::object());
  check(moe_model(), 16, {{"ep", 8}});
  check(moe_model(), 16, {{"tp", 2}, {"ep", 4}, {"etp", 1}, {"pp", 2}});
  check(moe_model(), 16, {{"tp", 2}, {"ep", 4}, {"etp", 2}});
  Json mixed = moe_model();
  mixed["ffn_hidden"] = 4096;
  mixed["moe"]["dense_layers"] = 2;
  mixed["moe"]["shared_ffn_hidden"] = 512;
  mixed["gated_ffn"] = false;
  check(mixed, 16, {{"ep", 8}, {"pp", 2}});
  Json windowed = dense_model();
  windowed["attention"]["window"] = 256;
  windowed["attention"]["window_period"] = 2;
  check(windowed, 8, {{"tp", 2}});
}

// MLA: the convention also counts its norms (q_l + kv_l multiply-adds a token), the graph does not; with MTP
// 3 h more.
TEST(Flops, OfForwardsAreTheModelsForLatentAttention) {
  Json model = moe_model();
  model["attention"] = {{"kind", "mla"},          {"heads", 16},
                        {"q_lora_rank", 512},     {"kv_lora_rank", 256},
                        {"qk_nope_head_dim", 64}, {"qk_rope_head_dim", 32},
                        {"v_head_dim", 64}};
  for (const std::int64_t mtp : {0, 1}) {
    model["mtp_layers"] = mtp;
    for (const Json& layout : {Json{{"ep", 4}}, Json{{"tp", 2}, {"ep", 4}, {"etp", 1}, {"pp", 2}}}) {
      const Step step(scenario_json(model, 16, layout));
      const double norms =
          2 * ((512 + 256) * static_cast<double>(8 + mtp) + 3 * 1024 * static_cast<double>(mtp));
      const double expected = model_forward_flops(step.scenario) - norms * step.scenario.tokens_per_step();
      EXPECT_NEAR(forward_flops(step) / expected, 1, 1e-12) << layout.dump() << mtp;
    }
  }
}

TEST(Flops, OfForwardsAreTheModelsInShippedScenarios) {
  for (const auto& file : shipped_scenarios()) {
    const Step step(load_scenario(file));
    if (step.scenario.overlap.moe_a2a) continue;  // forwards and backwards share instances
    const bool mla = step.scenario.model.attention.mla();
    EXPECT_NEAR(forward_flops(step) / model_forward_flops(step.scenario), 1, mla ? 1e-4 : 1e-12) << file;
  }
}

// Two GEMMs backward for each forward, the router's too; fused attention 5 matmuls for 2.
TEST(Flops, OfBackwardsAreTwiceThoseOfForwards) {
  for (const auto& file : shipped_scenarios()) {
    Scenario scenario = load_scenario(file);
    if (scenario.overlap.moe_a2a) continue;
    scenario.recompute = {};
    const Step step(std::move(scenario));
    const auto attention = [](const Op& op) { return op.cls == OpClass::kAttention; };
    EXPECT_NEAR(flops(step, 'B', is_gemm) / flops(step, 'F', is_gemm), 2, 1e-12) << file;
    EXPECT_NEAR(flops(step, 'B', attention) / flops(step, 'F', attention), 2.5, 1e-12) << file;
  }
}

TEST(Flops, OfUnfusedAttentionAreThoseOfTheWholeScores) {
  const Json unfused = {{"kernels", {{"attention", "unfused"}}}};
  const Step step(scenario_json(dense_model(), 8, {{"tp", 2}}, unfused));
  const auto attention = [](const Op& op) { return op.cls == OpClass::kAttention; };
  // 2 matmuls of s x s x d on 8 heads a rank, 8 layers, 16 micro-batches; backward 4
  const double forward = 2 * 2.0 * 2048 * 2048 * 64 * 8 * 8 * 16;
  EXPECT_DOUBLE_EQ(flops(step, 'F', attention), forward);
  EXPECT_DOUBLE_EQ(flops(step, 'B', attention), 2 * forward);
}

bool is_forward(const Op& op) {
  return (op.cls == OpClass::kGemm || op.cls == OpClass::kAttention) && op.kernel.role == Role::kForward;
}
bool is_head(const Op& op) { return is_named(op, "lm_head"); }

TEST(Recompute, OfEverythingIsOneForwardMoreOfTheLayers) {
  for (const Json& model : {dense_model(), moe_model()}) {
    const Json layout = {{"tp", 2}, {"pp", 2}};
    const Step plain(scenario_json(model, 8, layout));
    const Step full(scenario_json(model, 8, layout, {{"recompute", {{"granularity", "full"}}}}));
    EXPECT_EQ(flops(plain, 'B', is_forward), 0);
    EXPECT_EQ(flops(full, 'F', is_forward), flops(plain, 'F', is_forward));
    EXPECT_DOUBLE_EQ(flops(full, 'B', is_forward),
                     flops(plain, 'F', is_forward) - flops(plain, 'F', is_head));
    const auto not_forward = [](const Op& op) { return !is_forward(op); };
    EXPECT_DOUBLE_EQ(flops(full, 'B', not_forward), flops(plain, 'B', not_forward));
  }
}

TEST(Recompute, OfEverythingRepeatsTheTransfers) {
  const auto dispatches = [](const Op& op) { return is_transfer(op, Collective::kDispatch, Group::kEp); };
  const Step plain(scenario_json(moe_model(), 8, {{"ep", 4}}));
  const Step full(scenario_json(moe_model(), 8, {{"ep", 4}}, {{"recompute", {{"granularity", "full"}}}}));
  EXPECT_EQ(count(plain, 'B', dispatches), 8 * 16);
  EXPECT_EQ(count(full, 'B', dispatches), 2 * 8 * 16);
}

// Of the first so many layers of each chunk: 2 chunks of 2 layers on 2 ranks.
TEST(Recompute, OfSomeLayersIsTheirForward) {
  const Json layout = {{"pp", 2}, {"vpp", 2}};
  const Step plain(scenario_json(dense_model(), 8, layout));
  const double layers = flops(plain, 'F', is_forward) - flops(plain, 'F', is_head);
  for (const std::int64_t n : {0, 1, 2, 5}) {
    const Step some(
        scenario_json(dense_model(), 8, layout, {{"recompute", {{"granularity", "full"}, {"layers", n}}}}));
    EXPECT_DOUBLE_EQ(flops(some, 'B', is_forward),
                     layers * static_cast<double>(std::min<std::int64_t>(n, 2)) / 2);
  }
}

TEST(Recompute, OfModulesIsThatModulesForward) {
  const auto recomputed = [](const Json& model, const char* module,
                             const std::function<bool(const Op&)>& counts) {
    const Step step(scenario_json(model, 8, Json::object(),
                                  {{"recompute", {{"granularity", "selective"}, {"modules", {module}}}}}));
    EXPECT_GT(flops(step, 'F', counts), 0) << module;
    EXPECT_DOUBLE_EQ(flops(step, 'B', [&](const Op& op) { return is_forward(op) && counts(op); }),
                     flops(step, 'B', is_forward))
        << module;  // nothing else
    return flops(step, 'B', is_forward) / flops(step, 'F', counts);
  };
  const auto attention = [](const Op& op) { return op.cls == OpClass::kAttention; };
  EXPECT_DOUBLE_EQ(recomputed(dense_model(), "core_attn", attention), 1);
  const auto named = [](std::set<std::string> names) {
    return [names](const Op& op) { return names.contains(op.name); };
  };
  EXPECT_DOUBLE_EQ(recomputed(dense_model(), "mlp", named({"fc1", "fc2", "fc1_recompute", "fc2_recompute"})),
                   1);
  EXPECT_DOUBLE_EQ(recomputed(moe_model(), "moe", named({"router", "expert_fc1", "expert_fc2"})), 1);
}

}  // namespace
}  // namespace stepcast::graph_test
