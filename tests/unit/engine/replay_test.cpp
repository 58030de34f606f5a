// The replay of hand-built graphs, with times worked out by hand, and of whole pipelines against closed
// forms.
#include "engine/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "schedule/schedule.h"

namespace stepcast {
namespace {

// A graph in the making: one op a duration, programs of tasks, instances in order.
class Graph {
 public:
  explicit Graph(std::int32_t ranks = 1) { graph_.ranks = ranks; }

  std::uint32_t op(Ticks duration, OpClass cls = OpClass::kGemm) {
    Op op;
    op.cls = cls;
    op.communicates = (cls >= OpClass::kTp && cls <= OpClass::kDp);
    graph_.ops.push_back(op);
    durations_.push_back(duration);
    return static_cast<std::uint32_t>(graph_.ops.size() - 1);
  }

  // A task of `duration` on a stream; more of it is set on what is returned.
  Task task(Ticks duration, Stream stream = Stream::kCompute) {
    Task task;
    task.op = op(duration, stream == Stream::kCompute ? OpClass::kGemm : OpClass::kTp);
    task.stream = stream;
    return task;
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
  Message local_message() { return {graph_.messages++, kNone}; }
  std::int32_t event() { return graph_.events++; }
  void barrier() { graph_.barrier = graph_.instances.size(); }
  void change(std::uint32_t op, Ticks duration) { durations_[op] = duration; }

  ReplayResult replay(Ticks launch = 0) const { return stepcast::replay({graph_, durations_, launch}); }
  Ticks makespan(Ticks launch = 0) const { return replay(launch).makespan; }

  ReplayInput input(Ticks launch = 0) const { return {graph_, durations_, launch}; }

 private:
  StepGraph graph_;
  std::vector<Ticks> durations_;
};

Task joining(Task task, std::uint8_t streams) {
  task.joins = streams;
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
Task launched(Task task, std::uint16_t launches, bool host_sync = false) {
  task.launches = launches;
  task.host_sync = host_sync;
  return task;
}

// Records where every task ran.
struct Recorder {
  static constexpr bool kObserves = true;
  struct Ran {
    std::int32_t rank;
    Stream stream;
    Ticks ready, start, end;
  };
  std::vector<Ran> tasks;
  std::vector<std::tuple<std::int32_t, Ticks, Ticks>> messages;

  void task(std::int32_t rank, const Instance&, const Task& task, Ticks ready, Ticks start, Ticks end) {
    tasks.push_back({rank, task.stream, ready, start, end});
  }
  void message(std::int32_t receiver, std::uint32_t, Ticks start, Ticks end) {
    messages.emplace_back(receiver, start, end);
  }
};

// --- streams ---

TEST(Replay, OfNothingTakesNoTime) {
  Graph g;
  EXPECT_EQ(g.makespan(), 0);
  g.run(0, {});
  EXPECT_EQ(g.makespan(), 0);
  EXPECT_EQ(g.replay().tasks, 0u);
}

TEST(Replay, RunsTasksOfAStreamOneAfterTheOther) {
  Graph g;
  g.run(0, {g.task(3), g.task(4), g.task(5)});
  EXPECT_EQ(g.makespan(), 12);
  EXPECT_EQ(g.replay().tasks, 3u);
}

TEST(Replay, RunsStreamsBesideEachOther) {
  Graph g;
  g.run(0, {g.task(3), g.task(10, Stream::kTp), g.task(4), g.task(2, Stream::kDp)});
  EXPECT_EQ(g.makespan(), 10);  // compute 7, TP 10, DP 2
}

TEST(Replay, JoinsWaitForAllLaunchedSoFarOnThoseStreams) {
  Graph g;
  // TP runs 0 to 10; the second kernel waits for it and runs 10 to 15; the transfer launched after it does
  // not count.
  g.run(0,
        {g.task(3), g.task(10, Stream::kTp), joining(g.task(5), bit(Stream::kTp)), g.task(100, Stream::kTp)});
  EXPECT_EQ(g.makespan(), 110);
  Recorder seen;
  replay(g.input(), seen);
  EXPECT_EQ(seen.tasks[2].start, 10);
  EXPECT_EQ(seen.tasks[2].end, 15);
}

TEST(Replay, JoinsOfSeveralStreamsWaitForTheLast) {
  Graph g;
  g.run(0, {g.task(3, Stream::kTp), g.task(8, Stream::kEp), g.task(20, Stream::kDp),
            joining(g.task(1), bit(Stream::kTp) | bit(Stream::kEp))});
  Recorder seen;
  replay(g.input(), seen);
  EXPECT_EQ(seen.tasks[3].start, 8);
}

TEST(Replay, AnEventIsOneTaskNotTheTailOfItsStream) {
  Graph g;
  const std::int32_t event = g.event();
  // The transfer of the event runs 0 to 4, another on its stream 4 to 24; the kernel needs only the first.
  g.run(0, {recording(g.task(4, Stream::kTp), event), g.task(20, Stream::kTp), waiting(g.task(1), event)});
  Recorder seen;
  replay(g.input(), seen);
  EXPECT_EQ(seen.tasks[2].start, 4);
  EXPECT_EQ(g.makespan(), 24);
}

TEST(Replay, AnEventIsRecordedAgainEachTimeItsProgramRuns) {
  Graph g;
  const std::int32_t event = g.event();
  // Transfer 5 beside nothing, then a kernel of 1 that needs it: 6 each time, and no earlier completion
  // counts.
  const Program program = {joining(recording(g.task(5, Stream::kTp), event), bit(Stream::kCompute)),
                           waiting(g.task(1), event)};
  g.run(0, program);
  g.run(0, program);
  EXPECT_EQ(g.makespan(), 12);
}

TEST(Replay, KeepsTheStreamsOfRanksApart) {
  Graph g(2);
  g.run(0, {g.task(7)});
  g.run(1, {g.task(5)});
  g.run(0, {g.task(1)});
  const ReplayResult result = g.replay();
  EXPECT_EQ(result.rank_end, (std::vector<Ticks>{8, 5}));
  EXPECT_EQ(result.makespan, 8);
  EXPECT_EQ(result.last_rank, 0);
}

TEST(Replay, NamesTheLowestRankOfThoseThatEndLast) {
  Graph g(3);
  g.run(0, {g.task(4)});
  g.run(1, {g.task(9)});
  g.run(2, {g.task(9)});
  EXPECT_EQ(g.replay().last_rank, 1);
}

// --- the host ---

TEST(Replay, TheHostRunsAhead) {
  Graph g;
  // One launch of 2 a kernel of 10: only the first waits for the host.
  g.run(0, {launched(g.task(10), 1), launched(g.task(10), 1), launched(g.task(10), 1)});
  EXPECT_EQ(g.makespan(2), 32);
}

TEST(Replay, TheHostHoldsBackKernelsThatAreShort) {
  Graph g;
  // Three launches of 2 a kernel of 1: kernels start at 6, 12 and 18.
  g.run(0, {launched(g.task(1), 3), launched(g.task(1), 3), launched(g.task(1), 3)});
  EXPECT_EQ(g.makespan(2), 19);
  EXPECT_EQ(g.makespan(0), 3);
}

TEST(Replay, TheHostLaunchesForAllStreams) {
  Graph g;
  // Launch 5: the kernel 5 to 6, the transfer 10 to 11, the next kernel 15 to 16.
  g.run(0, {launched(g.task(1), 1), launched(g.task(1, Stream::kTp), 1), launched(g.task(1), 1)});
  EXPECT_EQ(g.makespan(5), 16);
}

TEST(Replay, ASyncMakesTheHostWaitForTheComputeStream) {
  Graph g;
  // Launch 2. Kernel of 20: 2 to 22. With the sync the host launches at 22 and the next kernel starts at 24.
  g.run(0, {launched(g.task(20), 1), launched(g.task(1), 1, true)});
  EXPECT_EQ(g.makespan(2), 25);
  Graph without;
  without.run(0, {launched(without.task(20), 1), launched(without.task(1), 1)});
  EXPECT_EQ(without.makespan(2), 23);
}

TEST(Replay, ASyncDoesNotWaitForOtherStreams) {
  Graph g;
  g.run(0, {launched(g.task(50, Stream::kEp), 1), launched(g.task(3), 1), launched(g.task(1), 1, true)});
  Recorder seen;
  replay(g.input(2), seen);
  EXPECT_EQ(seen.tasks[1].start, 4);
  EXPECT_EQ(seen.tasks[2].start, 9);  // 7 + 2
}

TEST(Replay, ReportsWhenATaskWasReadyButForTheHost) {
  Graph g;
  g.run(0, {launched(g.task(1), 1), launched(g.task(1), 10)});
  Recorder seen;
  replay(g.input(2), seen);
  EXPECT_EQ(seen.tasks[1].ready, 3);   // the end of the first
  EXPECT_EQ(seen.tasks[1].start, 22);  // 11 launches
}

// --- messages ---

TEST(Replay, AReceiverWaitsForTheMessage) {
  Graph g(2);
  const Message sent = g.message(4);
  g.run(0, {g.task(10)}).send[0] = sent;
  g.run(1, {g.task(3)}).receive[0] = sent.number;
  EXPECT_EQ(g.makespan(), 17);  // 10 + 4 + 3
}

TEST(Replay, ASenderGoesOnBesideItsSend) {
  Graph g(2);
  const Message sent = g.message(40);
  g.run(0, {g.task(10)}).send[0] = sent;
  g.run(0, {g.task(5)});
  g.run(1, {g.task(3)}).receive[0] = sent.number;
  Recorder seen;
  const ReplayResult result = replay(g.input(), seen);
  EXPECT_EQ(seen.tasks[2].start, 10);  // [1] is the send
  EXPECT_EQ(seen.tasks[1].stream, Stream::kSend);
  EXPECT_EQ(result.rank_end, (std::vector<Ticks>{50, 53}));
}

TEST(Replay, SendsOfARankRunOneAfterTheOther) {
  Graph g(2);
  const Message first = g.message(40);
  const Message second = g.message(40);
  g.run(0, {g.task(10)}).send[0] = first;   // 10 to 50
  g.run(0, {g.task(10)}).send[0] = second;  // ready at 20, sent 50 to 90
  g.run(1, {g.task(1)}).receive[0] = first.number;
  g.run(1, {g.task(1)}).receive[0] = second.number;
  EXPECT_EQ(g.replay().rank_end, (std::vector<Ticks>{90, 91}));
}

TEST(Replay, AMessageOfTheSameRankCostsNothing) {
  Graph g;
  const Message sent = g.local_message();
  g.run(0, {g.task(10)}).send[0] = sent;
  g.run(0, {g.task(5)}).receive[0] = sent.number;
  EXPECT_EQ(g.makespan(), 15);
}

TEST(Replay, WaitsForBothMessagesAndSendsBoth) {
  Graph g(3);
  const Message a = g.message(5);
  const Message b = g.message(2);
  const Message c = g.message(1);
  const Message d = g.message(1);
  g.run(0, {g.task(1)}).send[0] = a;   // there at 6
  g.run(2, {g.task(10)}).send[1] = b;  // there at 12
  Instance& both = g.run(1, {g.task(4)});
  both.receive = {a.number, b.number};
  both.send = {c, d};  // 16 to 17, 17 to 18
  g.run(0, {g.task(1)}).receive[1] = c.number;
  g.run(2, {g.task(1)}).receive[0] = d.number;
  EXPECT_EQ(g.replay().rank_end, (std::vector<Ticks>{18, 18, 19}));
}

TEST(Replay, ABlockingSendHoldsTheComputeStream) {
  Graph g(2);
  const Message sent = g.message(4);
  Instance& sender = g.run(0, {g.task(10)});
  sender.send[0] = sent;
  sender.blocking = true;
  g.run(0, {g.task(5)});
  EXPECT_EQ(g.makespan(), 19);  // 10 + 4 + 5
}

TEST(Replay, ABlockingReceiveHoldsTheHost) {
  const auto receiver_end = [](bool blocking) {
    Graph g(2);
    const Message sent = g.message(10);
    g.run(0, {}).send[0] = sent;
    Instance& receiver = g.run(1, {launched(g.task(1), 3)});
    receiver.receive[0] = sent.number;
    receiver.blocking = blocking;
    return g.replay(2).rank_end[1];
  };
  EXPECT_EQ(receiver_end(false), 11);  // launched while it waited
  EXPECT_EQ(receiver_end(true), 17);   // 10 + 3 launches of 2 + 1
}

TEST(Replay, ShowsAMessageToTheReceiver) {
  Graph g(2);
  const Message sent = g.message(4);
  g.run(0, {g.task(10)}).send[0] = sent;
  g.run(1, {}).receive[0] = sent.number;
  Recorder seen;
  replay(g.input(), seen);
  ASSERT_EQ(seen.messages.size(), 1u);
  EXPECT_EQ(seen.messages[0], (std::tuple<std::int32_t, Ticks, Ticks>{1, 10, 14}));
}

// --- the barrier ---

TEST(Replay, AtTheBarrierEveryRankWaitsForAll) {
  Graph g(3);
  g.run(0, {g.task(4)});
  g.run(1, {g.task(1), g.task(9, Stream::kDp)});  // a stream that is not compute counts too
  g.run(2, {g.task(2)});
  g.barrier();
  g.run(0, {g.task(1)});
  g.run(1, {g.task(2)});
  g.run(2, {g.task(3)});
  EXPECT_EQ(g.replay().rank_end, (std::vector<Ticks>{10, 11, 12}));
}

TEST(Replay, GivesTheSameTwiceAndToAnyObserver) {
  Graph g(2);
  const Message sent = g.message(4);
  g.run(0, {launched(g.task(10), 3), g.task(3, Stream::kTp)}).send[0] = sent;
  g.run(1, {launched(g.task(3), 2, true)}).receive[0] = sent.number;
  Recorder seen;
  EXPECT_EQ(g.makespan(2), replay(g.input(2), seen).makespan);
  EXPECT_EQ(g.makespan(2), g.makespan(2));
}

// Durations only enter sums and maxima: none that grows can shorten the run.
TEST(Replay, IsMonotoneInEveryDuration) {
  for (std::uint32_t grown = 0; grown < 5; ++grown) {
    Graph g(2);
    const Task a = launched(g.task(10), 3);
    const Task b = g.task(8, Stream::kTp);
    const Task c = joining(g.task(2), bit(Stream::kTp));
    const Message sent = g.message(4);
    const Task d = launched(g.task(3), 2, true);
    g.run(0, {a, b, c}).send[0] = sent;
    g.run(1, {d}).receive[0] = sent.number;
    const Ticks before = g.makespan(2);
    g.change(grown, 1000);
    EXPECT_GE(g.makespan(2), before);
  }
}

// --- pipelines ---

// A pipeline of a schedule: passes of `forward` and `backward` a chunk, messages that cost `transfer` between
// ranks.
Graph pipeline(const char* name, const PipelineShape& shape, Ticks forward, Ticks backward,
               Ticks transfer = 0, bool blocking = false) {
  Graph g(static_cast<std::int32_t>(shape.pp));
  const Program f = {g.task(forward)};
  const Program b = {g.task(backward)};
  const std::int64_t stages = shape.pp * shape.chunks;
  const std::int64_t last = stages - 1;
  std::vector<Message> messages;  // into F(q, i), then into B(q, i)
  for (std::int64_t i = 0; i < 2 * stages * shape.microbatches; ++i) messages.push_back(g.message(transfer));
  const auto index = [&](bool is_forward, std::int64_t stage, std::int64_t i) {
    return static_cast<std::size_t>(((is_forward ? 0 : stages) + stage) * shape.microbatches + i);
  };
  std::vector<std::vector<PipelineOp>> orders;
  for (std::int64_t rank = 0; rank < shape.pp; ++rank)
    orders.push_back(find_schedule(name)->order(shape, rank));
  std::vector<bool> sent(messages.size(), false);
  std::vector<std::size_t> next(orders.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < orders.size(); ++rank) {
      for (; next[rank] < orders[rank].size(); ++next[rank], moved = true) {
        const PipelineOp& op = orders[rank][next[rank]];
        const bool is_forward = op.pass == 'F';
        const std::int64_t stage = op.chunk * shape.pp + static_cast<std::int64_t>(rank);
        const bool receives = is_forward ? stage > 0 : stage < last;
        const bool sends = is_forward ? stage < last : stage > 0;
        const std::size_t in = index(is_forward, stage, op.microbatch);
        if (receives && !sent[in]) break;
        Instance& instance = g.run(static_cast<std::int32_t>(rank), is_forward ? f : b);
        instance.blocking = blocking;
        if (receives) instance.receive[0] = messages[in].number;
        if (!sends) continue;
        const std::size_t out = index(is_forward, is_forward ? stage + 1 : stage - 1, op.microbatch);
        instance.send[0] = messages[out];
        sent[out] = true;
      }
    }
  }
  for (std::size_t rank = 0; rank < orders.size(); ++rank)
    EXPECT_EQ(next[rank], orders[rank].size()) << "deadlock";
  return g;
}

PipelineShape shape(std::int64_t pp, std::int64_t m, std::int64_t chunks = 1) {
  return {pp, chunks, m, pp, 0};
}

// 1f1b_makespan_p4_m8: t_F = t_I = t_W = 1, so a backward takes 2; (m + p - 1) 3 = 33.
TEST(Pipeline, OneFOneBTakesTheOraclesTime) { EXPECT_EQ(pipeline("1f1b", shape(4, 8), 1, 2).makespan(), 33); }

// (p - 1)(t_F + t_B) of bubble over m (t_F + t_B) of work, for any times and sizes.
TEST(Pipeline, OneFOneBHasTheClosedFormsBubble) {
  for (const std::int64_t p : {1, 2, 4, 8})
    for (const std::int64_t m : {8, 12, 32})
      for (const auto& [f, b] : {std::pair{3.0, 5.0}, std::pair{7.0, 2.0}, std::pair{1.0, 1.0}})
        EXPECT_EQ(pipeline("1f1b", shape(p, m), f, b).makespan(), static_cast<double>(m + p - 1) * (f + b));
}

// bubble_fraction_1f1b: p 8, m 32: (p - 1) / (m + p - 1)
TEST(Pipeline, OneFOneBHasTheOraclesBubbleFraction) {
  const double makespan = pipeline("1f1b", shape(8, 32), 1, 2).makespan();
  EXPECT_NEAR((makespan - 32 * 3) / makespan, 0.1794871794871795, 1e-12);
}

// 3 m + 3 (p - 1) / v with t_F = t_I = t_W = 1 a full stage. In v-ths of a unit a chunk's forward takes 1 and
// its backward 2, so the oracle times v is a whole number.
TEST(Pipeline, InterleavedTakesTheOraclesTime) {
  EXPECT_EQ(pipeline("interleaved", shape(4, 8, 4), 1, 2).makespan() / 4,
            26.25);  // interleaved_makespan_p4_m8_v4
  EXPECT_EQ(pipeline("interleaved", shape(8, 16, 2), 1, 2).makespan() / 2,
            58.5);  // interleaved_makespan_p8_m16_v2
  EXPECT_EQ(pipeline("interleaved", shape(8, 16, 4), 1, 2).makespan() / 4,
            53.25);  // interleaved_makespan_p8_m16_v4
}

TEST(Pipeline, InterleavedHasTheClosedFormsBubble) {
  for (const std::int64_t p : {2, 4, 8})
    for (const std::int64_t v : {1, 2, 3})
      for (const std::int64_t m : {p, 2 * p, 4 * p}) {
        // v chunks of m micro-batches a rank, and a bubble of p - 1 chunk passes
        const auto chunks = static_cast<double>(m * v + p - 1);
        EXPECT_EQ(pipeline("interleaved", shape(p, m, v), 2, 4).makespan(), 6 * chunks)
            << p << ' ' << v << ' ' << m;
      }
}

// Domain 5.1: all forwards, then all backwards: (m + p - 1)(t_F + t_B).
TEST(Pipeline, GpipeHasTheClosedFormsBubble) {
  for (const std::int64_t p : {1, 2, 4, 8})
    for (const std::int64_t m : {1, 3, 8})
      EXPECT_EQ(pipeline("gpipe", shape(p, m), 3, 5).makespan(), static_cast<double>(m + p - 1) * 8);
}

// One micro-batch through p stages and back: p (t_F + t_B) and 2 (p - 1) transfers.
TEST(Pipeline, TransfersAreOnTheCriticalPath) {
  EXPECT_EQ(pipeline("1f1b", shape(4, 1), 3, 5, 2).makespan(), 4 * 8 + 6 * 2);
}

TEST(Pipeline, BlockingTransfersAreNeverFaster) {
  for (const std::int64_t m : {4, 8, 16}) {
    const Ticks beside = pipeline("1f1b", shape(4, m), 3, 5, 2).makespan();
    const Ticks blocking = pipeline("1f1b", shape(4, m), 3, 5, 2, true).makespan();
    EXPECT_GT(blocking, beside);
    // Each of the m forwards and backwards of an inner rank sends once: 2 m transfers at least.
    EXPECT_GE(blocking, static_cast<double>(m) * (3 + 5 + 2 * 2));
  }
}

// Of one pipeline, each rank is busy m (t_F + t_B) and the last rank to end is rank 0, which runs the last
// backward.
TEST(Pipeline, EndsOnTheFirstRank) {
  const ReplayResult result = pipeline("1f1b", shape(4, 8), 1, 2).replay();
  EXPECT_EQ(result.last_rank, 0);
  EXPECT_EQ(result.rank_end, (std::vector<Ticks>{33, 31, 29, 27}));  // two for each backward hop
}

}  // namespace
}  // namespace stepcast
