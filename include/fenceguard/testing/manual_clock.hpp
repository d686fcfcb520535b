#pragma once

#include <atomic>
#include <chrono>
#include <fenceguard/core/clock.hpp>

namespace fenceguard::testing {

/// A clock that moves only when it is told to. Threads of a store that wait by it look again every
/// millisecond of real time. Every member may be called from any thread.
class manual_clock final : public fenceguard::clock {
 public:
  [[nodiscard]] time_point now() const noexcept override;
  [[nodiscard]] std::chrono::milliseconds longest_wait() const noexcept override;

  /// Moves the clock forward. Throws invalid_request for a negative step.
  void advance(std::chrono::nanoseconds step);

 private:
  std::atomic<std::chrono::nanoseconds::rep> now_{1'000'000'000};
};

}  // namespace fenceguard::testing
