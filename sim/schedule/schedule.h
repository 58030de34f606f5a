// Pipeline schedules: what each rank runs, in which order. One file a schedule, one table of them
// (schedules.cpp).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stepcast {

struct PipelineOp {
  char pass = 'F';  // F forward, B backward (input and weight gradients)
  std::int64_t chunk = 0;
  std::int64_t microbatch = 0;
  bool pairs = false;  // a backward of the steady phase: independent of the forward before it

  bool operator==(const PipelineOp&) const = default;
};

struct PipelineShape {
  std::int64_t pp = 1;
  std::int64_t chunks = 1;        // v
  std::int64_t microbatches = 1;  // m
  std::int64_t group = 1;         // micro-batches in a row of one chunk (interleaved); pp by default
  std::int64_t extra_warmup = 0;  // forwards more before the first backward (1 with expert overlap)
};

using ScheduleOrder = std::vector<PipelineOp> (*)(const PipelineShape& shape, std::int64_t rank);

struct Schedule {
  std::string_view name;
  std::string_view description;
  ScheduleOrder order;
};

std::span<const Schedule> schedules();
const Schedule* find_schedule(std::string_view name);

std::vector<PipelineOp> order_gpipe(const PipelineShape& shape, std::int64_t rank);
std::vector<PipelineOp> order_1f1b(const PipelineShape& shape, std::int64_t rank);
std::vector<PipelineOp> order_interleaved(const PipelineShape& shape, std::int64_t rank);

// (micro-batch, chunk) of the k-th forward of the interleaved schedule: groups of `group` micro-batches,
// within a group chunk 0 for all of them, then chunk 1, ...; the last group may be smaller.
std::vector<PipelineOp> interleaved_table(const PipelineShape& shape);

// The largest number of activations (forwards without their backward) that a rank holds.
std::int64_t peak_in_flight(const std::vector<PipelineOp>& order);

}  // namespace stepcast
