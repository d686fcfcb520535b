#pragma once

#include <chrono>

namespace fenceguard {

/// Time since boot, suspended time included (CLOCK_BOOTTIME): the clock by which deadlines of
/// leases are kept. A wall clock may jump; CLOCK_MONOTONIC stands still while a machine sleeps,
/// and a lease does not.
struct boottime {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<boottime>;
  static constexpr bool is_steady = true;

  [[nodiscard]] static time_point now() noexcept;
};

using time_point = boottime::time_point;

/// The seam through which lease stores read time; tests put testing::manual_clock in its place.
/// Every member may be called from any thread and does not throw.
class clock {
 public:
  virtual ~clock() = default;

  [[nodiscard]] virtual time_point now() const noexcept = 0;

  /// The longest real time that a waiting thread may sleep before it asks now() again. Condition
  /// variables count monotonic time, so after a suspend they would wake too late without it.
  [[nodiscard]] virtual std::chrono::milliseconds longest_wait() const noexcept = 0;

  /// The machine's boottime clock. Lives as long as the process.
  [[nodiscard]] static clock& system() noexcept;

 protected:
  clock() = default;
  clock(clock const&) = default;
  clock& operator=(clock const&) = default;
};

}  // namespace fenceguard
