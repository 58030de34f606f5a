// for each i in [0, n): work(i), on `threads` threads (0 = all). The order is not defined; results must not
// depend on it.
#pragma once

#include <cstddef>
#include <functional>

namespace stepcast {

void parallel_for(std::size_t n, int threads, const std::function<void(std::size_t)>& work);

}  // namespace stepcast
