#include <fenceguard/core/errors.hpp>
#include <fenceguard/testing/manual_clock.hpp>

namespace fenceguard::testing {

time_point manual_clock::now() const noexcept {
  return time_point{std::chrono::nanoseconds{now_.load()}};
}

std::chrono::milliseconds manual_clock::longest_wait() const noexcept {
  return std::chrono::milliseconds{1};
}

void manual_clock::advance(std::chrono::nanoseconds step) {
  if (step < step.zero()) throw invalid_request{"a clock cannot go backwards"};
  now_ += step.count();
}

}  // namespace fenceguard::testing
