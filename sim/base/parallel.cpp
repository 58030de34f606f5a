#include "base/parallel.h"

#ifdef __SANITIZE_THREAD__
#include <atomic>
#include <thread>
#include <vector>
#else
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#endif

#include <memory>

namespace stepcast {

#ifdef __SANITIZE_THREAD__

// ThreadSanitizer cannot see the distribution's TBB synchronise (it is not instrumented): plain threads
// there.
void parallel_for(std::size_t n, int threads, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> workers;
  for (int t = 0; t < (threads > 0 ? threads : 4); ++t)
    workers.emplace_back([&] {
      for (std::size_t i = next++; i < n; i = next++) work(i);
    });
}

#else

void parallel_for(std::size_t n, int threads, const std::function<void(std::size_t)>& work) {
  std::unique_ptr<tbb::global_control> limit;
  if (threads > 0)
    limit = std::make_unique<tbb::global_control>(tbb::global_control::max_allowed_parallelism, threads);
  tbb::parallel_for(std::size_t{0}, n, work);
}

#endif

}  // namespace stepcast
