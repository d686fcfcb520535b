#include <doctest/doctest.h>
#include <time.h>

#include <fenceguard/core/clock.hpp>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/testing/manual_clock.hpp>

using namespace std::chrono_literals;
namespace fg = fenceguard;

TEST_CASE("the system's clock is CLOCK_BOOTTIME") {
  auto const read = [] {
    timespec now{};
    ::clock_gettime(CLOCK_BOOTTIME, &now);
    return fg::time_point{std::chrono::seconds{now.tv_sec} + std::chrono::nanoseconds{now.tv_nsec}};
  };
  auto const before = read();
  auto const asked = fg::clock::system().now();
  auto const after = read();
  CHECK(before <= asked);
  CHECK(asked <= after);
  CHECK(fg::clock::system().longest_wait() > 0ms);
}

TEST_CASE("a manual clock moves when it is told to, and never back") {
  fg::testing::manual_clock clock;
  auto const begin = clock.now();
  CHECK(clock.now() == begin);
  clock.advance(1500ms);
  CHECK(clock.now() - begin == 1500ms);
  CHECK_THROWS_AS(clock.advance(-1ns), fg::invalid_request);
  CHECK(clock.now() - begin == 1500ms);
}
