// A training step as a static graph, folded: one simulated rank stands for all ranks of its pipeline stage.
//
// Structure follows CUDA's. A rank has a host thread and streams; a *program* is a list of tasks in the order
// in which the host launches them. A task runs on its stream after
//   - the task launched before it on that stream,
//   - everything launched so far on the streams in `joins` (cudaStreamWaitEvent on their tails),
//   - the events in `wait` (earlier tasks' completions), and
//   - the host's launch of it: the host is busy `launches` x launch time, and with `host_sync` it first waits for
//     everything launched so far on the compute stream.
// An *instance* runs a program once on a rank, after a message from another rank and before sending one. The
// list of all instances is in an order in which every message is sent before it is received, so one scan
// replays the step: no predecessor lists, nothing to sort. Durations are apart from structure: one number an
// op.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/op.h"

namespace stepcast {

enum class Stream : std::uint8_t { kCompute, kTp, kCp, kEp, kDp, kSend };
inline constexpr std::size_t kStreams = 6;

inline constexpr std::uint8_t bit(Stream s) {
  return static_cast<std::uint8_t>(1U << static_cast<unsigned>(s));
}

struct Task {
  std::uint32_t op = 0;
  Stream stream = Stream::kCompute;
  std::uint8_t joins = 0;      // streams whose tails it waits for
  bool host_sync = false;      // the host waits for the compute stream before launching it
  std::uint32_t launches = 0;  // host launches
  std::array<std::int32_t, 3> wait = {-1, -1, -1};  // events; -1 = none
  std::int32_t record_event = -1;
};

using Program = std::vector<Task>;

inline constexpr std::int32_t kNone = -1;

// A message between pipeline ranks, sent when a program ends and needed before another starts.
struct Message {
  std::int32_t number = kNone;  // index into the replay's arrival times
  std::int32_t op = kNone;      // the transfer; kNone = both ends are on one rank
};

struct Instance {
  std::int32_t rank = 0;  // simulated rank = pipeline rank
  std::int32_t program = 0;
  // [0] of the forward, [1] of the backward; an instance that overlaps both has two of each
  std::array<std::int32_t, 2> receive = {kNone, kNone};
  std::array<Message, 2> send = {};
  bool blocking =
      false;  // p2p without overlap: the compute stream waits for the send, the host for the receive
  std::int32_t microbatch = kNone;  // for reports
  std::int32_t chunk = kNone;
  char phase = ' ';  // F forward, B backward, C both overlapped, S start, D gradient sync, O optimizer
};

struct StepGraph {
  std::vector<Op> ops;
  std::vector<Program> programs;
  std::vector<Instance> instances;  // in an order that respects every message
  std::size_t barrier = 0;  // every rank waits for all before this instance (gradient norm over the world)
  std::int32_t ranks = 1;
  std::int32_t messages = 0;
  std::int32_t events = 0;  // events of one rank, numbered from 0

  std::uint64_t task_count() const;
};

}  // namespace stepcast
