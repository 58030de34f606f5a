#include "model/expert_load.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace stepcast {

double zipf_load_factor(std::int64_t experts, std::int64_t ep, double exponent, std::uint64_t seed,
                        double capacity) {
  std::vector<double> load(static_cast<std::size_t>(experts));
  for (std::size_t i = 0; i < load.size(); ++i) load[i] = std::pow(static_cast<double>(i + 1), -exponent);
  const double mean = std::accumulate(load.begin(), load.end(), 0.0) / static_cast<double>(experts);
  for (double& l : load) l = std::min(l / mean, capacity);
  for (std::size_t i = load.size(); i-- > 1;)  // Fisher-Yates
    std::swap(load[i], load[random_bits(seed, i) % (i + 1)]);
  std::vector<double> rank(static_cast<std::size_t>(ep), 0.0);
  const std::size_t local = load.size() / rank.size();
  for (std::size_t i = 0; i < load.size(); ++i) rank[std::min(i / local, rank.size() - 1)] += load[i];
  const double most = *std::max_element(rank.begin(), rank.end()) / static_cast<double>(local);
  return std::max(1.0, most);
}

}  // namespace stepcast
