#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>
#include <fenceguard/testing/manual_clock.hpp>
#include <set>
#include <string>
#include <thread>

#include "core/recording_observer.hpp"
#include "core/scripted_store.hpp"
#include "servers/wait.hpp"

using namespace std::chrono_literals;
namespace fg = fenceguard;
using fg::test_servers::eventually;
using fg::tests::recording_observer;
using fg::tests::scripted_world;
using backend = fg::lease_backend;

TEST_CASE("a grant has a token, a holder and time; a second caller finds it busy") {
  scripted_world world;
  auto const first = world.store->acquire({.resource = "a", .ttl = 10s});
  REQUIRE(first.has_value());
  CHECK(first->resource() == "a");
  CHECK(first->holder().size() == 32);
  CHECK(first->remaining() > 9s);
  CHECK(first->remaining() <= 10s);
  CHECK_FALSE(first->lost().stop_requested());
  CHECK_FALSE(world.store->acquire({.resource = "a"}).has_value());
  CHECK(world.store->counters().busy == 1);
  CHECK(world.store->counters().held == 1);
}

TEST_CASE("the deadline counts from before the request was sent, less the drift") {
  fg::testing::manual_clock clock;
  scripted_world world{{.clock = &clock}};
  world.acts->on_acquire([&](backend::attempt const& what) {
    auto const sent_at = clock.now();
    clock.advance(3s);  // the answer takes its time
    return backend::granted{fg::fencing_token{1}, sent_at, what.ttl};
  });
  auto const lease =
      world.store->acquire({.resource = "a", .ttl = 10s, .renew = fg::renewal::none});
  REQUIRE(lease.has_value());
  CHECK(lease->remaining() == 7s - 100ms - 2ms);  // 1 % of the ttl and 2 ms
}

TEST_CASE("a store that knows of less time than the ttl is believed") {
  fg::testing::manual_clock clock;
  scripted_world world{{.clock = &clock}};
  world.acts->on_acquire([&](backend::attempt const&) {
    return backend::granted{fg::fencing_token{1}, clock.now(), 4s};
  });
  auto const lease =
      world.store->acquire({.resource = "a", .ttl = 10s, .renew = fg::renewal::none});
  REQUIRE(lease.has_value());
  CHECK(lease->remaining() == 4s - 102ms);
}

TEST_CASE("expiry reported as busy: a grant that ran out under way is an error, and taken back") {
  fg::testing::manual_clock clock;
  scripted_world world{{.clock = &clock}};
  world.acts->on_acquire([&](backend::attempt const& what) {
    auto const answer = world.memory->try_acquire(what);
    clock.advance(9'950ms);
    return answer;
  });
  CHECK_THROWS_AS(static_cast<void>(world.store->acquire({.resource = "a", .ttl = 10s})),
                  fg::lease_store_unavailable);
  CHECK(eventually([&] { return world.store->counters().undone == 1; }));
  CHECK_FALSE(world.store->inspect("a").has_value());
  CHECK(world.store->counters().held == 0);
}

TEST_CASE("an acquisition without an answer that was applied is found and undone") {
  recording_observer observer;
  scripted_world world{{.observer = &observer}};
  world.acts->on_acquire([&](backend::attempt const& what) -> backend::acquire_answer {
    static_cast<void>(world.memory->try_acquire(what));
    return backend::unknown{"the answer was lost"};
  });
  CHECK_THROWS_AS(static_cast<void>(world.store->acquire({.resource = "a", .ttl = 1h})),
                  fg::lease_store_unavailable);
  world.acts->on_acquire({});
  // An hour before the ttl is over:
  auto const next = world.store->acquire({.resource = "a", .wait = 30s});
  CHECK(next.has_value());
  CHECK(world.store->counters().undone == 1);
  CHECK(observer.count<fg::events::undone>() == 1);
}

TEST_CASE("an acquisition that arrives after its own undo is undone again") {
  scripted_world world{{.command_timeout = 200ms}};
  std::atomic<bool> undone_once{false};
  std::string holder;
  world.acts->on_acquire([&](backend::attempt const& what) -> backend::acquire_answer {
    holder = what.holder;
    return backend::unknown{"the connection broke"};  // at once, the request is still on its way
  });
  world.acts->on_release([&](auto resource, auto who, auto deadline) {
    auto const outcome = world.memory->release(resource, who, deadline);
    if (!undone_once.exchange(true)) {
      static_cast<void>(world.memory->try_acquire({.resource = resource,
                                                   .holder = who,
                                                   .label = "",
                                                   .ttl = 1h,
                                                   .deadline = fg::boottime::now() + 1s}));
    }
    return outcome;
  });
  CHECK_THROWS_AS(static_cast<void>(world.store->acquire({.resource = "a", .ttl = 1h})),
                  fg::lease_store_unavailable);
  CHECK(eventually([&] { return world.store->counters().undone == 1; }));
  CHECK(undone_once);
  CHECK_FALSE(world.store->inspect("a").has_value());
}

TEST_CASE("a try after one without an answer has another holder") {
  scripted_world world;
  std::mutex mutex;
  std::set<std::string> holders;
  world.acts->on_acquire([&](backend::attempt const& what) -> backend::acquire_answer {
    std::lock_guard const guard{mutex};
    holders.emplace(what.holder);
    if (holders.size() < 3) return backend::unknown{"no answer"};
    return world.memory->try_acquire(what);
  });
  auto const lease = world.store->acquire({.resource = "a", .wait = 30s});
  REQUIRE(lease.has_value());
  CHECK(holders.size() == 3);
  CHECK(holders.contains(lease->holder()));
}

TEST_CASE("a store that does not serve yet is asked again until the wait is over") {
  scripted_world world;
  int asked = 0;
  world.acts->on_acquire([&](backend::attempt const& what) -> backend::acquire_answer {
    if (++asked < 4) return backend::not_applied{"LOADING"};
    return world.memory->try_acquire(what);
  });
  CHECK(world.store->acquire({.resource = "a", .wait = 30s}).has_value());
  CHECK(asked == 4);
  CHECK(world.store->counters().undone == 0);
}

TEST_CASE("a store that does not serve is an error, not busy") {
  scripted_world world;
  world.acts->on_acquire([&](auto const&) { return backend::not_applied{"MISCONF"}; });
  CHECK_THROWS_WITH_AS(static_cast<void>(world.store->acquire({.resource = "a"})),
                       "acquire a: MISCONF", fg::lease_store_unavailable);
  CHECK(world.acts->acquires == 1);
  CHECK_THROWS_AS(static_cast<void>(world.store->acquire({.resource = "a", .wait = 50ms})),
                  fg::lease_store_unavailable);
  CHECK(world.acts->acquires > 2);
}

TEST_CASE("what trying again cannot mend passes through, and the turn goes on") {
  scripted_world world;
  world.acts->on_acquire(
      [&](auto const&) -> backend::acquire_answer { throw fg::schema_mismatch{"run migrate"}; });
  CHECK_THROWS_AS(static_cast<void>(world.store->acquire({.resource = "a", .wait = 30s})),
                  fg::schema_mismatch);
  CHECK(world.acts->acquires == 1);
  CHECK(world.store->counters().store_errors == 1);
}

TEST_CASE("while another caller fetches tokens, one try waits for them") {
  scripted_world world;
  int asked = 0;
  world.acts->on_acquire([&](backend::attempt const& what) -> backend::acquire_answer {
    if (++asked < 3) return backend::again{5ms};
    return world.memory->try_acquire(what);
  });
  CHECK(world.store->acquire({.resource = "a"}).has_value());
  asked = 0;
  CHECK(world.store->acquire({.resource = "b", .wait = 1ms}).has_value());
}

TEST_CASE("tokens that never come are an error of their own") {
  scripted_world world{{.command_timeout = 30ms}};
  world.acts->on_acquire([&](auto const&) { return backend::again{5ms}; });
  CHECK_THROWS_AS(static_cast<void>(world.store->acquire({.resource = "a"})),
                  fg::token_source_unavailable);
  CHECK_THROWS_AS(static_cast<void>(world.store->acquire({.resource = "a", .wait = 20ms})),
                  fg::token_source_unavailable);
}

TEST_CASE("bad requests are refused before anything is sent") {
  scripted_world world;
  CHECK_THROWS_AS(static_cast<void>(world.store->acquire({.resource = ""})), fg::invalid_request);
  CHECK_THROWS_AS(static_cast<void>(world.store->acquire({.resource = "a", .ttl = 0ms})),
                  fg::invalid_request);
  CHECK_THROWS_AS(static_cast<void>(world.store->acquire_all({.resources = {"a", "a"}})),
                  fg::invalid_request);
  CHECK_THROWS_AS(static_cast<void>(world.store->inspect("")), fg::invalid_request);
  CHECK(world.acts->acquires == 0);
}

TEST_CASE("an observer is told of each grant, with its tries") {
  recording_observer observer;
  scripted_world world{{.observer = &observer}};
  int asked = 0;
  world.acts->on_acquire([&](backend::attempt const& what) -> backend::acquire_answer {
    if (++asked < 3) return backend::not_applied{"LOADING"};
    return world.memory->try_acquire(what);
  });
  REQUIRE(world.store->acquire({.resource = "a", .wait = 30s})->release() ==
          fg::release_outcome::released);
  CHECK(observer.attempts() == std::vector<unsigned>{3});
  CHECK(observer.count<fg::events::store_error>() == 2);
  CHECK(observer.outcomes() == std::vector{fg::release_outcome::released});
  static_cast<void>(world.memory->try_acquire({.resource = "b",
                                               .holder = "someone",
                                               .label = "",
                                               .ttl = 10s,
                                               .deadline = fg::boottime::now() + 1s}));
  CHECK_FALSE(world.store->acquire({.resource = "b"}).has_value());
  CHECK(observer.count<fg::events::busy>() == 1);
}
