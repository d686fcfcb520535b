#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <fenceguard/core/errors.hpp>
#include <string>
#include <thread>
#include <vector>

#include "core/scripted_store.hpp"
#include "servers/wait.hpp"

using namespace std::chrono_literals;
namespace fg = fenceguard;
using fg::test_servers::eventually;
using fg::tests::scripted_world;

TEST_CASE("several leases are taken in byte order of their names") {
  scripted_world world;
  auto const set = world.store->acquire_all({.resources = {"b", "\xC3\xA4", "a", "B"}});
  REQUIRE(set.has_value());
  REQUIRE(set->size() == 4);
  CHECK((*set)[0].resource() == "B");
  CHECK((*set)[1].resource() == "a");
  CHECK((*set)[2].resource() == "b");
  CHECK((*set)[3].resource() == "\xC3\xA4");
  CHECK(std::is_sorted(set->begin(), set->end(),
                       [](auto const& a, auto const& b) { return a.token() < b.token(); }));
  CHECK(set->at("b").resource() == "b");
  CHECK_THROWS_AS(static_cast<void>(set->at("c")), fg::invalid_request);
}

TEST_CASE("where one is busy, none is held") {
  scripted_world world;
  auto const held = world.store->acquire({.resource = "b"});
  CHECK_FALSE(world.store->acquire_all({.resources = {"a", "b", "c"}}).has_value());
  CHECK_FALSE(world.store->inspect("a").has_value());
  CHECK_FALSE(world.store->inspect("c").has_value());
}

TEST_CASE("where one throws, none is held") {
  scripted_world world;
  world.acts->on_acquire([&](fg::lease_backend::attempt const& what) {
    if (what.resource == "b") throw fg::token_source_unavailable{"down"};
    return world.memory->try_acquire(what);
  });
  CHECK_THROWS_AS(static_cast<void>(world.store->acquire_all({.resources = {"a", "b"}})),
                  fg::token_source_unavailable);
  CHECK_FALSE(world.store->inspect("a").has_value());
}

TEST_CASE("one wait bounds them all") {
  scripted_world world;
  auto const a = world.store->acquire({.resource = "a"});
  auto const b = world.store->acquire({.resource = "b"});
  auto const begin = std::chrono::steady_clock::now();
  CHECK_FALSE(world.store->acquire_all({.resources = {"a", "b"}, .wait = 100ms}).has_value());
  CHECK(std::chrono::steady_clock::now() - begin < 5s);
}

TEST_CASE("a first lease that ran out while waiting for the last is not handed out") {
  scripted_world world;
  auto held = world.store->acquire({.resource = "b", .ttl = 1h});
  std::optional<fg::lease_set> set;
  std::thread taker{[&] {
    set = world.store->acquire_all(
        {.resources = {"a", "b"}, .ttl = 200ms, .wait = 60s, .renew = fg::renewal::none});
  }};
  REQUIRE(eventually([&] { return world.store->counters().lost == 1; }));  // "a" has run out
  held.reset();
  taker.join();
  REQUIRE(set.has_value());
  CHECK(world.store->counters().granted >= 5);  // both were taken again
}

TEST_CASE("release() of a set answers with the worst of its outcomes") {
  scripted_world world;
  auto set = world.store->acquire_all({.resources = {"a", "b", "c"}});
  CHECK(set->release() == fg::release_outcome::released);
  set = world.store->acquire_all({.resources = {"a", "b", "c"}});
  world.memory->expire("b");
  CHECK(set->release() == fg::release_outcome::already_lost);
  set = world.store->acquire_all({.resources = {"a", "b", "c"}});
  world.memory->expire("b");
  world.acts->on_release([&](auto resource, auto holder, auto deadline) {
    if (resource == "a") return fg::release_outcome::unknown;
    return world.memory->release(resource, holder, deadline);
  });
  CHECK(set->release() == fg::release_outcome::unknown);
}

TEST_CASE("two callers who want the same leases in opposite orders never block each other") {
  scripted_world world;
  std::atomic<int> done{0};
  auto const work = [&](std::vector<std::string> const& names) {
    for (int i = 0; i < 50; ++i) {
      if (world.store->acquire_all({.resources = names, .wait = 60s})) ++done;
    }
  };
  std::thread there{work, std::vector<std::string>{"a", "b"}};
  std::thread back{work, std::vector<std::string>{"b", "a"}};
  there.join();
  back.join();
  CHECK(done == 100);
}
