#include "core/holder_id.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <set>
#include <string>
#include <thread>

using namespace std::chrono_literals;

TEST_CASE("holder ids are 32 hexadecimal characters, each a new one") {
  std::set<std::string> seen;
  for (int i = 0; i < 10'000; ++i) {
    auto id = fenceguard::new_holder_id();
    REQUIRE(id.size() == 32);
    REQUIRE(id.find_first_not_of("0123456789abcdef") == std::string::npos);
    REQUIRE(seen.insert(std::move(id)).second);
  }
  std::string elsewhere;
  std::thread{[&] { elsewhere = fenceguard::new_holder_id(); }}.join();
  CHECK(seen.insert(elsewhere).second);
}

TEST_CASE("a forked child draws other holder ids than its parent") {
  static_cast<void>(fenceguard::new_holder_id());  // random bytes for many more are in memory now
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  pid_t const child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    auto const id = fenceguard::new_holder_id();
    ::_exit(::write(ends[1], id.data(), id.size()) == 32 ? 0 : 1);
  }
  std::string theirs(32, ' ');
  CHECK(::read(ends[0], theirs.data(), theirs.size()) == 32);
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(theirs != fenceguard::new_holder_id());
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("a random part lies anywhere in the pause") {
  int early = 0;
  for (int i = 0; i < 1000; ++i) {
    auto const part = fenceguard::random_part_of(10ms);
    REQUIRE(part >= 0ms);
    REQUIRE(part <= 10ms);
    if (part < 5ms) ++early;
  }
  CHECK(early > 400);
  CHECK(early < 600);
  CHECK(fenceguard::random_part_of(-1ms) == 0ms);
}

TEST_CASE("jitter leaves between the half and the whole of a pause") {
  std::set<std::chrono::nanoseconds> seen;
  for (int i = 0; i < 1000; ++i) {
    auto const pause = fenceguard::with_jitter(10ms);
    REQUIRE(pause >= 5ms);
    REQUIRE(pause <= 10ms);
    seen.insert(pause);
  }
  CHECK(seen.size() > 900);
}
