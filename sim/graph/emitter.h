// Writes tasks into a program the way a framework launches them: kernels on the compute stream, transfers on
// a stream of their own that waits for the kernel before, and the next kernel waits for the transfers that it
// needs.
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

class Emitter {
 public:
  explicit Emitter(StepGraph& graph) : graph_(graph) {}

  // Host launches of everything emitted from now on are multiplied by this (CUDA graphs, eager element-wise
  // work).
  void set_launch_factor(double factor) { launch_factor_ = factor; }

  void kernel(OpClass cls, const Kernel& kernel, double launches, const char* name,
              Stream stream = Stream::kCompute);
  // Starts when the kernels emitted so far in this pass are done. The next kernel does not wait for it until
  // `need`.
  Arrival transfer_async(OpClass cls, const Transfer& transfer, Stream stream, const char* name);
  // A transfer that the next kernel waits for.
  void transfer(OpClass cls, const Transfer& t, Stream stream, const char* name) {
    need(transfer_async(cls, t, stream, name));
  }
  void need(Arrival arrival) { pending_.push_back(arrival); }
  // The next kernel's launch waits until the GPU has done everything before it (a device-to-host copy of
  // sizes).
  void host_sync() { host_sync_ = true; }

  // The tasks so far. Dependencies run on from piece to piece of a pass; `start_pass` forgets them.
  Program take();
  void start_pass();

 private:
  std::uint32_t add_op(const Op& op);
  std::int32_t new_event() { return static_cast<std::int32_t>(graph_.events++); }
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
