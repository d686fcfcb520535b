#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <fenceguard/core/clock.hpp>

namespace fenceguard {

/// An estimate of a server's wall clock, for telling it until when a request may be executed. Never
/// ahead of the server: the server read its clock before its reply was received. Every reply
/// replaces it, so a clock that is set right is followed at once. Any thread.
class server_clock {
 public:
  /// `at`: the server's microseconds since 1970, from a reply that has just been received.
  void observe(std::int64_t at) noexcept { offset_ = at - microseconds(boottime::now()); }

  /// After a failure: the next server to answer may be another one, with a clock of its own.
  void forget() noexcept { offset_ = unknown; }

  /// The server's microseconds at a local time. Zero, which is always over, while nothing is known:
  /// the server refuses such a request and says what time it is.
  [[nodiscard]] std::int64_t at(time_point local) const noexcept {
    auto const offset = offset_.load();
    return offset == unknown ? 0 : microseconds(local) + offset;
  }

 private:
  static constexpr std::int64_t unknown = INT64_MIN;

  static std::int64_t microseconds(time_point when) noexcept {
    using std::chrono::duration_cast;
    return duration_cast<std::chrono::microseconds>(when.time_since_epoch()).count();
  }

  std::atomic<std::int64_t> offset_{unknown};
};

}  // namespace fenceguard
