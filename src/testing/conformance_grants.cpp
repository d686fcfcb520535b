#include <array>
#include <atomic>
#include <fenceguard/core/errors.hpp>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "testing/conformance_world.hpp"

namespace fenceguard::testing {
namespace {

using namespace std::chrono_literals;
using environment = conformance_environment;

void one_holder(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const name = world.resource();
  auto held = world.must_acquire(*store, {.resource = name});
  expect(held.resource() == name, "the lease names its resource");
  expect(held.holder().size() == 32, "a holder of 32 characters");
  expect(held.remaining() > 0ms && held.remaining() <= 10s, "some of the ttl is left");
  expect(!held.lost().stop_requested(), "a fresh lease is not lost");
  expect(!store->acquire({.resource = name}).has_value(), "busy while it is held");
  expect(held.release() == release_outcome::released, "released");
  expect(store->acquire({.resource = name}).has_value(), "a grant once it is free");
}

void one_holder_among_stores(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const other = world.make_store();
  auto const name = world.resource();
  auto held = world.must_acquire(*store, {.resource = name});
  expect(!other->acquire({.resource = name}).has_value(), "busy for another store too");
  expect(held.release() == release_outcome::released, "released");
  auto const next = world.must_acquire(*other, {.resource = name});
  expect(held.token() < next.token(), "a higher token than another store's earlier grant");
  expect(!store->acquire({.resource = name}).has_value(), "busy for the first store now");
}

void resources_are_independent(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const a = world.must_acquire(*store, {.resource = world.resource("a")});
  auto const b = world.must_acquire(*store, {.resource = world.resource("b")});
  expect(a.remaining() > 0ms && b.remaining() > 0ms, "both are held at once");
}

void token_order(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const name = world.resource();
  std::set<std::string> holders;
  std::int64_t last = 0;
  for (int i = 0; i < 50; ++i) {
    auto held = world.must_acquire(*store, {.resource = name, .wait = 10s});
    expect(held.token().value() > last, "each grant's token is higher than all before");
    expect(holders.insert(held.holder()).second, "each grant has a holder of its own");
    last = held.token().value();
    if (i % 3 == 0) last = held.advance().value();
    expect(held.token().value() == last, "token() is what advance() gave");
  }
}

void advance(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const name = world.resource();
  auto held = world.must_acquire(*store, {.resource = name});
  auto const first = held.token();
  auto const holder = held.holder();
  auto const second = held.advance();
  expect(first < second, "a higher token");
  expect(held.holder() == holder, "the same holder");
  auto const stored = store->inspect(name);
  expect(stored && stored->token == second, "inspect() shows the new token");
  expect(held.release() == release_outcome::released, "the grant still holds");
  expect(throws<lease_lost>([&] { return held.advance(); }), "lease_lost after release");
  expect(held.token() == second, "the token stays as it was");
}

void advance_of_a_lost_lease(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const name = world.resource();
  auto held = world.must_acquire(*store, {.resource = name, .ttl = 1h});
  servers.expire(name);
  auto const newer = world.must_acquire(*store, {.resource = name, .ttl = 1h});
  expect(throws<lease_lost>([&] { return held.advance(); }), "lease_lost: another holds it");
  expect(held.lost().stop_requested(), "lost() is requested then");
  expect(held.token() < newer.token(), "the newer grant has the higher token");
  auto const stored = store->inspect(name);
  expect(stored && stored->token == newer.token(), "the newer grant's token is untouched");
}

void inspect(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const name = world.resource();
  expect(!store->inspect(name).has_value(), "nobody holds it yet");
  std::string const label = "worker 7, \xC3\xA9t\xC3\xA9 {x}";
  auto held = world.must_acquire(*store, {.resource = name, .ttl = 1min, .label = label});
  auto const info = store->inspect(name);
  expect(info.has_value(), "somebody holds it");
  expect(info->holder == held.holder(), "the lease's holder");
  expect(info->token == held.token(), "the lease's token");
  expect(info->label == label, "the label as it was given");
  expect(info->remaining > 30s && info->remaining <= 1min, "about the ttl is left");
  auto const age = std::chrono::system_clock::now() - info->since;
  expect(age > -1min && age < 1min, "held since about now");
  expect(held.release() == release_outcome::released, "released");
  expect(!store->inspect(name).has_value(), "nobody holds it any more");
}

void odd_names(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const prefix = world.resource("");
  std::vector<lease> held;
  for (std::string const name : {" ", "a b", "{a}", "}{", "a\nb", "a\tb", "'; --", "\"", "\\", "%s",
                                 "*", "k\xC3\xB6ln", "\xF0\x9F\x98\x80", "A", "a", "a/", "a/b"}) {
    held.push_back(world.must_acquire(*store, {.resource = prefix + name}));
    expect(store->inspect(prefix + name)->holder == held.back().holder(), "found by its name");
  }
  std::string longest = prefix;
  longest.resize(lease_request::max_resource_bytes, 'x');
  held.push_back(world.must_acquire(*store, {.resource = longest}));
  longest.back() = 'y';
  held.push_back(world.must_acquire(*store, {.resource = longest}));
}

void bad_input(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const name = world.resource();
  auto const refused = [&](lease_request const& request) {
    return throws<invalid_request>([&] { return store->acquire(request); });
  };
  expect(refused({.resource = ""}), "an empty resource is refused");
  expect(refused({.resource = std::string(513, 'x')}), "513 bytes are refused");
  expect(refused({.resource = std::string{"a\0b", 3}}), "NUL is refused");
  expect(refused({.resource = "\xFF"}), "bytes that are not UTF-8 are refused");
  expect(refused({.resource = name, .ttl = 0ms}), "a ttl of 0 is refused");
  expect(refused({.resource = name, .ttl = -1ms}), "a negative ttl is refused");
  expect(refused({.resource = name, .ttl = 9ms}), "a ttl below 10 ms is refused");
  expect(refused({.resource = name, .ttl = 25h}), "a ttl of more than a day is refused");
  expect(refused({.resource = name, .wait = -1ms}), "a negative wait is refused");
  expect(refused({.resource = name, .label = std::string(129, 'x')}), "129 bytes of label");
  expect(refused({.resource = name, .label = "a\nb"}), "a control character in the label");
  expect(refused({.resource = name, .max_hold = -1ms}), "a negative max_hold is refused");
  expect(throws<invalid_request>([&] { return store->acquire_all({.resources = {}}); }),
         "an empty set is refused");
  expect(throws<invalid_request>([&] {
           return store->acquire_all({.resources = {name, name}});
         }),
         "a name twice is refused");
  expect(throws<invalid_request>([&] { return store->inspect(""); }), "inspect() checks as well");
  expect(!store->inspect(name).has_value(), "nothing was changed by any of it");
}

void all_or_none(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  auto const a = world.resource("a");
  auto const b = world.resource("b");
  auto const c = world.resource("c");
  {
    auto set = store->acquire_all({.resources = {c, a, b}});
    expect(set && set->size() == 3, "all three");
    expect((*set)[0].resource() == a && (*set)[2].resource() == c, "in byte order");
    expect(set->release() == release_outcome::released, "all released");
  }
  auto const held = world.must_acquire(*store, {.resource = b});
  expect(!store->acquire_all({.resources = {a, b, c}}).has_value(), "busy where one is");
  expect(!store->inspect(a) && !store->inspect(c), "none of the others is held");
}

void many_threads(environment const& servers) {
  conformance_world world{servers};
  auto const store = world.make_store();
  struct shared_state {
    std::atomic<int> inside{0};
    std::atomic<std::int64_t> last{0};
  };
  std::array<shared_state, 4> resources;
  std::atomic<int> overlaps{0}, backwards{0}, grants{0};
  std::mutex mutex;
  std::string failure;
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 64; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random{seed};
      for (int i = 0; i < 8; ++i) {
        auto const which = random() % resources.size();
        auto& mine = resources.at(which);
        try {
          auto const held = store->acquire({.resource = world.resource(std::to_string(which)),
                                            .ttl = 1min,
                                            .wait = std::chrono::milliseconds{random() % 500}});
          if (!held) continue;
          ++grants;
          if (mine.inside++ != 0) ++overlaps;
          auto const token = held->token().value();
          if (mine.last.exchange(token) >= token) ++backwards;
          --mine.inside;
        } catch (error const& failed) {
          std::lock_guard const guard{mutex};
          failure = failed.what();
        }
      }
    });
  }
  for (auto& one : threads) one.join();
  expect(overlaps == 0, "never two holders at once");
  expect(backwards == 0, "tokens of a resource always rise");
  expect(failure.empty(), "no errors: " + failure);
  expect(grants >= 64, "a fair number of grants");
  expect(store->counters().held == 0, "nothing is held in the end");
}

constexpr conformance_case cases[] = {
    {"one holder at a time", always, one_holder},
    {"one holder at a time among stores", shared, one_holder_among_stores},
    {"resources are independent", always, resources_are_independent},
    {"tokens rise, holders differ", always, token_order},
    {"advance gives a higher token to the same grant", always, advance},
    {"advance of a lost lease throws", can_expire, advance_of_a_lost_lease},
    {"inspect tells who holds a resource", always, inspect},
    {"names of every kind are told apart", always, odd_names},
    {"bad input is refused and changes nothing", always, bad_input},
    {"several leases are taken all or none", always, all_or_none},
    {"64 threads", always, many_threads},
};

}  // namespace

std::span<conformance_case const> conformance_of_grants() { return cases; }

}  // namespace fenceguard::testing
