#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <fenceguard/core/errors.hpp>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/scripted_store.hpp"

using namespace std::chrono_literals;
namespace fg = fenceguard;
using fg::tests::scripted_world;

TEST_CASE("64 threads on 4 resources: never two holders, tokens always rise, nothing is left") {
  scripted_world world;
  struct resource_state {
    std::atomic<int> inside{0};
    std::atomic<std::int64_t> last_token{0};
  };
  std::array<resource_state, 4> resources;
  std::atomic<int> overlaps{0};
  std::atomic<int> backwards{0};
  std::atomic<int> grants{0};
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 64; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random{seed};
      for (int i = 0; i < 30; ++i) {
        auto const which = random() % resources.size();
        auto& mine = resources.at(which);
        auto lease = world.store->acquire({.resource = "r/" + std::to_string(which),
                                           .ttl = 60s,
                                           .wait = std::chrono::milliseconds{random() % 200}});
        if (!lease) continue;
        ++grants;
        if (mine.inside++ != 0) ++overlaps;
        if (mine.last_token.exchange(lease->token().value()) >= lease->token().value()) ++backwards;
        if (random() % 4 == 0) mine.last_token = lease->advance().value();
        static_cast<void>(lease->remaining());
        --mine.inside;
        if (random() % 2 == 0) static_cast<void>(lease->release());
      }
    });
  }
  for (auto& one : threads) one.join();
  CHECK(overlaps == 0);
  CHECK(backwards == 0);
  CHECK(grants > 64);
  CHECK(world.store->counters().held == 0);
  CHECK(world.store->counters().granted == static_cast<std::uint64_t>(grants.load()));
  for (std::size_t i = 0; i < resources.size(); ++i) {
    CHECK_FALSE(world.store->inspect("r/" + std::to_string(i)).has_value());
  }
}

TEST_CASE("one lease, used and released from many threads while it runs out") {
  scripted_world world;
  for (int round = 0; round < 20; ++round) {
    auto lease = world.store->acquire({.resource = "a", .ttl = 60ms, .wait = 10s});
    REQUIRE(lease.has_value());
    std::atomic<int> released{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&, i] {
        for (int k = 0; k < 50; ++k) {
          static_cast<void>(lease->remaining());
          static_cast<void>(lease->lost());
          try {
            lease->advance();
          } catch (fg::error const&) {
          }
        }
        if (i % 2 == 0 && lease->release() == fg::release_outcome::released) ++released;
      });
    }
    for (auto& one : threads) one.join();
    CHECK(released <= 1);
    CHECK(lease->remaining() == 0ms);
  }
  CHECK(world.store->counters().held == 0);
}

TEST_CASE("leases end on several threads while their store is destroyed") {
  for (int round = 0; round < 30; ++round) {
    scripted_world world;
    std::vector<std::vector<fg::lease>> leases(4);
    for (std::size_t i = 0; i < 200; ++i) {
      leases[i % 4].push_back(
          *world.store->acquire({.resource = "r/" + std::to_string(i), .ttl = 200ms, .wait = 10s}));
    }
    std::atomic<bool> go{false};
    std::vector<std::thread> threads;
    for (auto& mine : leases) {
      threads.emplace_back([&] {
        while (!go) std::this_thread::yield();
        mine.clear();
      });
    }
    go = true;
    world.store.reset();
    for (auto& one : threads) one.join();
  }
}
