#include <fenceguard/core/errors.hpp>
#include <optional>
#include <string>
#include <vector>

#include "testing/conformance_world.hpp"

namespace fenceguard::testing {
namespace {

using namespace std::chrono_literals;
using environment = conformance_environment;

lease_store_settings impatient(environment const& servers) {
  auto settings = servers.settings;
  settings.command_timeout = 300ms;
  settings.release_timeout = 100ms;
  return settings;
}

/// Acquires as soon as the servers serve again.
lease acquire_again(conformance_world const& world, fenceguard::lease_store& store,
                    std::string const& name) {
  std::optional<lease> got;
  bool const served = world.eventually([&] {
    try {
      got = store.acquire({.resource = name, .wait = 1s});
    } catch (lease_store_unavailable const&) {
    } catch (token_source_unavailable const&) {
    }
    return got.has_value();
  });
  expect(served, "the store grants " + name + " again");
  return std::move(*got);
}

void restart(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const name = world.resource();
  auto const before = world.must_acquire(*store, {.resource = name});
  auto const token = before.token();
  auto released = world.must_acquire(*store, {.resource = world.resource("released")});
  expect(released.release() == release_outcome::released, "released");
  servers.restart();
  auto const next = acquire_again(world, *store, world.resource("released"));
  expect(released.token() < next.token(), "tokens go on rising");
  // Whether leases survive a restart is the store's own affair; nobody may think wrongly for long.
  auto const stored = store->inspect(name);
  if (!stored || stored->holder != before.holder()) {
    expect(world.eventually([&] { return before.lost().stop_requested(); }),
           "a lease that did not survive is lost");
    auto const successor = acquire_again(world, *store, name);
    expect(token < successor.token(), "and its successor's token is higher");
  }
}

void hang_acquire(environment const& servers) {
  conformance_world world{servers};
  auto const settings = impatient(servers);
  auto const store = world.make_store(settings);
  auto const name = world.resource();
  world.must_acquire(*store, {.resource = name}).release();
  world.pause();
  stopwatch const watch;
  expect(throws<lease_store_unavailable>([&] { return store->acquire({.resource = name}); }),
         "lease_store_unavailable, not busy");
  expect(watch.elapsed() < settings.command_timeout + servers.tolerance, "within its time limit");
  stopwatch const second;
  expect(throws<lease_store_unavailable>(
             [&] { return store->acquire({.resource = name, .ttl = 1h, .wait = 500ms}); }),
         "lease_store_unavailable after a wait");
  expect(second.elapsed() < 500ms + settings.command_timeout + servers.tolerance,
         "within the wait and the time limit");
  expect(throws<lease_store_unavailable>([&] { return store->inspect(name); }),
         "inspect() throws too");
  world.resume();
  // Requests that the server may find and serve only now must not hold the resource for an hour.
  auto const got = acquire_again(world, *store, name);
  expect(got.remaining() > 0ms, "held after the hang");
}

void hang_renewal(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store(impatient(servers));
  auto const name = world.resource();
  auto held = world.must_acquire(*store, {.resource = name, .ttl = servers.short_ttl});
  stopwatch const watch;
  world.pause();
  expect(world.eventually([&] { return held.lost().stop_requested(); }), "lost");
  expect(watch.elapsed() < 2 * servers.short_ttl + servers.tolerance, "when its time was over");
  stopwatch const release;
  expect(held.release() == release_outcome::already_lost, "release() says already_lost");
  expect(release.elapsed() < servers.tolerance, "at once");
  world.resume();
}

void short_hang(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store(impatient(servers));
  auto const held =
      world.must_acquire(*store, {.resource = world.resource(), .ttl = 30 * servers.short_ttl});
  auto const quick =
      world.must_acquire(*store, {.resource = world.resource("quick"), .ttl = servers.short_ttl});
  world.pause();
  expect(world.eventually([&] { return quick.lost().stop_requested(); }), "the short one is lost");
  world.resume();
  auto const renewals = store->counters().renewed;
  auto const another = acquire_again(world, *store, world.resource("another"));
  expect(held.remaining() > 0ms, "a lease of a longer ttl outlives the hang");
  auto const third = world.must_acquire(
      *store, {.resource = world.resource("third"), .ttl = servers.short_ttl, .wait = 10s});
  expect(world.eventually([&] { return store->counters().renewed > renewals + 1; }),
         "renewals go on after it");
  expect(third.remaining() > 0ms, "and keep a lease alive");
}

void hang_release(environment const& servers) {
  conformance_world world{servers};
  auto const settings = impatient(servers);
  auto const store = world.make_store(settings);
  auto const name = world.resource();
  auto held = world.must_acquire(*store, {.resource = name, .ttl = 1h});
  std::vector<lease> many;
  for (int i = 0; i < 200; ++i) {
    many.push_back(
        world.must_acquire(*store, {.resource = world.resource(std::to_string(i)), .ttl = 1h}));
  }
  world.pause();
  stopwatch const watch;
  expect(held.release() == release_outcome::unknown, "release() says unknown");
  expect(watch.elapsed() < settings.command_timeout + servers.tolerance, "within its time limit");
  stopwatch const destructors;
  many.clear();
  expect(destructors.elapsed() < settings.release_timeout + servers.tolerance,
         "200 destructors do not wait one after the other");
  world.resume();
  expect(world.eventually([&] {
    try {
      return !store->inspect(name) && !store->inspect(world.resource("0")) &&
             !store->inspect(world.resource("199"));
    } catch (lease_store_unavailable const&) {
      return false;
    }
  }),
         "all are released in the background");
}

constexpr conformance_case cases[] = {
    {"a restart of the servers", can_restart, restart},
    {"acquire while the servers hang", can_pause, hang_acquire},
    {"renewal while the servers hang", can_pause, hang_renewal},
    {"renewal after the servers have hung", can_pause, short_hang},
    {"release while the servers hang", can_pause, hang_release},
};

}  // namespace

std::span<conformance_case const> conformance_of_faults() { return cases; }

}  // namespace fenceguard::testing
