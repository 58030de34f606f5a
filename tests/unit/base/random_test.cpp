// Counter-based random numbers.
#include "base/random.h"

#include <gtest/gtest.h>

#include <array>
#include <bitset>
#include <cstdint>
#include <set>

namespace stepcast {
namespace {

// The first outputs of splitmix64 as its authors publish it (prng.di.unimi.it/splitmix64.c), seeds 0 and
// 1234567.
TEST(RandomBits, IsSplitmix64) {
  EXPECT_EQ(random_bits(0, 0), 0xe220a8397b1dcdafULL);
  EXPECT_EQ(random_bits(0, 1), 0x6e789e6aa1b965f4ULL);
  EXPECT_EQ(random_bits(0, 2), 0x06c45d188009454fULL);
  EXPECT_EQ(random_bits(1234567, 0), 6457827717110365317ULL);
  EXPECT_EQ(random_bits(1234567, 1), 3203168211198807973ULL);
  EXPECT_EQ(random_bits(1234567, 2), 9817491932198370423ULL);
}

TEST(RandomBits, IsAPureFunctionOfSeedAndCounter) {
  const std::uint64_t third = random_bits(7, 3);
  random_bits(8, 0);
  EXPECT_EQ(random_bits(7, 3), third);
}

TEST(RandomBits, DoesNotRepeatItself) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 4; ++seed)
    for (std::uint64_t i = 0; i < 10000; ++i) seen.insert(random_bits(seed * 1000003, i));
  EXPECT_EQ(seen.size(), 40000u);
}

// Each of the 64 bits is set half the time: 20000 draws have a standard deviation of 71.
TEST(RandomBits, UsesEveryBit) {
  std::array<int, 64> ones{};
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const std::bitset<64> bits(random_bits(42, i));
    for (std::size_t b = 0; b < 64; ++b) ones[b] += bits[b] ? 1 : 0;
  }
  for (const int count : ones) EXPECT_NEAR(count, 10000, 5 * 71);
}

}  // namespace
}  // namespace stepcast
