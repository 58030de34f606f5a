// Units. Time inside the engine is a whole number of picoseconds held in a double: sums and maxima of whole
// numbers below 2^53 (about 2.5 hours) are exact, so results do not depend on the order of addition.
// Everything else is SI: bytes, bytes/s, FLOP/s, seconds.
#pragma once

#include <cmath>
#include <cstdint>

namespace stepcast {

using Ticks = double;  // whole picoseconds

inline constexpr double kTicksPerSecond = 1e12;
inline constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

inline Ticks ticks(double seconds) { return std::nearbyint(seconds * kTicksPerSecond); }
inline double seconds(Ticks t) { return t / kTicksPerSecond; }

// Counts enter FLOPs and bytes as floating point.
inline double real(std::int64_t count) { return static_cast<double>(count); }

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
inline std::int64_t round_up(std::int64_t a, std::int64_t multiple) {
  return ceil_div(a, multiple) * multiple;
}

}  // namespace stepcast
