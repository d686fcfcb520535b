#include "core/sleep_by_clock.hpp"

#include <algorithm>

namespace fenceguard {

void sleep_by_clock(std::unique_lock<std::mutex>& lock, std::condition_variable& wake,
                    fenceguard::clock const& time, time_point until) {
  if (until == time_point::max()) {
    wake.wait(lock);
    return;
  }
  auto const left = until - time.now();
  if (left <= left.zero()) return;
  wake.wait_for(lock, std::min<std::chrono::nanoseconds>(left, time.longest_wait()));
}

}  // namespace fenceguard
