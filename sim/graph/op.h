// What a task of the step graph does: a kernel, or a transfer within a process group. Ops repeat massively,
// so tasks refer to them by index; a duration vector holds one time for each op.
#pragma once

#include <cstdint>

#include "cost/op.h"
#include "layout/groups.h"

namespace stepcast {

// Classes of the loss table (the result's `breakdown_s`) that a task can belong to.
enum class OpClass : std::uint8_t {
  kGemm,
  kAttention,
  kMemoryBound,
  kTp,
  kCp,
  kEp,
  kPp,
  kDp,
  kOptimizer,
  kImbalance,
  kOther
};

const char* name_of(OpClass c);

enum class Collective : std::uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kSendRecv,
  kDispatch,
  kCombine
};

// A transfer of the group of `group` that a rank takes part in. bytes: the full logical tensor (all-gather
// and reduce-scatter: of all ranks together; all-reduce, send: of one rank; all-to-all: what one rank sends
// to all).
struct Transfer {
  Collective collective = Collective::kAllReduce;
  Group group = Group::kTp;
  double bytes = 0;
  // Dispatch and combine of MoE tokens: `tokens` of one rank with `token_bytes` each go to `top_k` experts.
  double tokens = 0;
  double token_bytes = 0;
  enum class Part : std::uint8_t {
    kWhole,
    kInNode,
    kAcrossNodes
  } part = Part::kWhole;   // of the group (hybrid sharding)
  std::int64_t from = -1;  // send: the first ranks of the two stages
  std::int64_t to = -1;
};

struct Op {
  OpClass cls = OpClass::kMemoryBound;
  bool communicates = false;
  Kernel kernel;          // when it does not communicate
  Transfer transfer;      // when it does
  double fixed_s = 0;     // a duration given as such (fixed step cost); used when positive
  double scale = 1;       // times the duration of the kernel or transfer
  bool contends = false;  // no transfer of its own: what one that runs beside kernels costs them
  const char* name = "";  // as in the profilers: static text
};

}  // namespace stepcast
