// How tasks wait for each other as they are written down.
#include "graph/emitter.h"

#include <gtest/gtest.h>

namespace stepcast {
namespace {

Kernel some_kernel() {
  Kernel kernel;
  kernel.bytes = 1;
  return kernel;
}

TEST(Emitter, CarriesPartsOfLaunchesOn) {
  StepGraph graph;
  Emitter emit(graph);
  emit.set_launch_factor(0.4);
  for (int i = 0; i < 10; ++i) emit.kernel(OpClass::kGemm, some_kernel(), 1, "k");
  double launches = 0;
  for (const Task& task : emit.take()) launches += task.launches;
  EXPECT_EQ(launches, 4);
}

TEST(Emitter, LetsATransferWaitForTheKernelBeforeAndTheNextKernelForTheTransfer) {
  StepGraph graph;
  Emitter emit(graph);
  emit.kernel(OpClass::kGemm, some_kernel(), 1, "before");
  emit.transfer(OpClass::kTp, {}, Stream::kTp, "transfer");
  emit.kernel(OpClass::kGemm, some_kernel(), 1, "after");
  const Program program = emit.take();
  ASSERT_EQ(program.size(), 3u);
  EXPECT_GE(program[0].record_event, 0);
  EXPECT_EQ(program[1].wait[0], program[0].record_event);
  EXPECT_EQ(program[2].wait[0], program[1].record_event);
}

TEST(Emitter, LetsAKernelRunBesideATransferThatItDoesNotNeed) {
  StepGraph graph;
  Emitter emit(graph);
  emit.kernel(OpClass::kGemm, some_kernel(), 1, "before");
  const Arrival arrival = emit.transfer_async(OpClass::kTp, {}, Stream::kTp, "transfer");
  emit.kernel(OpClass::kGemm, some_kernel(), 1, "beside");
  emit.need(arrival);
  emit.kernel(OpClass::kGemm, some_kernel(), 1, "after");
  const Program program = emit.take();
  EXPECT_EQ(program[2].wait[0], -1);
  EXPECT_EQ(program[2].joins, 0);
  EXPECT_EQ(program[3].wait[0], program[1].record_event);
}

TEST(Emitter, LetsAKernelWaitForTwoTransfers) {
  StepGraph graph;
  Emitter emit(graph);
  emit.need(emit.transfer_async(OpClass::kTp, {}, Stream::kTp, "a"));
  emit.need(emit.transfer_async(OpClass::kEp, {}, Stream::kEp, "b"));
  emit.kernel(OpClass::kGemm, some_kernel(), 1, "after");
  const Program program = emit.take();
  EXPECT_EQ(program[2].wait[0], program[0].record_event);
  EXPECT_EQ(program[2].wait[1], program[1].record_event);
}

TEST(Emitter, CarriesDependenciesIntoTheNextPieceOfAPass) {
  StepGraph graph;
  Emitter emit(graph);
  emit.kernel(OpClass::kGemm, some_kernel(), 1, "before");
  const Program first = emit.take();
  emit.transfer(OpClass::kEp, {}, Stream::kEp, "transfer");
  const Program second = emit.take();
  emit.kernel(OpClass::kGemm, some_kernel(), 1, "after");
  const Program third = emit.take();
  EXPECT_EQ(second[0].wait[0], first[0].record_event);
  EXPECT_EQ(third[0].wait[0], second[0].record_event);
}

TEST(Emitter, SynchronisesTheHostBeforeTheNextTaskOnly) {
  StepGraph graph;
  Emitter emit(graph);
  emit.host_sync();
  emit.transfer(OpClass::kEp, {}, Stream::kEp, "transfer");
  emit.kernel(OpClass::kGemm, some_kernel(), 1, "a");
  emit.kernel(OpClass::kGemm, some_kernel(), 1, "b");
  const Program program = emit.take();
  EXPECT_TRUE(program[0].host_sync);
  EXPECT_FALSE(program[1].host_sync);
  EXPECT_FALSE(program[2].host_sync);
}

}  // namespace
}  // namespace stepcast
