// Uneven routing: how much more the most loaded rank of an expert-parallel group gets than the mean.
#pragma once

#include <cstdint>

namespace stepcast {

// Experts drawn with p_i proportional to i^-exponent, placed on the ep ranks at random (seeded), each
// expert's share capped at `capacity` times the mean. Returns max over ranks / mean, at least 1.
double zipf_load_factor(std::int64_t experts, std::int64_t ep, double exponent, std::uint64_t seed,
                        double capacity);

}  // namespace stepcast
