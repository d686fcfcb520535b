#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fenceguard/core/errors.hpp>
#include <optional>
#include <stop_token>

#include "testing/conformance_world.hpp"

namespace fenceguard::testing {
namespace {

using namespace std::chrono_literals;
using environment = conformance_environment;

void renewed(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const name = world.resource();
  auto const held = world.must_acquire(*store, {.resource = name, .ttl = servers.short_ttl});
  stopwatch const watch;
  bool const long_held = world.eventually([&] {
    expect(!held.lost().stop_requested(), "not lost while it is renewed");
    return watch.elapsed() > 3 * servers.short_ttl;
  });
  expect(long_held && held.remaining() > 0ms, "held for three times its ttl");
  auto const stored = store->inspect(name);
  expect(stored && stored->holder == held.holder(), "the store thinks so too");
  expect(store->counters().renewed >= 3, "by renewals");
}

void runs_out(environment const& servers) {
  conformance_world world{servers};
  auto settings = servers.settings;
  settings.clock_drift = 0.3;  // a wide margin, so that a busy machine can see it
  auto const store = world.make_store(settings);
  auto const name = world.resource();
  auto held = world.must_acquire(
      *store, {.resource = name, .ttl = 2 * servers.short_ttl, .renew = renewal::none});
  std::atomic<int> fired{0};
  std::atomic<bool> still_there{false};
  std::stop_callback const when_lost{held.lost(), [&] {
                                       try {
                                         still_there = store->inspect(name).has_value();
                                       } catch (error const&) {
                                       }
                                       ++fired;
                                     }};
  expect(world.eventually([&] { return fired > 0; }), "lost() is requested");
  expect(still_there, "before the ttl has ended on the server");
  expect(held.remaining() == 0ms, "nothing is left");
  expect(throws<lease_lost>([&] { return held.advance(); }), "advance() throws lease_lost");
  expect(held.release() == release_outcome::already_lost, "release() says already_lost");
  expect(fired == 1, "lost() is requested once");
  expect(store->counters().lost == 1, "and counted once");
}

void lost_to_the_server(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const name = world.resource();
  auto held = world.must_acquire(*store, {.resource = name, .ttl = servers.short_ttl});
  servers.expire(name);
  expect(world.eventually([&] { return held.lost().stop_requested(); }), "lost() is requested");
  expect(!store->inspect(name).has_value(), "renewal has not taken it again");
}

void release_outcomes(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const name = world.resource();
  auto held = world.must_acquire(*store, {.resource = name});
  auto const lost = held.lost();
  expect(held.release() == release_outcome::released, "released");
  expect(held.release() == release_outcome::already_lost, "the second time already_lost");
  expect(held.remaining() == 0ms, "nothing is left");
  expect(!lost.stop_requested(), "release() never fires lost()");
  { auto const scoped = world.must_acquire(*store, {.resource = name}); }
  expect(!store->inspect(name).has_value(), "the end of a lease gives it back");
}

void release_of_anothers(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const name = world.resource();
  auto old = world.must_acquire(*store, {.resource = name, .ttl = 1h});
  servers.expire(name);
  auto const newer = world.must_acquire(*store, {.resource = name, .ttl = 1h});
  expect(old.release() == release_outcome::already_lost, "already_lost");
  auto const stored = store->inspect(name);
  expect(stored && stored->holder == newer.holder(), "the newer grant's lease stands");
}

void max_hold(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const name = world.resource();
  auto const hold = 3 * servers.short_ttl;
  auto const held =
      world.must_acquire(*store, {.resource = name, .ttl = servers.short_ttl, .max_hold = hold});
  stopwatch const watch;
  expect(world.eventually([&] { return held.lost().stop_requested(); }), "lost in the end");
  expect(watch.elapsed() > 2 * servers.short_ttl, "after some renewals");
  expect(watch.elapsed() < hold + servers.tolerance, "when max_hold was over");
  expect(store->acquire({.resource = name, .wait = servers.patience}).has_value(), "then free");
}

void end_of_the_store(environment const& servers) {
  conformance_world world{servers};
  auto store = world.make_store();
  auto const name = world.resource();
  auto held = world.must_acquire(*store, {.resource = name, .ttl = servers.short_ttl});
  auto const lost = held.lost();
  store.reset();
  expect(lost.stop_requested(), "the store's end makes its leases lost");
  expect(held.remaining() == 0ms, "nothing is left");
  expect(throws<lease_lost>([&] { return held.advance(); }), "advance() throws lease_lost");
  static_cast<void>(held.release());
  expect(held.release() == release_outcome::already_lost, "a second release says already_lost");
}

/// What a forked child finds wrong: 0 for nothing.
int check_in_child(fenceguard::lease_store& store, lease& held, std::string const& name) {
  ::alarm(20);
  if (held.remaining() != 0ms || !held.lost().stop_requested()) return 1;
  if (!throws<invalid_request>([&] { return store.acquire({.resource = name + "/child"}); })) {
    return 2;
  }
  if (!throws<invalid_request>([&] { return store.inspect(name); })) return 3;
  if (held.release() != release_outcome::already_lost) return 4;
  return 0;
}

void fork_is_harmless(environment const& servers) {
  conformance_world world{servers};
  auto store = world.make_store();
  auto const name = world.resource();
  std::optional<lease> held = world.must_acquire(*store, {.resource = name, .ttl = 1h});
  pid_t const child = ::fork();
  expect(child >= 0, "fork() works");
  if (child == 0) {
    int const wrong = check_in_child(*store, *held, name);
    held.reset();
    store.reset();
    ::_exit(wrong);
  }
  int status = -1;
  expect(::waitpid(child, &status, 0) == child, "the child ends");
  expect(WIFEXITED(status) && WEXITSTATUS(status) == 0,
         "the child finds all inert and is not hung up by destructors (wait status " +
             std::to_string(status) + ")");
  expect(held->remaining() > 0ms, "the parent's lease is unharmed");
  auto const stored = store->inspect(name);
  expect(stored && stored->holder == held->holder(), "also on the server");
  expect(held->release() == release_outcome::released, "and can be released");
}

constexpr conformance_case cases[] = {
    {"a lease is renewed", always, renewed},
    {"a lease that runs out is lost before its ttl ends", always, runs_out},
    {"a lease that is gone on the server is lost, not taken again", can_expire, lost_to_the_server},
    {"release says what became of it", always, release_outcomes},
    {"release never deletes another's lease", can_expire, release_of_anothers},
    {"max_hold ends a lease", always, max_hold},
    {"the end of the store", always, end_of_the_store},
    {"a forked child is inert", always, fork_is_harmless},
};

}  // namespace

std::span<conformance_case const> conformance_of_endings() { return cases; }

}  // namespace fenceguard::testing
