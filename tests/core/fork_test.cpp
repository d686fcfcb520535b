#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>
#include <optional>

#include "core/scripted_store.hpp"
#include "servers/forked_child.hpp"

using namespace std::chrono_literals;
namespace fg = fenceguard;
using fg::test_servers::status_of_child;
using fg::tests::scripted_world;

namespace {

template <class Error, class Call>
bool throws(Call const& call) {
  try {
    call();
  } catch (Error const&) {
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE("fork: a lease is inert in the child and unharmed in the parent") {
  scripted_world world;
  auto lease = world.store->acquire({.resource = "a", .ttl = 1h});
  CHECK(status_of_child([&] {
          bool const inert = lease->remaining() == 0ms && lease->lost().stop_requested() &&
                             throws<fg::lease_lost>([&] { lease->advance(); }) &&
                             lease->release() == fg::release_outcome::already_lost &&
                             !lease->state()->may_heal("one");
          lease.reset();
          return inert && world.acts->releases == 0;
        }) == 0);
  CHECK(lease->remaining() > 0ms);
  CHECK_FALSE(lease->lost().stop_requested());
  CHECK(world.store->inspect("a")->holder == lease->holder());
}

TEST_CASE("fork: every call of the store throws in the child") {
  scripted_world world;
  auto const lease = world.store->acquire({.resource = "a"});
  CHECK(status_of_child([&] {
          return throws<fg::invalid_request>(
                     [&] { static_cast<void>(world.store->acquire({.resource = "b"})); }) &&
                 throws<fg::invalid_request>(
                     [&] { static_cast<void>(world.store->acquire_all({.resources = {"b"}})); }) &&
                 throws<fg::invalid_request>(
                     [&] { static_cast<void>(world.store->inspect("a")); }) &&
                 world.acts->acquires == 1;
        }) == 0);
}

TEST_CASE("fork: destructors of store and leases neither hang nor send in the child") {
  std::optional<scripted_world> world{std::in_place};
  std::optional<fg::lease> lease = world->store->acquire({.resource = "a"});
  CHECK(status_of_child([&] {
          auto const acts = world->acts;
          world->store.reset();
          lease.reset();
          return acts->releases == 0 && !acts->closed;
        }) == 0);
  CHECK(status_of_child([&] {
          auto const acts = world->acts;
          lease.reset();
          world->store.reset();
          return acts->releases == 0 && !acts->closed;
        }) == 0);
  CHECK(lease->release() == fg::release_outcome::released);
}

TEST_CASE("fork: destructors in the child, while the parent's threads are in the backend") {
  scripted_world world;
  std::atomic<bool> in_renewal{false};
  std::atomic<bool> let_go{false};
  world.acts->on_renew([&](auto batch, auto deadline) {
    in_renewal = true;
    while (!let_go) std::this_thread::sleep_for(1ms);
    for (auto& item : batch) world.memory->renew(item, deadline);
  });
  auto lease = world.store->acquire({.resource = "a", .ttl = 2s});
  while (!in_renewal) std::this_thread::sleep_for(1ms);
  CHECK(status_of_child([&] {
          lease.reset();
          world.store.reset();
          return true;
        }) == 0);
  let_go = true;
  CHECK(lease->release() == fg::release_outcome::released);
}

#if !defined( \
    __SANITIZE_THREAD__)  // which allows no threads after a fork from a process with threads
TEST_CASE("fork: a child may make a store of its own") {
  scripted_world world;
  auto const lease = world.store->acquire({.resource = "a"});
  CHECK(status_of_child([] {
          scripted_world own;
          auto const mine = own.store->acquire({.resource = "a", .ttl = 300ms});
          while (mine && own.store->counters().renewed < 2) std::this_thread::sleep_for(1ms);
          return mine && mine->remaining() > 0ms;
        }) == 0);
}
#endif
