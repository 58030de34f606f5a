// Writes tasks into a program the way a framework launches them: kernels on the compute stream, transfers on a stream
// of their own that waits for the kernel before, and the next kernel waits for the transfers that it needs.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/step_graph.h"

namespace stepcast {

// A transfer that is under way: its completion event and stream.
struct Arrival {
  std::int32_t event = -1;
  Stream stream = Stream::kTp;
};

// The task waits for the event too; for the tail of `stream` when it waits for as many events as it can.
void wait_for(Task& task, Arrival arrival);

class Emitter {
 public:
  explicit Emitter(StepGraph& graph) : graph_(graph) {}

  // Host launches of everything emitted from now on are multiplied by this (CUDA graphs, eager element-wise work).
  void set_launch_factor(double factor) { launch_factor_ = factor; }

  void kernel(OpClass cls, const Kernel& kernel, double launches, const char* name);
  // Starts when the kernels emitted so far in this pass, and the transfers that the next kernel needs, are done. The
  // next kernel does not wait for it until `need`. `scale` multiplies its duration.
  Arrival transfer_async(OpClass cls, const Transfer& transfer, Stream stream, const char* name,
                         double scale = 1);
  // A transfer that the next kernel waits for.
  void transfer(OpClass cls, const Transfer& t, Stream stream, const char* name, double scale = 1) {
    need(transfer_async(cls, t, stream, name, scale));
  }
  void need(Arrival arrival) { pending_.push_back(arrival); }
  // What the next kernel would wait for, taken off it (to run other kernels beside those transfers).
  std::vector<Arrival> take_needs();
  // The next task's launch waits until the GPU has done everything before it (a device-to-host copy of sizes).
  void host_sync() { host_sync_ = true; }

  // The tasks so far. Dependencies run on from piece to piece of a pass.
  Program take();
  // The last piece of a pass; what no kernel has waited for yet is waited for here. The next pass starts afresh.
  Program finish();

 private:
  Task& add(const Op& op, Stream stream);
  std::int32_t new_event() { return graph_.events++; }
  // The event of the last kernel of this pass; -1 when there was none.
  std::int32_t last_kernel_event();

  StepGraph& graph_;
  Program program_;
  std::vector<Arrival> pending_;
  double launch_factor_ = 1;
  double launch_carry_ = 0;
  bool host_sync_ = false;
  std::int32_t last_kernel_ = kNone;  // index in program_
  std::int32_t carried_event_ = -1;   // of the last kernel of an earlier piece
};

}  // namespace stepcast
