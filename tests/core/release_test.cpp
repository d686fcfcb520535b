#include <doctest/doctest.h>

#include <atomic>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/testing/manual_clock.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/recording_observer.hpp"
#include "core/scripted_store.hpp"
#include "servers/wait.hpp"

using namespace std::chrono_literals;
namespace fg = fenceguard;
using fg::release_outcome;
using fg::test_servers::eventually;
using fg::tests::recording_observer;
using fg::tests::scripted_world;
using steady = std::chrono::steady_clock;

TEST_CASE("release() says what became of it") {
  scripted_world world;
  auto lease = world.store->acquire({.resource = "a"});
  CHECK(lease->release() == release_outcome::released);
  CHECK(lease->release() == release_outcome::already_lost);
  CHECK(world.acts->releases == 1);
  auto gone = world.store->acquire({.resource = "a"});
  world.memory->expire("a");
  CHECK(gone->release() == release_outcome::already_lost);
  CHECK(world.store->counters().released == 1);
  CHECK(world.store->counters().held == 0);
}

TEST_CASE("a release without an answer is unknown, and goes on in the background") {
  recording_observer observer;
  scripted_world world{{.observer = &observer}};
  auto lease = world.store->acquire({.resource = "a", .ttl = 1h});
  std::atomic<int> failures{0};
  world.acts->on_release([&](auto resource, auto holder, auto deadline) {
    if (++failures <= 3) return release_outcome::unknown;
    return world.memory->release(resource, holder, deadline);
  });
  CHECK(lease->release() == release_outcome::unknown);
  CHECK(eventually([&] { return world.store->counters().released == 1; }));
  CHECK_FALSE(world.store->inspect("a").has_value());
  CHECK(observer.outcomes() == std::vector{release_outcome::unknown, release_outcome::released});
}

TEST_CASE("a retried release never deletes a newer grant's lease") {
  scripted_world world;
  auto old = world.store->acquire({.resource = "a", .ttl = 1h});
  std::atomic<bool> silent{true};
  world.acts->on_release([&](auto resource, auto holder, auto deadline) {
    if (silent) return release_outcome::unknown;
    return world.memory->release(resource, holder, deadline);
  });
  CHECK(old->release() == release_outcome::unknown);
  world.memory->expire("a");
  auto const newer = world.store->acquire({.resource = "a", .ttl = 1h});
  REQUIRE(newer.has_value());
  auto const before = world.acts->releases.load();
  silent = false;
  CHECK(eventually([&] { return world.acts->releases > before; }));
  CHECK(world.store->inspect("a")->holder == newer->holder());
}

TEST_CASE("release of an expired lease that retries for ever: it returns at once and gives up") {
  fg::testing::manual_clock clock;
  scripted_world world{{.clock = &clock}};
  auto lease = world.store->acquire({.resource = "a", .ttl = 10s, .renew = fg::renewal::none});
  world.acts->on_release([&](auto, auto, auto) { return release_outcome::unknown; });
  clock.advance(9'950ms);
  auto const begin = steady::now();
  CHECK(lease->release() == release_outcome::already_lost);
  CHECK(steady::now() - begin < 500ms);
  CHECK(eventually([&] { return world.acts->releases >= 1; }));
  clock.advance(1s);
  auto const tried = world.acts->releases.load();
  std::this_thread::sleep_for(50ms);  // time for one that was under way
  auto const at_rest = world.acts->releases.load();
  CHECK(at_rest <= tried + 1);
  clock.advance(1h);
  std::this_thread::sleep_for(50ms);
  CHECK(world.acts->releases == at_rest);
}

TEST_CASE("a lease that ran out is deleted in the background, for the sake of the next") {
  fg::testing::manual_clock clock;
  scripted_world world{{.clock = &clock}};
  auto lease = world.store->acquire({.resource = "a", .ttl = 10s, .renew = fg::renewal::none});
  clock.advance(9'950ms);  // over here, 50 ms are left on the server
  CHECK(lease->release() == release_outcome::already_lost);
  CHECK(eventually([&] { return !world.store->inspect("a").has_value(); }));
}

TEST_CASE("unlock that throws in a destructor: the destructor waits within its bound, no more") {
  scripted_world world{{.release_timeout = 100ms}};
  world.acts->on_release([&](auto, auto, fg::time_point deadline) {
    while (fg::boottime::now() < deadline) std::this_thread::sleep_for(1ms);
    return release_outcome::unknown;
  });
  auto lease = world.store->acquire({.resource = "a"});
  auto const begin = steady::now();
  lease.reset();
  auto const took = steady::now() - begin;
  CHECK(took >= 95ms);
  CHECK(took < 900ms);
}

TEST_CASE("10,000 destructors while the server hangs return at once") {
  scripted_world world{{.command_timeout = 500ms, .release_timeout = 100ms}};
  std::vector<fg::lease> leases;
  for (int i = 0; i < 10'000; ++i) {
    leases.push_back(*world.store->acquire({.resource = "r/" + std::to_string(i), .ttl = 1h}));
  }
  world.memory->set_hanging(true);
  auto const begin = steady::now();
  leases.clear();
  auto const took = steady::now() - begin;
  MESSAGE("10,000 destructors: " << std::chrono::duration<double>(took).count() << " s");
  CHECK(took < 3s);
  // When the server is back, all are deleted, and destructors wait for their answer again.
  world.memory->set_hanging(false);
  CHECK(eventually([&] { return world.store->counters().released == 10'000; }));
  CHECK_FALSE(world.store->inspect("r/9999").has_value());
  auto one = world.store->acquire({.resource = "a"});
  one.reset();
  CHECK_FALSE(world.store->inspect("a").has_value());
}

TEST_CASE("a release_timeout of zero leaves all destructors to the background") {
  scripted_world world{{.release_timeout = 0ms}};
  auto lease = world.store->acquire({.resource = "a"});
  lease.reset();
  CHECK(eventually([&] { return world.store->counters().released == 1; }));
}

TEST_CASE("store destroyed before lease: the lease is lost and can still be given back") {
  recording_observer observer;
  scripted_world world{{.observer = &observer}};
  auto lease = world.store->acquire({.resource = "a", .ttl = 1h});
  auto other = world.store->acquire({.resource = "b", .ttl = 1h});
  auto const token = lease->lost();
  world.store.reset();
  CHECK(token.stop_requested());
  CHECK(lease->remaining() == 0ms);
  CHECK(observer.reasons() ==
        std::vector{fg::events::loss_reason::store_closed, fg::events::loss_reason::store_closed});
  CHECK_THROWS_AS(lease->advance(), fg::lease_lost);
  CHECK(lease->release() == release_outcome::released);
  CHECK(lease->release() == release_outcome::already_lost);
  world.acts->on_release([&](auto, auto, auto) { return release_outcome::unknown; });
  CHECK(other->release() == release_outcome::unknown);
}

TEST_CASE("a store may be destroyed by the callback of a lease that is lost") {
  scripted_world world;
  auto lease = world.store->acquire({.resource = "a", .ttl = 300ms, .renew = fg::renewal::none});
  std::atomic<bool> done{false};
  std::stop_callback const when_lost{lease->lost(), [&] {
                                       world.store.reset();
                                       done = true;
                                     }};
  CHECK(eventually([&] { return done.load(); }));
}

TEST_CASE("the store's end does not wait for a server that hangs") {
  scripted_world world{{.command_timeout = 200ms}};
  auto lease = world.store->acquire({.resource = "a", .ttl = 1h});
  world.memory->set_hanging(true);
  CHECK(lease->release() == release_outcome::unknown);
  auto const begin = steady::now();
  world.store.reset();
  CHECK(steady::now() - begin < 5s);
}
