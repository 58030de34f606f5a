// A memory report for people and programs; `simulate` and `inspect layout` show the same.
#pragma once

#include <string>

#include "base/json_fwd.h"
#include "layout/scenario.h"
#include "memory/ledger.h"

namespace stepcast {

// The result document's `memory`.
Json memory_json(const MemoryReport& report);

// "fits: 60.1 of 79.2 GiB on the worst rank ..." or by how much it does not.
std::string memory_verdict(const MemoryReport& report);

// By pipeline rank and kind, GiB; at most some eight ranks, the worst among them and marked.
std::string memory_table(const MemoryReport& report);

// The ways out, a line each under a title; empty when it fits.
std::string ways_out(const Scenario& scenario, const MemoryReport& report);

}  // namespace stepcast
