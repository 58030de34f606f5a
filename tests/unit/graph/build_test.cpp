// Graphs of whole steps: that they are well formed, and the bytes of data parallelism.
#include "graph/build.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/parameters.h"
#include "unit/graph/scenarios.h"

namespace stepcast::graph_test {
namespace {

// --- bytes of data parallelism ---

double dp_bytes(const Step& step, std::int32_t rank, Collective collective, Group group) {
  return step.sum([&](const Instance&,
                      const Op& op) { return is_transfer(op, collective, group) ? op.transfer.bytes : 0; },
                  rank);
}

// By hand, TP 2, PP 2 of the dense model: a layer has 1024 x 1024 (queries) + 2 x 1024 x 256 (keys, values) +
// 1024 x 1024 (output) + 3 x 1024 x 4096 (FFN) = 15204352 that TP shards and 2 x 1024 norms that it does not;
// the embedding and the output matrix have 32768 x 1024 each; the final norm 1024.
constexpr double kDenseLayer = 15204352.0 / 2 + 2048;
constexpr double kEnd = 32768.0 * 1024 / 2;
constexpr double kDenseRank[] = {4 * kDenseLayer + kEnd, 4 * kDenseLayer + kEnd + 1024};

TEST(DataParallelBytes, AreThoseOfTheRanksParameters) {
  for (const Json& overlap : {Json::object(), Json{{"grad_reduce", false}, {"param_gather", false}},
                              Json{{"param_gather", false}}}) {
    for (const Json& layout : {Json{{"tp", 2}, {"pp", 2}}, Json{{"tp", 2}, {"pp", 2}, {"vpp", 2}},
                               Json{{"tp", 2}, {"pp", 2}, {"schedule", "gpipe"}}}) {
      const Step step(scenario_json(dense_model(), 16, layout, {{"overlap", overlap}}));
      for (const std::int32_t rank : {0, 1}) {
        // gradients in FP32, parameters in BF16
        EXPECT_DOUBLE_EQ(dp_bytes(step, rank, Collective::kReduceScatter, Group::kDpCp), 4 * kDenseRank[rank])
            << layout.dump();
        EXPECT_DOUBLE_EQ(dp_bytes(step, rank, Collective::kAllGather, Group::kDpCp), 2 * kDenseRank[rank])
            << layout.dump();
        EXPECT_EQ(dp_bytes(step, rank, Collective::kAllReduce, Group::kDpCp), 0);
      }
    }
  }
}

TEST(DataParallelBytes, AreAnAllReduceWithoutSharding) {
  const Step step(
      scenario_json(dense_model(), 16, {{"tp", 2}, {"pp", 2}}, {{"sharding", {{"zero_stage", 0}}}}));
  for (const std::int32_t rank : {0, 1}) {
    EXPECT_DOUBLE_EQ(dp_bytes(step, rank, Collective::kAllReduce, Group::kDpCp), 4 * kDenseRank[rank]);
    EXPECT_EQ(dp_bytes(step, rank, Collective::kReduceScatter, Group::kDpCp), 0);
    EXPECT_EQ(dp_bytes(step, rank, Collective::kAllGather, Group::kDpCp), 0);
  }
}

TEST(DataParallelBytes, FollowTheFormatOfGradients) {
  const Step step(
      scenario_json(dense_model(), 16, {{"tp", 2}, {"pp", 2}}, {{"optimizer", {{"grad_dtype", "bf16"}}}}));
  EXPECT_DOUBLE_EQ(dp_bytes(step, 0, Collective::kReduceScatter, Group::kDpCp), 2 * kDenseRank[0]);
}

// Experts are reduced over EDP: 32 x 3 x 1024 x 512 a layer over EP 8; attention, norms and the router over
// DP.
TEST(DataParallelBytes, OfExpertsGoOverTheirOwnGroup) {
  const Step step(scenario_json(moe_model(), 16, {{"ep", 8}}));
  const double experts = 8 * 32.0 * 3 * 1024 * 512 / 8;
  const double dense = 8 * (2621440.0 + 2048 + 1024 * 32) + 2 * 32768.0 * 1024 + 1024;
  EXPECT_DOUBLE_EQ(dp_bytes(step, 0, Collective::kReduceScatter, Group::kEdp), 4 * experts);
  EXPECT_DOUBLE_EQ(dp_bytes(step, 0, Collective::kAllGather, Group::kEdp), 2 * experts);
  EXPECT_DOUBLE_EQ(dp_bytes(step, 0, Collective::kReduceScatter, Group::kDpCp), 4 * dense);
  EXPECT_DOUBLE_EQ(dp_bytes(step, 0, Collective::kAllGather, Group::kDpCp), 2 * dense);
}

TEST(DataParallelBytes, AreNoneOnOneReplica) {
  const Step step(scenario_json(dense_model(), 4, {{"tp", 2}, {"pp", 2}}));
  EXPECT_EQ(step.sum([](const Instance&, const Op& op) {
    return op.transfer.group == Group::kDpCp ? op.transfer.bytes : 0;
  }),
            0);
}

// ZeRO-3: each micro-batch gathers a layer for the forward and for the backward; embedding, output matrix and final norm
// stay gathered in between (FSDP does not reshard its root); it reduces every gradient.
TEST(DataParallelBytes, OfFullyShardedParametersGoWithEveryMicrobatch) {
  const Step step(scenario_json(dense_model(), 8, Json::object(),
                                {{"sharding", {{"zero_stage", 3}, {"engine", "fsdp"}}}}));
  const double layers = 8 * (15204352.0 + 2048), ends = 2 * 32768.0 * 1024 + 1024, parameters = layers + ends;
  EXPECT_DOUBLE_EQ(dp_bytes(step, 0, Collective::kReduceScatter, Group::kDpCp), 16 * 4 * parameters);
  EXPECT_DOUBLE_EQ(dp_bytes(step, 0, Collective::kAllGather, Group::kDpCp), 16 * 2 * (2 * layers + ends));
}

TEST(DataParallelBytes, OfShippedScenariosAreThoseOfTheirParameters) {
  for (const auto& file : shipped_scenarios()) {
    const Step step(load_scenario(file));
    const Scenario& s = step.scenario;
    if (s.sharding.zero_stage != 1 || s.sharding.node_scope) continue;
    double reduced = 0;  // whole model, from every GPU's share
    for (std::int32_t rank = 0; rank < step.graph.ranks; ++rank)
      reduced += dp_bytes(step, rank, Collective::kReduceScatter, Group::kEdp) *
                 static_cast<double>(s.layout.ep * s.layout.etp);
    double experts = 0;
    for (std::int64_t layer = 0; layer < s.model.layers; ++layer)
      experts += static_cast<double>(decoder_layer_parameters(s.model, layer).experts);
    experts += static_cast<double>(s.model.mtp_layers * mtp_layer_parameters(s.model).experts);
    const double expected = s.layout.edp > 1 ? experts * static_cast<double>(s.optimizer.grad_bytes) : 0;
    EXPECT_NEAR(reduced, expected, 1e-9 * expected) << file;
  }
}

// Gradients are whole only when the last backward of a chunk to run has run.
TEST(DataParallel, ReducesGradientsInTheLastBackwardOfAChunk) {
  for (const Json& layout :
       {Json{{"pp", 4}}, Json{{"pp", 4}, {"vpp", 2}}, Json{{"pp", 4}, {"schedule", "gpipe"}}}) {
    const Step step(scenario_json(dense_model(), 8, layout));
    std::map<std::pair<std::int32_t, std::int32_t>, std::pair<double, double>>
        last;  // bytes of the last, of all
    for (const Instance& instance : step.graph.instances) {
      if (instance.phase != 'B') continue;
      double bytes = 0;
      for (const Task& task : step.program_of(instance))
        if (is_transfer(step.op_of(task), Collective::kReduceScatter, Group::kDpCp))
          bytes += step.op_of(task).transfer.bytes;
      auto& [of_last, all] = last[{instance.rank, instance.chunk}];
      of_last = bytes;
      all += bytes;
    }
    for (const auto& [chunk, bytes] : last) {
      EXPECT_GT(bytes.second, 0) << layout.dump();
      EXPECT_EQ(bytes.first, bytes.second)
          << layout.dump() << " rank " << chunk.first << " chunk " << chunk.second;
    }
  }
}

// --- well formed ---

void expect_well_formed(const Step& step, const std::string& what) {
  const StepGraph& g = step.graph;
  const auto ok = [&](bool good, const char* rule) { EXPECT_TRUE(good) << rule << ": " << what; };
  std::vector<int> sent(static_cast<std::size_t>(g.messages), 0), received(sent);
  std::vector<std::set<std::int32_t>> recorded(static_cast<std::size_t>(g.ranks));
  bool messages = true, in_order = true, events = true, ids = true;
  for (const Instance& instance : g.instances) {
    ids = ids && instance.rank >= 0 && instance.rank < g.ranks && instance.program >= 0 &&
          instance.program < static_cast<std::int32_t>(g.programs.size());
    for (const std::int32_t number : instance.receive) {
      if (number == kNone) continue;
      messages = messages && number >= 0 && number < g.messages;
      in_order = in_order && sent[static_cast<std::size_t>(number)] == 1;
      ++received[static_cast<std::size_t>(number)];
    }
    for (const Task& task : step.program_of(instance)) {
      ids = ids && task.op < g.ops.size();
      auto& known = recorded[static_cast<std::size_t>(instance.rank)];
      for (const std::int32_t event : task.wait)
        if (event >= 0) events = events && event < g.events && known.contains(event);
      if (task.record_event >= 0) known.insert(task.record_event);
      events = events && task.record_event < g.events;
      // an operation that communicates is on a stream of its own, but for what stands for its contention
      const Op& op = step.op_of(task);
      ids = ids && (op.communicates == (task.stream != Stream::kCompute) || op.scale != 1);
    }
    for (const Message& message : instance.send) {
      if (message.number == kNone) continue;
      ids = ids && message.op < static_cast<std::int32_t>(g.ops.size());
      ++sent[static_cast<std::size_t>(message.number)];
    }
  }
  ok(ids, "indices are in range");
  ok(messages, "message numbers are in range");
  ok(in_order, "every message is sent before it is received");
  ok(events, "events are recorded before they are waited for");
  ok(sent == received && *std::max_element(sent.begin(), sent.end()) <= 1,
     "every message is sent and received once");
  ok(g.barrier < g.instances.size() && g.barrier + static_cast<std::size_t>(g.ranks) == g.instances.size(),
     "the barrier");
  for (const Op& op : g.ops) {
    const double size = op.communicates ? op.transfer.bytes : op.kernel.flops() + op.kernel.bytes;
    EXPECT_TRUE(std::isfinite(size) && size >= 0) << op.name << ": " << what;
    EXPECT_STRNE(op.name, "") << what;
  }
}

const std::vector<Json> kLayouts = {Json::object(),
                                    {{"tp", 2}},
                                    {{"pp", 2}},
                                    {{"pp", 4}, {"vpp", 2}},
                                    {{"pp", 4}, {"schedule", "gpipe"}},
                                    {{"tp", 2}, {"cp", 2}, {"pp", 2}},
                                    {{"cp", 4}, {"cp_comm", "a2a"}},
                                    {{"cp", 4}, {"cp_comm", "allgather"}}};

const std::vector<Json> kChanges = {
    Json::object(),
    {{"recompute", {{"granularity", "full"}}}},
    {{"recompute", {{"granularity", "selective"}, {"modules", {"core_attn", "mlp", "moe"}}}}},
    {{"overlap", {{"grad_reduce", false}, {"param_gather", false}, {"p2p", false}}}},
    {{"sharding", {{"zero_stage", 0}}}},
    {{"sharding", {{"zero_stage", 3}, {"engine", "fsdp"}}}},
    {{"sharding", {{"scope", "node"}}}},
    {{"kernels", {{"fused_norm", false}}}},
    {{"kernels", {{"cuda_graphs", "full"}}}},
    {{"precision", {{"recipe", "fp8-block"}}}},
    {{"optimizer", {{"kind", "sgd"}}}, {"offload", {{"optimizer_fraction", 1}}}}};

TEST(Graph, IsWellFormed) {
  for (const Json& layout : kLayouts)
    for (const Json& changes : kChanges)
      for (const bool experts : {false, true}) {
        if (layout.contains("vpp") && changes.contains("overlap"))
          continue;  // p2p must overlap at PP 2 (rule 15)
        Json sizes = layout;
        if (experts) sizes["ep"] = 2;
        if (experts) sizes["etp"] = 1;
        const Step step(scenario_json(experts ? moe_model() : dense_model(), 16, sizes, changes));
        expect_well_formed(step, sizes.dump() + changes.dump());
      }
}

// Fewer layers than stages: some ranks hold no parameters at all.
TEST(Graph, IsWellFormedWhereARankHoldsNothing) {
  for (const std::int64_t layers : {1, 2}) {
    for (const Json& layout : {Json{{"pp", 4}}, Json{{"pp", 8}}, Json{{"tp", 2}, {"pp", 4}},
                               Json{{"pp", 4}, {"vpp", 2}}, Json{{"pp", 4}, {"schedule", "gpipe"}}}) {
      for (const Json& changes : kChanges) {
        if (layout.contains("vpp") && changes.contains("overlap")) continue;
        Json model = dense_model();
        model["layers"] = layers;
        const Step step(scenario_json(model, 16, layout, changes));
        expect_well_formed(step, layout.dump() + changes.dump());
      }
    }
  }
}

TEST(Graph, OfShippedScenariosIsWellFormed) {
  for (const auto& file : shipped_scenarios()) expect_well_formed(Step(load_scenario(file)), file);
}

TEST(Graph, WithExpertOverlapIsWellFormed) {
  const Json overlap = {{"overlap", {{"moe_a2a", true}}}};
  expect_well_formed(Step(scenario_json(moe_model(), 8, {{"ep", 4}}, overlap)), "pp 1");
  expect_well_formed(Step(scenario_json(moe_model(), 16, {{"ep", 4}, {"pp", 2}, {"vpp", 2}}, overlap)),
                     "pp 2 vpp 2");
  expect_well_formed(Step(scenario_json(moe_model(), 16, {{"ep", 4}, {"pp", 4}, {"vpp", 2}}, overlap)),
                     "pp 4 vpp 2");
}

// Where a rank's whole pipeline is warm-up (domain 5.3: then there is no steady phase), nothing is left to
// pair.
TEST(Graph, WithExpertOverlapHasNoPairWithoutASteadyPhase) {
  for (const Json& layout :
       {Json{{"ep", 4}, {"pp", 4}, {"vpp", 2}}, Json{{"ep", 4}, {"pp", 2}, {"vpp", 2}}}) {
    const std::int64_t pp = layout["pp"];
    const Json changes = {{"overlap", {{"moe_a2a", true}}},
                          {"batch", {{"global", pp * (16 / pp)}}}};  // m = p
    EXPECT_NO_THROW(expect_well_formed(Step(scenario_json(moe_model(), 16, layout, changes)), layout.dump()));
  }
}

// The same work, with and without overlap.
TEST(Graph, WithExpertOverlapHoldsTheSameWork) {
  const Json layout = {{"ep", 4}, {"pp", 2}, {"vpp", 2}};
  const Step plain(scenario_json(moe_model(), 16, layout));
  const Step overlapped(scenario_json(moe_model(), 16, layout, {{"overlap", {{"moe_a2a", true}}}}));
  const auto work = [](const Instance&, const Op& op) {
    return op.communicates ? op.transfer.bytes : op.kernel.flops();
  };
  EXPECT_GT(overlapped.sum([](const Instance& i, const Op&) { return i.phase == 'C' ? 1 : 0; }), 0);
  EXPECT_NEAR(overlapped.sum(work) / plain.sum(work), 1, 1e-12);
}

// What a pass sends over TP, CP or EP is needed by a kernel of that pass: no transfer may dangle.
TEST(Graph, WaitsForEveryTransferOfAPass) {
  for (const Json& layout :
       {Json{{"tp", 4}}, Json{{"tp", 2}, {"cp", 2}}, Json{{"tp", 2}, {"ep", 4}, {"etp", 2}}}) {
    const bool experts = layout.contains("ep");
    const Step step(scenario_json(experts ? moe_model() : dense_model(), 8, layout));
    std::set<std::string> dangling;
    for (const Instance& instance : step.graph.instances) {
      if (instance.phase != 'F' && instance.phase != 'B') continue;
      const Program& program = step.program_of(instance);
      for (std::size_t i = 0; i < program.size(); ++i) {
        const Task& transfer = program[i];
        if (transfer.stream == Stream::kCompute || transfer.stream == Stream::kDp) continue;
        const bool awaited = std::any_of(
            program.begin() + static_cast<std::ptrdiff_t>(i) + 1, program.end(), [&](const Task& t) {
              return t.stream == Stream::kCompute &&
                     (std::find(t.wait.begin(), t.wait.end(), transfer.record_event) != t.wait.end() ||
                      (t.joins & bit(transfer.stream)) != 0);
            });
        if (!awaited) dangling.insert(std::string(1, instance.phase) + " " + step.op_of(transfer).name);
      }
    }
    EXPECT_TRUE(dangling.empty()) << layout.dump() << ": " << Json(dangling).dump();
  }
}

// What overlap.shared_expert says: shared experts run beside the dispatch, so they must not wait for it.
TEST(Graph, RunsSharedExpertsBesideTheDispatch) {
  Json model = moe_model();
  model["moe"]["shared_ffn_hidden"] = 512;
  const Step step(scenario_json(model, 8, {{"ep", 8}}, {{"overlap", {{"shared_expert", true}}}}));
  int found = 0;
  for (const Program& program : step.graph.programs) {
    std::int32_t dispatched = -1;
    for (const Task& task : program) {
      const Op& op = step.op_of(task);
      if (is_transfer(op, Collective::kDispatch, Group::kEp)) dispatched = task.record_event;
      if (std::string(op.name) != "shared_fc1" || dispatched < 0) continue;
      ++found;
      EXPECT_EQ(std::find(task.wait.begin(), task.wait.end(), dispatched), task.wait.end());
      EXPECT_EQ(task.joins & bit(Stream::kEp), 0);
    }
  }
  EXPECT_GT(found, 0);
}

TEST(Graph, SendsTheActivationsOfAMicrobatchOverEveryBoundary) {
  for (const std::int64_t vpp : {1, 2}) {
    const Step step(scenario_json(dense_model(), 16, {{"tp", 2}, {"pp", 4}, {"vpp", vpp}}));
    std::int64_t sends = 0;
    for (const Instance& instance : step.graph.instances)
      for (const Message& message : instance.send) {
        if (message.number == kNone) continue;
        ++sends;
        ASSERT_NE(message.op, kNone);
        const Transfer& t = step.graph.ops[static_cast<std::size_t>(message.op)].transfer;
        EXPECT_EQ(t.collective, Collective::kSendRecv);
        EXPECT_EQ(t.bytes, 2048.0 / 2 * 1024 * 2);  // the sequence shard of a TP rank
      }
    EXPECT_EQ(sends, 2 * (4 * vpp - 1) * 16);  // p v - 1 boundaries, both ways, 16 micro-batches
  }
}

TEST(Graph, MarksInstancesWithWhatTheyRun) {
  const Step step(scenario_json(dense_model(), 8, {{"pp", 4}, {"vpp", 2}}));
  std::map<char, int> phases;
  for (const Instance& instance : step.graph.instances) ++phases[instance.phase];
  EXPECT_EQ(phases,
            (std::map<char, int>{{'S', 4}, {'F', 4 * 2 * 16}, {'B', 4 * 2 * 16}, {'D', 4}, {'O', 4}}));
}

TEST(Graph, IsTheSameTwice) {
  const Json json = scenario_json(moe_model(), 16, {{"tp", 2}, {"ep", 4}, {"pp", 2}});
  const Step a(json), b(json);
  ASSERT_EQ(a.graph.ops.size(), b.graph.ops.size());
  ASSERT_EQ(a.graph.task_count(), b.graph.task_count());
  const auto work = [](const Instance&, const Op& op) {
    return op.communicates ? op.transfer.bytes : op.kernel.flops() + op.kernel.bytes;
  };
  EXPECT_EQ(a.sum(work), b.sum(work));
}

// What refuses endless steps must not be far below the truth.
TEST(EstimateTasks, IsNearTheCount) {
  for (const auto& file : shipped_scenarios()) {
    const Step step(load_scenario(file));
    const double ratio = estimate_tasks(step.scenario) / static_cast<double>(step.graph.task_count());
    EXPECT_GT(ratio, 0.3) << file;
    EXPECT_LT(ratio, 10) << file;
  }
}

}  // namespace
}  // namespace stepcast::graph_test
