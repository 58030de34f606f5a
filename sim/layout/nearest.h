// The legal layouts next to one that the framework's rules (layout/rules.h) refuse.
//
// Up to three of these are changed: TP, CP, PP, virtual stages, EP, ETP, micro-batch, the global batch (when a
// rule of the batch is broken), sequence parallelism, overlaps, recompute. The distance is the sum of
// |log2(new / old)| over sizes, plus 1 a switch; a layout string is dropped when PP or the virtual stages
// change, which counts as a switch. Nothing else is touched, so there may be no answer.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "layout/megatron_arguments.h"

namespace stepcast {

// At most `most`, the nearest first; of two at the same distance the one with fewer changes. An answer that
// only adds changes to another is left out. Empty when the arguments are legal. Checks at most 3,000 layouts.
std::vector<MegatronArguments> nearest_legal(const MegatronArguments& arguments, std::size_t most = 3);

// What differs of the above, and the data-parallel size where it is known: "tp 4, vpp 1 (dp 16)".
std::string difference(const MegatronArguments& from, const MegatronArguments& to);

// The differences of the nearest legal layouts: "tp 4 (dp 16); tp 8, pp 4 (dp 2)"; empty when there is none.
std::string nearest_legal_text(const MegatronArguments& arguments);

}  // namespace stepcast
