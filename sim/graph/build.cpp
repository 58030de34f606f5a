#include "graph/build.h"

#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>

#include "graph/chunk_programs.h"
#include "schedule/schedule.h"

namespace stepcast {
namespace {

class Builder {
 public:
  Builder(const Scenario& scenario, const StageSplit& split, const Stack& stack)
      : s_(scenario), split_(split), programs_(graph_, scenario, split, stack), m_(scenario.microbatches()) {
    graph_.ranks = static_cast<std::int32_t>(s_.layout.pp);
    const auto stages = static_cast<std::int64_t>(split.stages.size());
    graph_.messages = static_cast<std::int32_t>(2 * stages * m_);
  }

  StepGraph build() {
    for (std::int32_t rank = 0; rank < graph_.ranks; ++rank) simple(rank, programs_.start(rank), 'S');
    pipeline();
    for (std::int32_t rank = 0; rank < graph_.ranks; ++rank) simple(rank, programs_.gradient_sync(rank), 'D');
    graph_.barrier = graph_.instances.size();
    for (std::int32_t rank = 0; rank < graph_.ranks; ++rank) simple(rank, programs_.optimizer(rank), 'O');
    return std::move(graph_);
  }

 private:
  void simple(std::int32_t rank, Program program, char phase) {
    Instance instance;
    instance.rank = rank;
    instance.program = static_cast<std::int32_t>(graph_.programs.size());
    instance.phase = phase;
    graph_.programs.push_back(std::move(program));
    graph_.instances.push_back(instance);
  }

  // One op for each pair of neighbouring pipeline ranks: they may share a node or not.
  std::int32_t p2p_op(std::int64_t from, std::int64_t to) {
    const auto known = p2p_ops_.find({from, to});
    if (known != p2p_ops_.end()) return known->second;
    const Shapes x = shapes_of(s_);
    const std::int64_t stage_size = s_.cluster.gpus / s_.layout.pp;
    Op op;
    op.cls = OpClass::kPp;
    op.communicates = true;
    op.name = "p2p";
    op.transfer.collective = Collective::kSendRecv;
    op.transfer.group = Group::kPp;
    op.transfer.bytes = x.local_tokens * x.hidden * x.activation_bytes;
    op.transfer.from = from * stage_size;
    op.transfer.to = to * stage_size;
    graph_.ops.push_back(op);
    return p2p_ops_[{from, to}] = static_cast<std::int32_t>(graph_.ops.size() - 1);
  }

  // Activations of micro-batch i into stage q; gradients of its output.
  std::int32_t activation_message(std::int64_t stage, std::int64_t i) const {
    return static_cast<std::int32_t>(stage * m_ + i);
  }
  std::int32_t gradient_message(std::int64_t stage, std::int64_t i) const {
    return static_cast<std::int32_t>((static_cast<std::int64_t>(split_.stages.size()) + stage) * m_ + i);
  }
  Message message(std::int32_t number, std::int64_t from_stage, std::int64_t to_stage) {
    const std::int64_t from = split_.rank_of(from_stage);
    const std::int64_t to = split_.rank_of(to_stage);
    return {number, from == to ? kNone : p2p_op(from, to)};
  }

  void add_pass(Instance& instance, const PipelineOp& op) {
    const std::int64_t stage = split_.stage_of(instance.rank, op.chunk);
    const auto last = static_cast<std::int64_t>(split_.stages.size()) - 1;
    if (op.pass == 'F') {
      if (stage > 0) instance.receive[0] = activation_message(stage, op.microbatch);
      if (stage < last)
        instance.send[0] = message(activation_message(stage + 1, op.microbatch), stage, stage + 1);
    } else {
      if (stage < last) instance.receive[1] = gradient_message(stage, op.microbatch);
      if (stage > 0) instance.send[1] = message(gradient_message(stage - 1, op.microbatch), stage, stage - 1);
    }
  }

  // The instances of one rank in its own order.
  std::vector<Instance> rank_instances(std::int64_t rank) {
    const bool overlaps = s_.overlap.moe_a2a && s_.model.moe && s_.layout.ep > 1;
    PipelineShape shape{s_.layout.pp, split_.chunks, m_, s_.layout.microbatch_group, overlaps ? 1 : 0};
    const Schedule* schedule = find_schedule(s_.layout.schedule);
    if (schedule == nullptr) throw std::logic_error("no schedule " + s_.layout.schedule);
    const std::vector<PipelineOp> order = schedule->order(shape, rank);
    const bool p2p_overlaps = split_.chunks > 1 && s_.overlap.p2p;

    mark_edges(order);
    std::vector<Instance> instances;
    instances.reserve(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      const PipelineOp& op = order[i];
      Instance instance;
      instance.rank = static_cast<std::int32_t>(rank);
      instance.microbatch = static_cast<std::int32_t>(op.microbatch);
      instance.chunk = static_cast<std::int32_t>(op.chunk);
      instance.blocking = !p2p_overlaps && s_.layout.pp > 1;
      instance.phase = op.pass;
      add_pass(instance, op);
      const bool pairs = overlaps && op.pass == 'F' && i + 1 < order.size() && order[i + 1].pairs;
      if (pairs) {
        instance.phase = 'C';
        add_pass(instance, order[i + 1]);
        instance.program = program_of(rank, op, &order[i + 1]);
        ++i;
      } else {
        instance.program = program_of(rank, op, nullptr);
      }
      instances.push_back(instance);
    }
    return instances;
  }

  // The micro-batch of each chunk that a rank runs forward first, and backward last.
  void mark_edges(const std::vector<PipelineOp>& order) {
    const auto chunks = static_cast<std::size_t>(split_.chunks);
    first_forward_.assign(chunks, kNone);
    last_backward_.assign(chunks, kNone);
    for (const PipelineOp& op : order) {
      const auto chunk = static_cast<std::size_t>(op.chunk);
      if (op.pass == 'B') last_backward_[chunk] = op.microbatch;
      if (op.pass == 'F' && first_forward_[chunk] == kNone) first_forward_[chunk] = op.microbatch;
    }
  }

  // These carry the parameter gather and the gradient reduction.
  std::int32_t program_of(std::int64_t rank, const PipelineOp& op, const PipelineOp* beside) {
    const auto edge = [&](const PipelineOp& o) {
      return (o.pass == 'F' ? first_forward_ : last_backward_)[static_cast<std::size_t>(o.chunk)] ==
             o.microbatch;
    };
    const std::array<std::int64_t, 6> key = {
        rank, op.pass, op.chunk, edge(op), beside ? beside->chunk : -1, beside ? edge(*beside) : 0};
    const auto found = built_.find(key);
    if (found != built_.end()) return found->second;
    const std::int64_t stage = split_.stage_of(rank, op.chunk);
    Program program;
    if (beside != nullptr)
      program = programs_.overlapped(stage, edge(op), split_.stage_of(rank, beside->chunk), edge(*beside));
    else if (op.pass == 'F')
      program = programs_.forward(stage, edge(op));
    else
      program = programs_.backward(stage, edge(op));
    graph_.programs.push_back(std::move(program));
    return built_[key] = static_cast<std::int32_t>(graph_.programs.size() - 1);
  }

  // Merges the ranks' orders into one in which every message is sent before it is received.
  void pipeline() {
    std::vector<std::vector<Instance>> orders;
    for (std::int64_t rank = 0; rank < s_.layout.pp; ++rank) orders.push_back(rank_instances(rank));
    std::vector<std::size_t> next(orders.size(), 0);
    std::vector<bool> sent(static_cast<std::size_t>(graph_.messages), false);
    std::size_t left = 0;
    for (const auto& order : orders) left += order.size();
    graph_.instances.reserve(graph_.instances.size() + left + 2 * orders.size());
    const auto ready = [&](const Instance& instance) {
      return std::all_of(instance.receive.begin(), instance.receive.end(),
                         [&](std::int32_t n) { return n == kNone || sent[static_cast<std::size_t>(n)]; });
    };
    while (left > 0) {
      const std::size_t before = left;
      for (std::size_t rank = 0; rank < orders.size(); ++rank) {
        while (next[rank] < orders[rank].size() && ready(orders[rank][next[rank]])) {
          const Instance& instance = orders[rank][next[rank]++];
          for (const Message& m : instance.send)
            if (m.number != kNone) sent[static_cast<std::size_t>(m.number)] = true;
          graph_.instances.push_back(instance);
          --left;
        }
      }
      if (left == before) throw std::logic_error("schedule " + s_.layout.schedule + " deadlocks");
    }
  }

  const Scenario& s_;
  const StageSplit& split_;
  StepGraph graph_;
  ChunkPrograms programs_;
  std::int64_t m_;
  std::vector<std::int64_t> first_forward_;  // by chunk
  std::vector<std::int64_t> last_backward_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::int32_t> p2p_ops_;
  std::map<std::array<std::int64_t, 6>, std::int32_t> built_;
};

}  // namespace

StepGraph build_step(const Scenario& scenario, const StageSplit& split, const Stack& stack) {
  return Builder(scenario, split, stack).build();
}

double estimate_tasks(const Scenario& scenario) {
  const auto layers = static_cast<double>(scenario.model.layers + scenario.model.mtp_layers + 2);
  const auto stages = static_cast<double>(scenario.layout.pp * scenario.layout.vpp);
  const auto ring_steps = static_cast<double>(scenario.layout.cp);  // of attention, forward and backward
  return static_cast<double>(scenario.microbatches()) * ((80 + 4 * ring_steps) * layers + 10 * stages);
}

std::uint64_t StepGraph::task_count() const {
  std::uint64_t count = 0;
  for (const Instance& instance : instances)
    count += programs[static_cast<std::size_t>(instance.program)].size();
  return count;
}

const char* name_of(OpClass c) {
  static constexpr std::array kNames = {"gemm", "attention", "memory_bound", "tp",        "cp",   "ep",
                                        "pp",   "dp",        "optimizer",    "imbalance", "other"};
  return kNames[static_cast<std::size_t>(c)];
}

}  // namespace stepcast
