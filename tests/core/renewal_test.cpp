#include <doctest/doctest.h>

#include <atomic>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/testing/manual_clock.hpp>
#include <string>
#include <thread>
#include <vector>

#include "core/grant_record.hpp"
#include "core/recording_observer.hpp"
#include "core/scripted_store.hpp"
#include "servers/wait.hpp"

using namespace std::chrono_literals;
namespace fg = fenceguard;
using fg::test_servers::eventually;
using fg::tests::recording_observer;
using fg::tests::scripted_world;
using backend = fg::lease_backend;
using answer = backend::renew_answer;

TEST_CASE("a lease is renewed long past its ttl") {
  scripted_world world;
  auto const lease = world.store->acquire({.resource = "a", .ttl = 300ms});
  REQUIRE(lease.has_value());
  CHECK(eventually([&] { return world.store->counters().renewed >= 8; }));
  CHECK(lease->remaining() > 0ms);
  CHECK_FALSE(lease->lost().stop_requested());
  CHECK(world.store->counters().lost == 0);
}

TEST_CASE("without renewal a lease runs out, before its ttl ends on the server") {
  scripted_world world;
  auto const lease =
      world.store->acquire({.resource = "a", .ttl = 200ms, .renew = fg::renewal::none});
  REQUIRE(lease.has_value());
  CHECK(eventually([&] { return world.store->counters().lost == 1; }));
  CHECK(lease->lost().stop_requested());
  CHECK(lease->remaining() == 0ms);
  CHECK(world.acts->renewals == 0);
}

TEST_CASE("renewal that re-acquires: a lease that is gone is lost, not taken again") {
  recording_observer observer;
  scripted_world world{{.observer = &observer}};
  auto const lease = world.store->acquire({.resource = "a", .ttl = 300ms});
  REQUIRE(lease.has_value());
  world.memory->expire("a");
  CHECK(eventually([&] { return lease->lost().stop_requested(); }));
  CHECK(observer.reasons() == std::vector{fg::events::loss_reason::refused_by_store});
  CHECK_FALSE(world.store->inspect("a").has_value());
}

TEST_CASE("extension of a lease owned by someone else") {
  scripted_world world;
  auto const lease = world.store->acquire({.resource = "a", .ttl = 300ms});
  REQUIRE(lease.has_value());
  world.memory->expire("a");
  static_cast<void>(world.memory->try_acquire({.resource = "a",
                                               .holder = "another",
                                               .label = "",
                                               .ttl = 1h,
                                               .deadline = fg::boottime::now() + 1s}));
  auto const before = world.store->inspect("a")->remaining;
  CHECK(eventually([&] { return lease->lost().stop_requested(); }));
  CHECK(world.store->inspect("a")->holder == "another");
  CHECK(world.store->inspect("a")->remaining <= before);
}

TEST_CASE("transient errors are retried until the deadline") {
  scripted_world world;
  std::atomic<int> failures{0};
  world.acts->on_renew([&](auto batch, auto deadline) {
    for (auto& item : batch) {
      item.answer = answer::unknown;
      if (++failures > 5) world.memory->renew(item, deadline);
    }
  });
  auto const lease = world.store->acquire({.resource = "a", .ttl = 2s});
  REQUIRE(lease.has_value());
  CHECK(eventually([&] { return world.store->counters().renewed >= 1; }));
  CHECK(failures > 5);
  CHECK(world.store->counters().lost == 0);
}

TEST_CASE("negative remaining time after retries") {
  scripted_world world;
  world.acts->on_renew([](auto batch, auto) {
    for (auto& item : batch) item.answer = answer::unknown;
  });
  auto const lease = world.store->acquire({.resource = "a", .ttl = 300ms});
  REQUIRE(lease.has_value());
  CHECK(eventually([&] {
    CHECK(lease->remaining() >= 0ms);
    return lease->lost().stop_requested();
  }));
  CHECK(lease->remaining() == 0ms);
  std::this_thread::sleep_for(20ms);
  CHECK(lease->remaining() == 0ms);
}

TEST_CASE("heartbeat after unlock: nothing is renewed once release() was called") {
  scripted_world world;
  std::atomic<bool> in_renewal{false};
  std::atomic<bool> let_go{false};
  std::atomic<bool> renewed_after_release{false};
  std::atomic<bool> released{false};
  world.acts->on_renew([&](auto batch, auto deadline) {
    if (released) renewed_after_release = true;
    in_renewal = true;
    CHECK(eventually([&] { return let_go.load(); }));
    for (auto& item : batch) world.memory->renew(item, deadline);
  });
  world.acts->on_release([&](auto resource, auto holder, auto deadline) {
    released = true;
    CHECK(let_go);  // the renewal under way ended first
    return world.memory->release(resource, holder, deadline);
  });
  auto lease = world.store->acquire({.resource = "a", .ttl = 3s});
  REQUIRE(lease.has_value());
  REQUIRE(eventually([&] { return in_renewal.load(); }));
  std::thread releaser{[&] { CHECK(lease->release() == fg::release_outcome::released); }};
  std::this_thread::sleep_for(20ms);
  CHECK_FALSE(released);
  let_go = true;
  releaser.join();
  world.acts->on_renew([&](auto, auto) { renewed_after_release = true; });
  // Another lease shows that the renewal thread has gone round since.
  world.acts->on_renew([&](auto batch, auto deadline) {
    for (auto& item : batch) {
      if (item.resource == "a") renewed_after_release = true;
      world.memory->renew(item, deadline);
    }
  });
  auto const other = world.store->acquire({.resource = "b", .ttl = 300ms});
  auto const seen = world.store->counters().renewed;
  CHECK(eventually([&] { return world.store->counters().renewed > seen + 2; }));
  CHECK_FALSE(renewed_after_release);
}

TEST_CASE("max_hold ends a lease that is renewed") {
  recording_observer observer;
  scripted_world world{{.observer = &observer}};
  auto const begin = std::chrono::steady_clock::now();
  auto const lease = world.store->acquire({.resource = "a", .ttl = 300ms, .max_hold = 1200ms});
  REQUIRE(lease.has_value());
  CHECK(eventually([&] { return lease->lost().stop_requested(); }));
  auto const held = std::chrono::steady_clock::now() - begin;
  CHECK(held > 900ms);
  CHECK(world.store->counters().renewed >= 2);
  CHECK(observer.reasons() == std::vector{fg::events::loss_reason::held_too_long});
}

TEST_CASE("the last renewal asks for no more than max_hold has left") {
  fg::testing::manual_clock clock;
  scripted_world world{{.clock = &clock}};
  std::atomic<std::chrono::milliseconds> asked{0ms};
  world.acts->on_renew([&](auto batch, auto deadline) {
    for (auto& item : batch) {
      asked = item.ttl;
      world.memory->renew(item, deadline);
    }
  });
  auto const lease = world.store->acquire({.resource = "a", .ttl = 9s, .max_hold = 10s});
  REQUIRE(lease.has_value());
  clock.advance(3s);
  CHECK(eventually([&] { return world.store->counters().renewed == 1; }));
  CHECK(asked.load() == 7s);
  clock.advance(7s);
  CHECK(lease->remaining() == 0ms);
  CHECK_FALSE(world.store->inspect("a").has_value());
}

TEST_CASE("a lease of a max_hold below its ttl asks for no more than that") {
  scripted_world world;
  std::chrono::milliseconds asked{0};
  world.acts->on_acquire([&](backend::attempt const& what) {
    asked = what.ttl;
    return world.memory->try_acquire(what);
  });
  auto const lease = world.store->acquire({.resource = "a", .ttl = 10s, .max_hold = 50ms});
  REQUIRE(lease.has_value());
  CHECK(asked == 50ms);
  CHECK(lease->remaining() <= 50ms);
}

TEST_CASE("leases that are due together are renewed in one call") {
  scripted_world world;
  std::atomic<int> calls{0};
  std::atomic<std::size_t> largest{0};
  world.acts->on_renew([&](auto batch, auto deadline) {
    ++calls;
    largest = std::max(largest.load(), batch.size());
    for (auto& item : batch) world.memory->renew(item, deadline);
  });
  std::vector<fg::lease> leases;
  for (int i = 0; i < 3000; ++i) {
    auto one = world.store->acquire({.resource = "r/" + std::to_string(i), .ttl = 6s});
    REQUIRE(one.has_value());
    leases.push_back(std::move(*one));
  }
  CHECK(eventually([&] { return world.store->counters().renewed >= 3000; }));
  CHECK(world.store->counters().lost == 0);
  CHECK(largest <= 1024);
  CHECK(largest > 100);
  CHECK(calls < 300);
}

TEST_CASE("a renewal that is answered after the lease was released changes nothing") {
  scripted_world world;
  std::atomic<bool> in_renewal{false};
  std::atomic<bool> let_go{false};
  world.acts->on_renew([&](auto batch, auto) {
    in_renewal = true;
    CHECK(eventually([&] { return let_go.load(); }));
    for (auto& item : batch) {
      item.answer = answer::renewed;
      item.sent_at = fg::boottime::now();
      item.validity = item.ttl;
    }
  });
  auto lease = world.store->acquire({.resource = "a", .ttl = 600ms});
  REQUIRE(lease.has_value());
  REQUIRE(eventually([&] { return in_renewal.load(); }));
  std::thread releaser{[&] { static_cast<void>(lease->release()); }};
  CHECK(eventually([&] { return lease->remaining() == 0ms; }));
  let_go = true;
  releaser.join();
  CHECK(lease->remaining() == 0ms);
  CHECK(world.store->counters().held == 0);
  // It does not come back either: another lease shows when its next renewal would have been.
  std::atomic<int> again{0};
  world.acts->on_renew([&](auto batch, auto deadline) {
    for (auto& item : batch) {
      if (item.resource == "a") ++again;
      world.memory->renew(item, deadline);
    }
  });
  auto const seen = world.store->counters().renewed;
  auto const other = world.store->acquire({.resource = "b", .ttl = 300ms});
  CHECK(eventually([&] { return world.store->counters().renewed >= seen + 5; }));
  CHECK(again == 0);
}
