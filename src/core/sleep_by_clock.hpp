#pragma once

#include <condition_variable>
#include <fenceguard/core/clock.hpp>
#include <mutex>

namespace fenceguard {

/// Sleeps on a condition variable, at most until that time of `time` and no longer than the clock
/// allows; the caller looks again afterwards.
void sleep_by_clock(std::unique_lock<std::mutex>& lock, std::condition_variable& wake,
                    fenceguard::clock const& time, time_point until);

/// The same for a time of the machine's own clock.
inline void sleep_by_clock(std::unique_lock<std::mutex>& lock, std::condition_variable& wake,
                           time_point until) {
  sleep_by_clock(lock, wake, clock::system(), until);
}

/// When the machine's own clock will show what `when` is by `time`.
[[nodiscard]] inline time_point real_time(fenceguard::clock const& time, time_point when) noexcept {
  if (&time == &clock::system()) return when;
  return boottime::now() + (when - time.now());
}

}  // namespace fenceguard
