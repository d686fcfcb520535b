#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/testing/lease_store.hpp>
#include <fenceguard/testing/manual_clock.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "core/scripted_store.hpp"
#include "servers/wait.hpp"

using namespace std::chrono_literals;
namespace fg = fenceguard;
using fg::test_servers::eventually;
using fg::tests::script;
using fg::tests::scripted_store;
using fg::tests::scripted_world;
using backend = fg::lease_backend;
using steady = std::chrono::steady_clock;

namespace {

backend::attempt attempt_on(std::string_view resource, std::chrono::milliseconds ttl) {
  return {.resource = resource,
          .holder = "0123456789abcdef0123456789abcdef",
          .label = "",
          .ttl = ttl,
          .deadline = fg::boottime::now() + 1s};
}

}  // namespace

TEST_CASE("a wait ends when its time is over, not long before and not long after") {
  scripted_world world;
  auto const held = world.store->acquire({.resource = "a"});
  auto const begin = steady::now();
  CHECK_FALSE(world.store->acquire({.resource = "a", .wait = 100ms}).has_value());
  auto const waited = steady::now() - begin;
  CHECK(waited >= 95ms);
  CHECK(waited < 5s);
}

TEST_CASE("a caller without a wait asks once, also where others wait") {
  scripted_world world;
  auto held = world.store->acquire({.resource = "a"});
  std::thread waiter{
      [&] { static_cast<void>(world.store->acquire({.resource = "a", .wait = 30s})); }};
  CHECK(eventually([&] { return world.acts->watches == 1; }));
  auto const begin = steady::now();
  CHECK_FALSE(world.store->acquire({.resource = "a"}).has_value());
  CHECK(steady::now() - begin < 5s);
  held.reset();
  waiter.join();
}

namespace {

/// Lets one caller wait while the clock stands still, so that no poll is ever due; calls `free` and
/// says whether the caller had the lease then.
template <class Free>
bool gets_it_without_a_poll(scripted_world& world, fg::testing::manual_clock& clock,
                            Free const& free) {
  std::atomic<bool> got{false};
  std::thread waiter{
      [&] { got = world.store->acquire({.resource = "a", .wait = 1h}).has_value(); }};
  bool const waits = eventually([&] { return world.acts->watches == 1; });
  free();
  bool const woken = eventually([&] { return got.load(); }, 10s);
  clock.advance(2h);
  waiter.join();
  return waits && woken;
}

}  // namespace

TEST_CASE("a release by the same store wakes the one who waits") {
  fg::testing::manual_clock clock;
  scripted_world world{{.clock = &clock}};
  auto held = world.store->acquire({.resource = "a", .ttl = 24h});
  REQUIRE(held.has_value());
  CHECK(gets_it_without_a_poll(world, clock, [&] { static_cast<void>(held->release()); }));
}

TEST_CASE("a hint wakes the one who waits") {
  fg::testing::manual_clock clock;
  scripted_world world{{.clock = &clock}};
  static_cast<void>(world.memory->try_acquire(attempt_on("a", 24h)));
  CHECK(gets_it_without_a_poll(world, clock, [&] {
    world.memory->expire("a");
    world.acts->hint("a");
  }));
}

TEST_CASE("a hint that is lost costs a poll only") {
  scripted_world world;
  static_cast<void>(world.memory->try_acquire(attempt_on("a", 1h)));
  std::optional<fg::lease> got;
  std::thread waiter{[&] { got = world.store->acquire({.resource = "a", .wait = 1h}); }};
  REQUIRE(eventually([&] { return world.acts->acquires >= 6; }));  // the pauses have grown
  world.memory->expire("a");
  waiter.join();
  CHECK(got.has_value());
}

TEST_CASE("polling is never put off beyond the time that the holder has left") {
  scripted_world world;
  std::mutex mutex;
  std::vector<steady::time_point> asked;
  world.acts->on_acquire([&](auto const&) {
    std::lock_guard const guard{mutex};
    asked.push_back(steady::now());
    return backend::busy{3ms};
  });
  CHECK_FALSE(world.store->acquire({.resource = "a", .wait = 400ms}).has_value());
  // Doubling pauses alone would come to less than a dozen.
  CHECK(asked.size() > 20);
}

TEST_CASE("the backend watches a resource just while somebody waits for it") {
  scripted_world world;
  auto held = world.store->acquire({.resource = "a"});
  CHECK_FALSE(world.store->acquire({.resource = "a"}).has_value());
  CHECK(world.acts->watches == 0);
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i) {
    waiters.emplace_back(
        [&] { static_cast<void>(world.store->acquire({.resource = "a", .wait = 20ms})); });
  }
  for (auto& one : waiters) one.join();
  CHECK(world.acts->watches >= 1);
  CHECK(world.acts->watches == world.acts->unwatches);
}

TEST_CASE("a backend that cannot watch is polled") {
  scripted_world world;
  world.acts->on_watch([](std::string const&, bool on) {
    if (on) throw fg::lease_store_unavailable{"no subscriber"};
  });
  static_cast<void>(world.memory->try_acquire(attempt_on("a", 20ms)));
  CHECK(world.store->acquire({.resource = "a", .wait = 30s}).has_value());
  CHECK(world.store->counters().store_errors >= 1);
}

TEST_CASE("stop_token cancels a wait at once and nothing stays behind") {
  scripted_world world;
  auto held = world.store->acquire({.resource = "a", .ttl = 1h});
  std::stop_source stop;
  std::optional<fg::lease> got;
  std::thread waiter{
      [&] { got = world.store->acquire({.resource = "a", .wait = 1h, .stop = stop.get_token()}); }};
  REQUIRE(eventually([&] { return world.acts->watches == 1; }));
  stop.request_stop();
  waiter.join();
  CHECK_FALSE(got.has_value());
  CHECK(world.acts->unwatches == 1);
  CHECK(held->release() == fg::release_outcome::released);
  CHECK_FALSE(world.store->inspect("a").has_value());
  auto const asked = world.acts->acquires.load();
  CHECK_FALSE(
      world.store->acquire({.resource = "a", .wait = 1h, .stop = stop.get_token()}).has_value());
  CHECK(world.acts->acquires == asked);
}

TEST_CASE("a grant for a caller who was cancelled meanwhile is released") {
  scripted_world world;
  std::stop_source stop;
  world.acts->on_acquire([&](backend::attempt const& what) {
    auto answer = world.memory->try_acquire(what);
    stop.request_stop();
    return answer;
  });
  CHECK_FALSE(world.store->acquire({.resource = "a", .ttl = 1h, .stop = stop.get_token()}));
  CHECK_FALSE(world.store->inspect("a").has_value());
  CHECK(world.store->counters().undone == 1);
}

TEST_CASE("grant at the end of the wait leaked: it is returned") {
  scripted_world world;
  world.acts->on_acquire([&](backend::attempt const& what) {
    auto answer = world.memory->try_acquire(what);
    std::this_thread::sleep_for(30ms);  // the wait is over before the answer is there
    return answer;
  });
  auto const late = world.store->acquire({.resource = "a", .wait = 5ms});
  REQUIRE(late.has_value());
  CHECK(late->remaining() > 0ms);
  CHECK(world.store->inspect("a")->holder == late->holder());
}

TEST_CASE("a head of the line that leaves passes its turn on") {
  scripted_world world;
  static_cast<void>(world.memory->try_acquire(attempt_on("a", 1h)));
  std::stop_source stop;
  std::optional<fg::lease> first;
  std::optional<fg::lease> second;
  std::thread head{[&] {
    first = world.store->acquire({.resource = "a", .wait = 1h, .stop = stop.get_token()});
  }};
  REQUIRE(eventually([&] { return world.acts->acquires >= 3; }));
  std::thread next{[&] { second = world.store->acquire({.resource = "a", .wait = 1h}); }};
  // Cancelled and freed at about the same time: whoever got the hint, the second must get the
  // lease.
  world.memory->expire("a");
  stop.request_stop();
  world.acts->hint("a");
  head.join();
  if (first) first.reset();
  next.join();
  CHECK(second.has_value());
}

TEST_CASE("a wait that ends while tokens are being fetched goes on as long as one command may") {
  scripted_world world;
  std::atomic<int> asked{0};
  std::atomic<bool> go_on{false};
  world.acts->on_acquire([&](backend::attempt const& what) -> backend::acquire_answer {
    auto const number = ++asked;
    if (number == 1) return backend::busy{1ms};
    if (number == 2) CHECK(eventually([&] { return go_on.load(); }));  // the head of the line
    if (number < 6) return backend::again{5ms};
    return world.memory->try_acquire(what);
  });
  std::thread head{
      [&] { static_cast<void>(world.store->acquire({.resource = "a", .wait = 30s})); }};
  CHECK(eventually([&] { return asked == 2; }));
  CHECK(world.store->acquire({.resource = "a", .wait = 5ms}).has_value());
  CHECK(asked == 6);
  go_on = true;
  head.join();
}

TEST_CASE("when the head of the line fails, the next one asks at once") {
  fg::testing::manual_clock clock;
  scripted_world world{{.clock = &clock}};
  static_cast<void>(world.memory->try_acquire(attempt_on("a", 24h)));
  std::atomic<bool> thrown{false};
  std::thread head{[&] {
    try {
      static_cast<void>(world.store->acquire({.resource = "a", .wait = 1h}));
    } catch (fg::schema_mismatch const&) {
      thrown = true;
    }
  }};
  CHECK(eventually([&] { return world.acts->watches == 1; }));
  std::atomic<bool> asking{false};
  std::atomic<bool> fail{false};
  world.acts->on_acquire([&](backend::attempt const& what) -> backend::acquire_answer {
    if (asking.exchange(true)) return world.memory->try_acquire(what);
    CHECK(eventually([&] { return fail.load(); }));
    throw fg::schema_mismatch{"run migrate"};
  });
  world.acts->hint("a");
  CHECK(eventually([&] { return asking.load(); }));
  std::atomic<bool> got{false};
  std::thread next{[&] { got = world.store->acquire({.resource = "a", .wait = 1h}).has_value(); }};
  std::this_thread::sleep_for(20ms);  // so that it stands in line; it would get the lease otherwise
  world.memory->expire("a");
  fail = true;
  CHECK(eventually([&] { return got.load(); }, 10s));
  clock.advance(2h);
  head.join();
  next.join();
  CHECK(thrown);
}

TEST_CASE("those who wait behind a head without an answer are not told busy") {
  scripted_world world{{.command_timeout = 1s}};
  static_cast<void>(world.memory->try_acquire(attempt_on("a", 1h)));
  std::atomic<int> hanging{0};
  auto const is_unavailable = [&](std::chrono::milliseconds wait) {
    try {
      static_cast<void>(world.store->acquire({.resource = "a", .wait = wait}));
    } catch (fg::lease_store_unavailable const&) {
      return true;
    }
    return false;
  };
  bool head_was_told = false;
  std::thread head{[&] { head_was_told = is_unavailable(500ms); }};
  CHECK(eventually([&] { return world.acts->watches == 1; }));
  world.acts->on_acquire([&](backend::attempt const& what) -> backend::acquire_answer {
    ++hanging;
    while (fg::boottime::now() < what.deadline) std::this_thread::sleep_for(1ms);
    return backend::unknown{"no answer"};
  });
  CHECK(eventually([&] { return hanging == 1; }));
  CHECK(is_unavailable(10ms));
  head.join();
  CHECK(head_was_told);
}

TEST_CASE("100 waiters on one resource ask the server less than 5 times for each grant") {
  scripted_world world;
  auto held = world.store->acquire({.resource = "a"});
  std::atomic<int> inside{0};
  std::atomic<int> granted{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 100; ++i) {
    waiters.emplace_back([&] {
      auto const lease = world.store->acquire({.resource = "a", .wait = 60s});
      if (!lease || inside++ != 0) return;
      std::this_thread::sleep_for(1ms);
      ++granted;
      --inside;
    });
  }
  held.reset();
  for (auto& one : waiters) one.join();
  CHECK(granted == 100);
  auto const commands = world.acts->acquires + world.acts->releases;
  MESSAGE("commands per grant: " << static_cast<double>(commands) / 100);
  CHECK(commands < 500);
}

TEST_CASE("two stores of one server hand over, with hints and without") {
  for (auto const hints :
       {fg::testing::memory_backend::hints::given, fg::testing::memory_backend::hints::none}) {
    fg::testing::token_source tokens;
    auto const memory = std::make_shared<fg::testing::lease_memory>(tokens, fg::clock::system());
    struct plain_store final : fg::lease_store {
      explicit plain_store(std::unique_ptr<fg::lease_backend> made)
          : fg::lease_store{std::move(made), {}} {}
    };
    plain_store one{std::make_unique<fg::testing::memory_backend>(memory, hints)};
    plain_store other{std::make_unique<fg::testing::memory_backend>(memory, hints)};
    std::vector<steady::duration> handoffs;
    for (int round = 0; round < 31; ++round) {
      auto held = one.acquire({.resource = "a"});
      REQUIRE(held.has_value());
      steady::time_point got_at;
      std::atomic<bool> waiting{false};
      std::thread waiter{[&] {
        waiting = true;
        auto const got = other.acquire({.resource = "a", .wait = 30s});
        got_at = steady::now();
        CHECK(got.has_value());
      }};
      REQUIRE(eventually([&] { return waiting.load() && other.counters().attempts > 0; }));
      std::this_thread::sleep_for(5ms);
      auto const begin = steady::now();
      held.reset();
      waiter.join();
      handoffs.push_back(got_at - begin);
    }
    std::nth_element(handoffs.begin(), handoffs.begin() + 15, handoffs.end());
    MESSAGE("median handoff: " << std::chrono::duration<double, std::micro>(handoffs[15]).count()
                               << " us");
    CHECK(handoffs[15] < 1s);
  }
}
