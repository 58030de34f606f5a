// The loss table: hand-made runs whose every instant is known, and shipped scenarios that must add up.
#include "result/breakdown.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "result/forecast.h"
#include "unit/graph/scenarios.h"

namespace stepcast {
namespace {

using Table = std::map<std::string, double>;  // ticks by class, what is zero left out

// A graph of one-off tasks, replayed under the recorder. Times in ticks.
class Timeline {
 public:
  explicit Timeline(std::int32_t ranks = 1) { graph_.ranks = ranks; }

  Task task(Ticks duration, OpClass cls = OpClass::kGemm, Stream stream = Stream::kCompute) {
    Task task;
    task.op = op(duration, cls);
    task.stream = stream;
    return task;
  }
  // A transfer on its class's stream that starts after the event and records one.
  Task transfer(Ticks duration, OpClass cls, Stream stream, std::int32_t after, std::int32_t done) {
    Task t = task(duration, cls, stream);
    t.wait[0] = after;
    t.record_event = done;
    return t;
  }
  Instance& run(std::int32_t rank, Program program) {
    graph_.programs.push_back(std::move(program));
    Instance instance;
    instance.rank = rank;
    instance.program = static_cast<std::int32_t>(graph_.programs.size() - 1);
    graph_.instances.push_back(instance);
    return graph_.instances.back();
  }
  Message message(Ticks duration) {
    return {graph_.messages++, static_cast<std::int32_t>(op(duration, OpClass::kPp))};
  }
  std::int32_t event() { return graph_.events++; }
  void barrier() { graph_.barrier = graph_.instances.size(); }

  Table table(std::int32_t rank, Ticks launch = 0) const {
    RankRecorder recorder(graph_, rank);
    const ReplayResult result = replay({graph_, durations_, launch}, recorder);
    Table table;
    double sum = 0;
    for (const auto& [name, value] : recorder.breakdown(result.makespan).seconds) {
      sum += value * kTicksPerSecond;
      if (value != 0) table[name] = std::nearbyint(value * kTicksPerSecond);
    }
    EXPECT_NEAR(sum, result.makespan, 1e-6);
    return table;
  }

 private:
  std::uint32_t op(Ticks duration, OpClass cls) {
    Op op;
    op.cls = cls;
    op.communicates = (cls >= OpClass::kTp && cls <= OpClass::kDp);
    graph_.ops.push_back(op);
    durations_.push_back(duration);
    return static_cast<std::uint32_t>(graph_.ops.size() - 1);
  }

  StepGraph graph_;
  std::vector<Ticks> durations_;
};

Task launched(Task task, std::uint16_t launches) {
  task.launches = launches;
  return task;
}
Task waiting(Task task, std::int32_t event) {
  task.wait[0] = event;
  return task;
}
Task recording(Task task, std::int32_t event) {
  task.record_event = event;
  return task;
}

TEST(Breakdown, HoldsComputeByItsClass) {
  Timeline r;
  r.run(0, {r.task(1, OpClass::kGemm), r.task(2, OpClass::kAttention), r.task(3, OpClass::kMemoryBound),
            r.task(4, OpClass::kOptimizer), r.task(5, OpClass::kImbalance), r.task(6, OpClass::kOther),
            r.task(7, OpClass::kDp)});  // contention of a transfer on the compute stream
  EXPECT_EQ(r.table(0), (Table{{"gemm", 1},
                               {"attention", 2},
                               {"memory_bound", 3},
                               {"optimizer", 4},
                               {"imbalance", 5},
                               {"other", 6},
                               {"dp", 7}}));
}

TEST(Breakdown, NamesEveryClassOfTheContract) {
  StepGraph graph;
  RankRecorder recorder(graph, 0);
  std::vector<std::string> names;
  for (const auto& [name, value] : recorder.breakdown(0).seconds) {
    names.push_back(name);
    EXPECT_EQ(value, 0);
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"gemm", "attention", "memory_bound", "tp", "cp", "ep", "pp", "dp",
                                      "bubble", "imbalance", "host", "optimizer", "jitter", "other"}));
}

TEST(Breakdown, CountsTheExposedPartOfATransfer) {
  Timeline r;
  const std::int32_t before = r.event(), done = r.event();
  // Kernel 0 to 10, transfer 10 to 30, a kernel beside it 10 to 15, and one that needs it 30 to 40: 15 are
  // exposed.
  r.run(0, {recording(r.task(10), before), r.transfer(20, OpClass::kTp, Stream::kTp, before, done), r.task(5),
            waiting(r.task(10), done)});
  EXPECT_EQ(r.table(0), (Table{{"gemm", 25}, {"tp", 15}}));
}

TEST(Breakdown, GivesAHiddenTransferNoTime) {
  Timeline r;
  const std::int32_t before = r.event(), done = r.event();
  r.run(0, {recording(r.task(10), before), r.transfer(20, OpClass::kEp, Stream::kEp, before, done),
            r.task(50), waiting(r.task(10), done)});
  EXPECT_EQ(r.table(0), (Table{{"gemm", 70}}));
}

TEST(Breakdown, GivesEachInstantToOneTransfer) {
  Timeline r;
  const std::int32_t before = r.event(), dp = r.event(), tp = r.event();
  // DP 10 to 20 and TP 10 to 40 beside each other; of those that started together the shorter comes first.
  r.run(0, {recording(r.task(10), before), r.transfer(30, OpClass::kTp, Stream::kTp, before, tp),
            r.transfer(10, OpClass::kDp, Stream::kDp, before, dp), waiting(r.task(5), tp)});
  EXPECT_EQ(r.table(0), (Table{{"gemm", 15}, {"dp", 10}, {"tp", 20}}));
}

TEST(Breakdown, CountsEachOfSeveralTransfersInARow) {
  Timeline r;
  const std::int32_t before = r.event(), tp = r.event(), cp = r.event();
  r.run(0, {recording(r.task(10), before), r.transfer(7, OpClass::kTp, Stream::kTp, before, tp),
            r.transfer(9, OpClass::kCp, Stream::kCp, tp, cp), waiting(r.task(5), cp)});
  EXPECT_EQ(r.table(0), (Table{{"gemm", 15}, {"tp", 7}, {"cp", 9}}));
}

TEST(Breakdown, CallsALateLaunchHost) {
  Timeline r;
  // Launch 2: the first kernel 2 to 3; the second needs 5 launches and runs 12 to 13.
  r.run(0, {launched(r.task(1), 1), launched(r.task(1), 5)});
  EXPECT_EQ(r.table(0, 2), (Table{{"gemm", 2}, {"host", 11}}));
}

TEST(Breakdown, PutsATransferBeforeALateLaunch) {
  Timeline r;
  const std::int32_t before = r.event(), done = r.event();
  // Kernel 1 to 2, transfer 2 to 10 (launched at 2), the kernel behind it launched at 20: 8 of transfer, 10
  // of host.
  r.run(0, {recording(launched(r.task(1), 1), before),
            launched(r.transfer(8, OpClass::kTp, Stream::kTp, before, done), 1),
            waiting(launched(r.task(1), 18), done)});
  EXPECT_EQ(r.table(0, 1), (Table{{"gemm", 2}, {"tp", 8}, {"host", 11}}));
}

// The launching thread is late with the transfer that the next kernel needs: that wait is the host's too.
// There is no other rank to wait for.
TEST(Breakdown, CallsTheLateLaunchOfATransferHost) {
  Timeline r;
  const std::int32_t before = r.event(), done = r.event();
  // Kernel 1 to 2; the transfer needs 40 launches and runs 41 to 50; the kernel behind it 50 to 51.
  r.run(0, {recording(launched(r.task(1), 1), before),
            launched(r.transfer(9, OpClass::kTp, Stream::kTp, before, done), 40),
            waiting(launched(r.task(1), 1), done)});
  EXPECT_EQ(r.table(0, 1), (Table{{"gemm", 2}, {"tp", 9}, {"host", 40}}));
}

TEST(Breakdown, CallsTheWaitForAPeerBubbleAndItsTransferPp) {
  Timeline r(2);
  const Message sent = r.message(4);
  r.run(0, {r.task(10)}).send[0] = sent;
  r.run(1, {r.task(3)}).receive[0] = sent.number;
  EXPECT_EQ(r.table(1), (Table{{"bubble", 10}, {"pp", 4}, {"gemm", 3}}));
  // the sender: its own work and send, then the wait for the other's end
  EXPECT_EQ(r.table(0), (Table{{"gemm", 10}, {"pp", 4}, {"bubble", 3}}));
}

TEST(Breakdown, CountsABlockingSend) {
  Timeline r(2);
  const Message sent = r.message(4);
  Instance& sender = r.run(0, {r.task(10)});
  sender.send[0] = sent;
  sender.blocking = true;
  r.run(0, {r.task(5)});
  EXPECT_EQ(r.table(0), (Table{{"gemm", 15}, {"pp", 4}}));
}

TEST(Breakdown, CallsTheWaitAtTheBarrierBubble) {
  Timeline r(2);
  r.run(0, {r.task(4)});
  r.run(1, {r.task(10)});
  r.barrier();
  r.run(0, {r.task(3, OpClass::kOptimizer)});
  r.run(1, {r.task(2, OpClass::kOptimizer)});
  EXPECT_EQ(r.table(0), (Table{{"gemm", 4}, {"bubble", 6}, {"optimizer", 3}}));
  EXPECT_EQ(r.table(1), (Table{{"gemm", 10}, {"optimizer", 2}, {"bubble", 1}}));
}

TEST(Breakdown, CountsWhatRunsAfterTheLastKernel) {
  Timeline r;
  const std::int32_t before = r.event(), done = r.event();
  r.run(0, {recording(r.task(10), before), r.transfer(7, OpClass::kDp, Stream::kDp, before, done)});
  EXPECT_EQ(r.table(0), (Table{{"gemm", 10}, {"dp", 7}}));
}

TEST(Breakdown, FindsAClassByItsName) {
  Breakdown breakdown;
  breakdown.seconds = {{"gemm", 2}, {"dp", 3}};
  EXPECT_EQ(breakdown.of("dp"), 3);
  EXPECT_EQ(breakdown.of("none"), 0);
  EXPECT_EQ(breakdown.total(), 5);
}

// --- of shipped scenarios ---

TEST(ShippedScenarios, AddUpToTheStepTime) {
  for (const auto& file : graph_test::shipped_scenarios()) {
    const Forecast f = forecast(load_scenario(file));
    EXPECT_GT(f.step_time_s, 0) << file;
    EXPECT_NEAR(f.breakdown.total(), f.step_time_s, 1e-9) << file;
    for (const auto& [name, value] : f.breakdown.seconds) EXPECT_GE(value, 0) << file << ' ' << name;
    EXPECT_GT(f.breakdown.of("gemm"), 0) << file;
    EXPECT_GT(f.breakdown.of("optimizer"), 0) << file;
  }
}

// There is no peer to wait for: idle time is a transfer's or the host's.
TEST(Bubble, IsNoneWithoutAPipeline) {
  using graph_test::dense_model, graph_test::moe_model, graph_test::read, graph_test::scenario_json;
  for (const Json& layout :
       {Json::object(), Json{{"tp", 4}}, Json{{"tp", 8}}, Json{{"cp", 4}}, Json{{"tp", 2}, {"cp", 2}}}) {
    const Forecast f = forecast(read(scenario_json(dense_model(), 8, layout)));
    EXPECT_EQ(f.breakdown.of("bubble"), 0) << layout.dump();
  }
  for (const Json& layout : {Json{{"ep", 8}}, Json{{"tp", 4}, {"ep", 8}, {"etp", 1}}}) {
    const Forecast f = forecast(read(scenario_json(moe_model(), 8, layout)));
    EXPECT_EQ(f.breakdown.of("bubble"), 0) << layout.dump();
  }
}

}  // namespace
}  // namespace stepcast
