#include <time.h>

#include <fenceguard/core/clock.hpp>

namespace fenceguard {

boottime::time_point boottime::now() noexcept {
  timespec now{};
  // Fails only where the kernel is older than 2.6.39; there is no clock to fall back on then.
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return time_point{std::chrono::seconds{now.tv_sec} + std::chrono::nanoseconds{now.tv_nsec}};
}

namespace {

class system_clock final : public clock {
 public:
  [[nodiscard]] time_point now() const noexcept override { return boottime::now(); }
  [[nodiscard]] std::chrono::milliseconds longest_wait() const noexcept override {
    return std::chrono::milliseconds{100};
  }
};

}  // namespace

clock& clock::system() noexcept {
  // Never destroyed: leases in objects of static duration may outlive any static object here.
  static auto& the_clock = *new system_clock;
  return the_clock;
}

}  // namespace fenceguard
