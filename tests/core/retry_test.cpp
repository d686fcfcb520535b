#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>
#include <fenceguard/core/retry.hpp>
#include <thread>

using namespace std::chrono_literals;
namespace fg = fenceguard;

namespace {

fg::retry_policy quick() { return {.attempts = 4, .first_pause = 1ms, .longest_pause = 2ms}; }

template <class Error>
int tries_of(fg::retry_policy const& policy) {
  int tries = 0;
  CHECK_THROWS_AS(fg::retry(policy,
                            [&]() -> int {
                              ++tries;
                              throw Error{"no"};
                            }),
                  Error);
  return tries;
}

}  // namespace

TEST_CASE("retry() tries as often as the error advises") {
  CHECK(tries_of<fg::fence_busy>(quick()) == 4);
  CHECK(tries_of<fg::commit_unknown>(quick()) == 4);
  CHECK(tries_of<fg::lease_lost>(quick()) == 1);
  CHECK(tries_of<fg::invalid_request>(quick()) == 1);
}

TEST_CASE("retry() returns what the work returns") {
  int tries = 0;
  auto const answer = fg::retry(quick(), [&] {
    if (++tries < 3) throw fg::fence_busy{"not yet"};
    return 42;
  });
  CHECK(answer == 42);
  CHECK(tries == 3);
}

TEST_CASE("other exceptions pass through retry() at once") {
  int tries = 0;
  CHECK_THROWS_AS(fg::retry(quick(),
                            [&] {
                              ++tries;
                              throw std::runtime_error{"else"};
                            }),
                  std::runtime_error);
  CHECK(tries == 1);
}

TEST_CASE("no try begins after the total") {
  auto policy = quick();
  policy.attempts = 1000;
  policy.total = 20ms;
  auto const begin = std::chrono::steady_clock::now();
  CHECK(tries_of<fg::fence_busy>(policy) > 1);
  CHECK(std::chrono::steady_clock::now() - begin < 5s);
}

TEST_CASE("a stop ends a pause at once") {
  std::stop_source stop;
  auto policy = quick();
  policy.first_pause = policy.longest_pause = policy.total = 1h;
  policy.stop = stop.get_token();
  std::thread stopper{[&] { stop.request_stop(); }};
  CHECK(tries_of<fg::fence_busy>(policy) == 1);
  stopper.join();
}

TEST_CASE("a policy that makes no sense is refused") {
  CHECK_THROWS_AS(fg::retry_schedule{{.attempts = 0}}, fg::invalid_request);
  CHECK_THROWS_AS(fg::retry_schedule{{.total = -1ms}}, fg::invalid_request);
  CHECK_THROWS_AS(fg::retry_schedule{{.first_pause = -1ms}}, fg::invalid_request);
}
