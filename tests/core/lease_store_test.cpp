#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>

#include "core/scripted_store.hpp"

using namespace std::chrono_literals;
namespace fg = fenceguard;
using fg::tests::scripted_world;

TEST_CASE("settings are checked when a store is made") {
  CHECK_THROWS_AS(scripted_world{{.command_timeout = 1ms}}, fg::invalid_request);
  CHECK_THROWS_AS(scripted_world{{.release_timeout = -1ms}}, fg::invalid_request);
}

TEST_CASE("inspect() tells who holds a resource") {
  scripted_world world;
  CHECK_FALSE(world.store->inspect("a").has_value());
  auto const lease = world.store->acquire({.resource = "a", .ttl = 10s, .label = "worker 7"});
  auto const info = world.store->inspect("a");
  REQUIRE(info.has_value());
  CHECK(info->holder == lease->holder());
  CHECK(info->token == lease->token());
  CHECK(info->label == "worker 7");
  CHECK(info->remaining > 9s);
  CHECK(info->remaining <= 10s);
  CHECK(std::chrono::system_clock::now() - info->since < 1min);
  world.memory->set_available(false);
  CHECK_THROWS_AS(static_cast<void>(world.store->inspect("a")), fg::lease_store_unavailable);
}

TEST_CASE("counters add up") {
  scripted_world world;
  {
    auto const a = world.store->acquire({.resource = "a"});
    auto const b = world.store->acquire({.resource = "b"});
    CHECK_FALSE(world.store->acquire({.resource = "a"}).has_value());
    CHECK(world.store->counters().held == 2);
  }
  auto const counted = world.store->counters();
  CHECK(counted.granted == 2);
  CHECK(counted.attempts == 3);
  CHECK(counted.busy == 1);
  CHECK(counted.released == 2);
  CHECK(counted.held == 0);
  CHECK(counted.lost == 0);
}

TEST_CASE("the backend is closed when its store ends") {
  scripted_world world;
  CHECK_FALSE(world.acts->closed);
  world.store.reset();
  CHECK(world.acts->closed);
}
