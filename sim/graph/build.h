// Builds the graph of one training step (domain 11): zero gradients; the schedule's forwards and backwards
// with their transfers; data-parallel reduction beside the last backward or after it; gradient norm (a
// barrier); optimizer; parameter gather beside the next forward or after the optimizer; bookkeeping.
#pragma once

#include "cost/stack.h"
#include "graph/step_graph.h"
#include "layout/scenario.h"

namespace stepcast {

StepGraph build_step(const Scenario& scenario, const StageSplit& split, const Stack& stack);

// Tasks that a replay of the scenario would execute, from sizes alone; used to refuse what would take hours.
double estimate_tasks(const Scenario& scenario);

}  // namespace stepcast
