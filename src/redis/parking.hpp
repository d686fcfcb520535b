#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <fenceguard/core/clock.hpp>

namespace fenceguard::redis {

/// A place for one thread to sleep until another one tells it something. Cheaper than a condition
/// variable, because who is woken needs no lock to learn what it was told, and because nobody makes
/// a system call for a thread that has not gone to sleep yet.
class parking {
 public:
  using word = std::uint32_t;
  static constexpr word nothing = 0;

  /// `value` > 0. Returns whether unpark() is needed. The thread that is told may go on, and the
  /// object end, from here on.
  [[nodiscard]] bool tell(word value) noexcept { return told_.exchange(value) == asleep; }

  /// Only the address is used: the object may have ended. The worst that follows is that whoever
  /// sleeps at that address now wakes for nothing, which every user of futex(2) must bear.
  static void unpark(parking* place) noexcept {
    ::syscall(SYS_futex, static_cast<void*>(place), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }

  /// Forgets what was told. The parked thread only.
  void reset() noexcept { told_.store(nothing); }

  /// Sleeps until something is told or the time has come; returns what was told, or `nothing`.
  [[nodiscard]] word park_until(time_point until) noexcept {
    for (;;) {
      word expected = nothing;
      if (!told_.compare_exchange_strong(expected, asleep) && expected != asleep) return expected;
      auto const left = until - boottime::now();
      if (left <= left.zero()) {
        expected = asleep;
        return told_.compare_exchange_strong(expected, nothing) ? nothing : expected;
      }
      sleep(left);
    }
  }

 private:
  static constexpr word asleep = ~word{0};
  // The kernel's timer stands still while the machine is suspended; the deadline does not.
  static constexpr std::chrono::nanoseconds longest_sleep = std::chrono::milliseconds{250};

  void sleep(std::chrono::nanoseconds time) noexcept {
    auto const shortened = time < longest_sleep ? time : longest_sleep;
    auto const seconds = std::chrono::duration_cast<std::chrono::seconds>(shortened);
    timespec const timeout{static_cast<time_t>(seconds.count()),
                           static_cast<long>((shortened - seconds).count())};
    ::syscall(SYS_futex, static_cast<void*>(this), FUTEX_WAIT_PRIVATE, asleep, &timeout, nullptr,
              0);
  }

  std::atomic<word> told_{nothing};
};
static_assert(sizeof(parking) == sizeof(parking::word));

}  // namespace fenceguard::redis
