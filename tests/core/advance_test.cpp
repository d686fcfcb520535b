#include <doctest/doctest.h>

#include <algorithm>
#include <fenceguard/core/errors.hpp>
#include <thread>
#include <vector>

#include "core/recording_observer.hpp"
#include "core/scripted_store.hpp"

using namespace std::chrono_literals;
namespace fg = fenceguard;
using fg::tests::recording_observer;
using fg::tests::scripted_world;
using backend = fg::lease_backend;

TEST_CASE("advance() gives the same grant a higher token") {
  recording_observer observer;
  scripted_world world{{.observer = &observer}};
  auto lease = world.store->acquire({.resource = "a"});
  auto const first = lease->token();
  auto const holder = lease->holder();
  auto const second = lease->advance();
  CHECK(first < second);
  CHECK(lease->token() == second);
  CHECK(lease->holder() == holder);
  CHECK(world.store->inspect("a")->token == second);
  CHECK(observer.count<fg::events::advanced>() == 1);
}

TEST_CASE("advance() of a lease that the store has given to another") {
  scripted_world world;
  auto lease = world.store->acquire({.resource = "a"});
  auto const token = lease->token();
  world.memory->expire("a");
  auto const newer = world.store->acquire({.resource = "a"});
  CHECK_THROWS_AS(lease->advance(), fg::lease_lost);
  CHECK(lease->token() == token);
  CHECK(lease->lost().stop_requested());
  CHECK(lease->remaining() == 0ms);
  CHECK_FALSE(newer->lost().stop_requested());
}

TEST_CASE("advance() that could not be told leaves the token as it was") {
  scripted_world world;
  auto lease = world.store->acquire({.resource = "a"});
  auto const token = lease->token();
  world.acts->on_advance([](auto) { return backend::not_applied{"OOM"}; });
  CHECK_THROWS_WITH_AS(lease->advance(), "advance: OOM", fg::lease_store_unavailable);
  world.acts->on_advance([](auto) { return backend::unknown{"no answer"}; });
  CHECK_THROWS_AS(lease->advance(), fg::lease_store_unavailable);
  world.acts->on_advance(
      [](auto) -> backend::advance_answer { throw fg::token_source_unavailable{"down"}; });
  CHECK_THROWS_AS(lease->advance(), fg::token_source_unavailable);
  CHECK(lease->token() == token);
  CHECK(lease->remaining() > 0ms);
}

TEST_CASE("a token that is not higher is not taken from any store") {
  scripted_world world;
  auto lease = world.store->acquire({.resource = "a"});
  auto const token = lease->token();
  world.acts->on_advance([&](auto) { return backend::advanced{token}; });
  CHECK_THROWS_AS(lease->advance(), fg::lease_store_unavailable);
  world.acts->on_advance([](auto) { return backend::advanced{fg::fencing_token{50}}; });
  CHECK_THROWS_AS(lease->state()->advance(fg::fencing_token{50}), fg::lease_store_unavailable);
  CHECK(lease->token() == token);
  CHECK(lease->state()->advance(fg::fencing_token{49}) == fg::fencing_token{50});
}

TEST_CASE("advance() after release") {
  scripted_world world;
  auto lease = world.store->acquire({.resource = "a"});
  static_cast<void>(lease->release());
  CHECK_THROWS_AS(lease->advance(), fg::lease_lost);
}

TEST_CASE("advance() from several threads: all tokens differ, the highest stays") {
  scripted_world world;
  auto lease = world.store->acquire({.resource = "a"});
  std::vector<std::thread> threads;
  std::vector<std::vector<fg::fencing_token>> seen(8);
  for (auto& mine : seen) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        try {
          mine.push_back(lease->advance());
        } catch (fg::lease_store_unavailable const&) {
          FAIL("not higher");
        }
      }
    });
  }
  for (auto& one : threads) one.join();
  std::vector<fg::fencing_token> all;
  for (auto const& mine : seen) all.insert(all.end(), mine.begin(), mine.end());
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
  CHECK(lease->token() == all.back());
}
