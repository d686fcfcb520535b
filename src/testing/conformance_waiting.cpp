#include <atomic>
#include <fenceguard/core/errors.hpp>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "testing/conformance_world.hpp"

namespace fenceguard::testing {
namespace {

using namespace std::chrono_literals;
using environment = conformance_environment;

void wait_bound(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const name = world.resource();
  auto const held = world.must_acquire(*store, {.resource = name, .ttl = 1h});
  stopwatch const watch;
  expect(!store->acquire({.resource = name, .wait = 300ms}).has_value(), "busy in the end");
  expect(watch.elapsed() >= 290ms, "not before the wait is over");
  expect(watch.elapsed() <= 300ms + servers.settings.command_timeout + servers.tolerance,
         "not long after the wait is over");
}

void wait_for_release(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const other = servers.shared ? world.make_store() : nullptr;
  auto& waiting_store = servers.shared ? *other : *store;
  auto const name = world.resource();
  auto held = world.must_acquire(*store, {.resource = name, .ttl = 1h});
  std::optional<lease> got;
  std::thread waiter{
      [&] { got = waiting_store.acquire({.resource = name, .wait = servers.patience}); }};
  bool const asked = world.eventually([&] { return waiting_store.counters().attempts >= 2; });
  auto const outcome = held.release();
  waiter.join();
  expect(asked, "the caller who waits asks the server");
  expect(outcome == release_outcome::released, "released");
  expect(got.has_value(), "the one who waited has it");
  expect(held.token() < got->token(), "with a higher token");
}

void wait_for_expiry(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const name = world.resource();
  auto const held = world.must_acquire(
      *store, {.resource = name, .ttl = servers.short_ttl, .renew = renewal::none});
  auto const next = world.must_acquire(*store, {.resource = name, .wait = servers.patience});
  expect(held.lost().stop_requested(), "lost before another had it");
  expect(held.remaining() == 0ms, "with nothing left");
  expect(held.token() < next.token(), "with a lower token");
}

void cancel(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const name = world.resource();
  auto held = world.must_acquire(*store, {.resource = name, .ttl = 1h});
  std::stop_source stop;
  std::atomic<bool> done{false};
  std::optional<lease> got;
  std::thread waiter{[&] {
    got = store->acquire({.resource = name, .wait = 1h, .stop = stop.get_token()});
    done = true;
  }};
  bool const asked = world.eventually([&] { return store->counters().attempts >= 3; });
  stop.request_stop();
  bool const ended = world.eventually([&] { return done.load(); });
  if (!ended) held.release();
  waiter.join();
  expect(asked && ended, "a stop ends the wait");
  expect(!got.has_value(), "without a grant");
  expect(held.release() == release_outcome::released, "the holder is not disturbed");
  expect(!store->inspect(name).has_value(), "nothing stays behind");
  expect(!store->acquire({.resource = name, .stop = stop.get_token()}).has_value(),
         "no grant for a caller who has stopped before");
  expect(!store->inspect(name).has_value(), "nothing stays behind then either");
}

void many_waiters(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const name = world.resource();
  std::optional<lease> held = world.must_acquire(*store, {.resource = name, .ttl = 1min});
  std::atomic<int> inside{0}, overlaps{0}, granted{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 32; ++i) {
    waiters.emplace_back([&] {
      try {
        auto const mine = store->acquire({.resource = name, .ttl = 1min, .wait = servers.patience});
        if (!mine) return;
        if (inside++ != 0) ++overlaps;
        std::this_thread::yield();
        --inside;
        ++granted;
      } catch (error const&) {
        ++overlaps;
      }
    });
  }
  held.reset();
  for (auto& one : waiters) one.join();
  expect(overlaps == 0, "never two at once, and no errors");
  expect(granted == 32, "each had its turn");
  expect(store->counters().attempts < 32 * 5, "without asking the server all the time");
}

constexpr conformance_case cases[] = {
    {"a wait is bounded", always, wait_bound},
    {"a release ends a wait", always, wait_for_release},
    {"a lease that runs out ends a wait", always, wait_for_expiry},
    {"a stop ends a wait and nothing stays behind", always, cancel},
    {"32 waiters have their turns", always, many_waiters},
};

}  // namespace

std::span<conformance_case const> conformance_of_waiting() { return cases; }

}  // namespace fenceguard::testing
