#include "graph/emitter.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace stepcast {

void wait_for(Task& task, Arrival arrival) {
  const auto free = std::find(task.wait.begin(), task.wait.end(), -1);
  if (free != task.wait.end())
    *free = arrival.event;
  else
    task.joins |= bit(arrival.stream);
}

Task& Emitter::add(const Op& op, Stream stream) {
  graph_.ops.push_back(op);
  Task task;
  task.op = static_cast<std::uint32_t>(graph_.ops.size() - 1);
  task.stream = stream;
  task.host_sync = std::exchange(host_sync_, false);
  return program_.emplace_back(task);
}

void Emitter::kernel(OpClass cls, const Kernel& kernel, double launches, const char* name) {
  Op op;
  op.cls = cls;
  op.kernel = kernel;
  op.name = name;
  Task& task = add(op, Stream::kCompute);
  launch_carry_ += launches * launch_factor_;  // whole launches; the rest is carried on
  task.launches = static_cast<std::uint32_t>(std::floor(launch_carry_));
  launch_carry_ -= task.launches;
  for (const Arrival arrival : pending_) wait_for(task, arrival);
  pending_.clear();
  last_kernel_ = static_cast<std::int32_t>(program_.size() - 1);
}

std::int32_t Emitter::last_kernel_event() {
  if (last_kernel_ == kNone) return carried_event_;
  Task& last = program_[static_cast<std::size_t>(last_kernel_)];
  if (last.record_event < 0) last.record_event = new_event();
  return last.record_event;
}

Arrival Emitter::transfer_async(OpClass cls, const Transfer& transfer, Stream stream, const char* name,
                                double scale) {
  Op op;
  op.cls = cls;
  op.communicates = true;
  op.transfer = transfer;
  op.scale = scale;
  op.name = name;
  const std::int32_t after = last_kernel_event();
  Task& task = add(op, stream);
  task.launches = launch_factor_ > 0 ? 1 : 0;
  task.record_event = new_event();
  if (after < 0)
    task.joins |= bit(Stream::kCompute);
  else
    wait_for(task, {after, Stream::kCompute});
  for (const Arrival before : pending_)
    if (before.stream != stream) wait_for(task, before);
  return {task.record_event, stream};
}

std::vector<Arrival> Emitter::take_needs() { return std::exchange(pending_, {}); }

Program Emitter::take() {
  carried_event_ = last_kernel_event();
  last_kernel_ = kNone;
  return std::exchange(program_, {});
}

Program Emitter::finish() {
  if (!pending_.empty()) {
    Op nothing;
    nothing.cls = OpClass::kOther;
    nothing.name = "wait";
    Task& task = add(nothing, Stream::kCompute);
    for (const Arrival arrival : pending_) wait_for(task, arrival);
  }
  pending_.clear();
  last_kernel_ = kNone;
  carried_event_ = -1;
  launch_carry_ = 0;
  host_sync_ = false;
  return std::exchange(program_, {});
}

}  // namespace stepcast
