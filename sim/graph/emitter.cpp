#include "graph/emitter.h"

#include <cmath>
#include <utility>

namespace stepcast {

std::uint32_t Emitter::add_op(const Op& op) {
  graph_.ops.push_back(op);
  return static_cast<std::uint32_t>(graph_.ops.size() - 1);
}

void Emitter::kernel(OpClass cls, const Kernel& kernel, double launches, const char* name, Stream stream) {
  Op op;
  op.cls = cls;
  op.kernel = kernel;
  op.name = name;
  Task task;
  task.op = add_op(op);
  task.stream = stream;
  launch_carry_ += launches * launch_factor_;  // whole launches; the rest is carried on
  task.launches = static_cast<std::uint16_t>(std::floor(launch_carry_));
  launch_carry_ -= task.launches;
  task.host_sync = std::exchange(host_sync_, false);
  // One wait is an event; for further ones the tails of their streams serve.
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    if (i == 0)
      task.wait_event = pending_[0].event;
    else
      task.joins |= bit(pending_[i].stream);
  }
  pending_.clear();
  if (stream == Stream::kCompute) last_kernel_ = static_cast<std::int32_t>(program_.size());
  program_.push_back(task);
}

std::int32_t Emitter::last_kernel_event() {
  if (last_kernel_ == kNone) return carried_event_;
  Task& last = program_[static_cast<std::size_t>(last_kernel_)];
  if (last.record_event < 0) last.record_event = new_event();
  return last.record_event;
}

Arrival Emitter::transfer_async(OpClass cls, const Transfer& transfer, Stream stream, const char* name) {
  Op op;
  op.cls = cls;
  op.communicates = true;
  op.transfer = transfer;
  op.name = name;
  Task task;
  task.op = add_op(op);
  task.stream = stream;
  task.launches = launch_factor_ > 0 ? 1 : 0;
  task.record_event = new_event();
  task.wait_event = last_kernel_event();
  if (task.wait_event < 0) task.joins |= bit(Stream::kCompute);
  // transfers that no kernel has consumed yet come first
  for (const Arrival& before : pending_)
    if (before.stream != stream) task.joins |= bit(before.stream);
  program_.push_back(task);
  return {task.record_event, stream};
}

Program Emitter::take() {
  carried_event_ = last_kernel_event();
  last_kernel_ = kNone;
  return std::exchange(program_, {});
}

void Emitter::start_pass() {
  program_.clear();
  pending_.clear();
  last_kernel_ = kNone;
  carried_event_ = -1;
  launch_carry_ = 0;
  host_sync_ = false;
}

}  // namespace stepcast
