// Counter-based random numbers: the n-th number of a seed is a pure function of both, whatever thread asks.
#pragma once

#include <cstdint>

namespace stepcast {

// splitmix64 (Steele, Lea, Flood 2014) of the counter-th state after `seed`.
inline std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter) {
  std::uint64_t z = seed + (counter + 1) * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

}  // namespace stepcast
