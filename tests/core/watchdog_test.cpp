#include <doctest/doctest.h>

#include <atomic>
#include <fenceguard/testing/manual_clock.hpp>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "core/recording_observer.hpp"
#include "core/scripted_store.hpp"
#include "servers/wait.hpp"

using namespace std::chrono_literals;
namespace fg = fenceguard;
using fg::test_servers::eventually;
using fg::tests::recording_observer;
using fg::tests::scripted_world;

TEST_CASE("starved renewal thread: lost() is requested in time all the same") {
  recording_observer observer;
  scripted_world world{{.clock_drift = 0.5, .observer = &observer}};
  std::atomic<bool> let_go{false};
  world.acts->on_renew([&](auto batch, auto) {
    CHECK(eventually([&] { return let_go.load(); }));  // hangs far beyond its deadline
    for (auto& item : batch) item.answer = fg::lease_backend::renew_answer::unknown;
  });
  auto const lease = world.store->acquire({.resource = "a", .ttl = 300ms});
  REQUIRE(lease.has_value());
  std::atomic<bool> still_on_server{false};
  std::stop_callback const when_lost{
      lease->lost(), [&] { still_on_server = world.store->inspect("a").has_value(); }};
  CHECK(eventually([&] { return observer.count<fg::events::lost>() == 1; }));
  CHECK(still_on_server);
  CHECK(observer.reasons() == std::vector{fg::events::loss_reason::ran_out});
  let_go = true;
}

TEST_CASE("asking finds the time over, before the watchdog has woken up") {
  fg::testing::manual_clock clock;
  scripted_world world{{.clock = &clock}};
  auto const lease =
      world.store->acquire({.resource = "a", .ttl = 10s, .renew = fg::renewal::none});
  REQUIRE(lease.has_value());
  clock.advance(9'897ms);
  CHECK(lease->remaining() == 1ms);
  clock.advance(1ms);
  CHECK(lease->remaining() == 0ms);
  CHECK(lease->lost().stop_requested());
  CHECK(world.store->counters().lost == 1);
}

TEST_CASE("lost() is requested once, whoever finds out first") {
  recording_observer observer;
  fg::testing::manual_clock clock;
  scripted_world world{{.observer = &observer, .clock = &clock}};
  for (int round = 0; round < 50; ++round) {
    auto const lease =
        world.store->acquire({.resource = "a", .ttl = 10s, .renew = fg::renewal::none});
    REQUIRE(lease.has_value());
    std::atomic<int> fired{0};
    std::stop_callback const when_lost{lease->lost(), [&] { ++fired; }};
    std::thread asker{[&] { CHECK(eventually([&] { return lease->lost().stop_requested(); })); }};
    clock.advance(10s);
    asker.join();
    CHECK(eventually([&] { return observer.count<fg::events::lost>() == round + 1; }));
    CHECK(fired == 1);
  }
  CHECK(world.store->counters().lost == 50);
}

TEST_CASE("a release in time never fires lost()") {
  fg::testing::manual_clock clock;
  scripted_world world{{.clock = &clock}};
  auto lease = world.store->acquire({.resource = "a", .ttl = 10s});
  auto const token = lease->lost();
  CHECK(lease->release() == fg::release_outcome::released);
  CHECK(lease->remaining() == 0ms);
  clock.advance(20s);
  // Another lease shows that the watchdog has looked since.
  auto const other =
      world.store->acquire({.resource = "b", .ttl = 10s, .renew = fg::renewal::none});
  clock.advance(20s);
  CHECK(eventually([&] { return world.store->counters().lost == 1; }));
  CHECK_FALSE(token.stop_requested());
  CHECK_FALSE(lease->lost().stop_requested());
}

TEST_CASE("callback that calls back: into the store and into the lease itself") {
  scripted_world world;
  auto lease = world.store->acquire({.resource = "a", .ttl = 300ms, .renew = fg::renewal::none});
  REQUIRE(lease.has_value());
  std::optional<fg::lease> next;
  std::atomic<bool> done{false};
  std::stop_callback const when_lost{lease->lost(), [&] {
                                       lease.reset();
                                       next = world.store->acquire({.resource = "b"});
                                       static_cast<void>(world.store->inspect("b"));
                                       static_cast<void>(world.store->counters());
                                       done = true;
                                     }};
  CHECK(eventually([&] { return done.load(); }));
  CHECK(next.has_value());
}

TEST_CASE("an observer may call back into the store") {
  recording_observer observer;
  fg::lease_store* store = nullptr;
  std::atomic<int> nested{0};
  observer.also = [&](fg::event const& what) {
    if (store == nullptr || std::holds_alternative<fg::events::busy>(what)) return;
    if (nested++ < 20) static_cast<void>(store->acquire({.resource = "a"}));
    static_cast<void>(store->inspect("a"));
  };
  scripted_world world{{.observer = &observer}};
  store = world.store.get();
  auto lease = world.store->acquire({.resource = "a", .ttl = 300ms});
  REQUIRE(lease.has_value());
  CHECK(eventually([&] { return observer.count<fg::events::renewed>() >= 2; }));
  CHECK(lease->release() == fg::release_outcome::released);
  store = nullptr;
}

TEST_CASE("10,000 leases that run out together are all lost in time") {
  fg::testing::manual_clock clock;
  scripted_world world{{.clock = &clock}};
  std::vector<fg::lease> leases;
  for (int i = 0; i < 10'000; ++i) {
    auto one = world.store->acquire(
        {.resource = "r/" + std::to_string(i), .ttl = 10s, .renew = fg::renewal::none});
    REQUIRE(one.has_value());
    leases.push_back(std::move(*one));
  }
  clock.advance(9'900ms);
  CHECK(eventually([&] { return world.store->counters().lost == 10'000; }));
  CHECK(world.store->counters().held == 0);
  for (auto& one : leases) CHECK(one.release() == fg::release_outcome::already_lost);
}
