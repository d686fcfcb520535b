// redlock_store as its users see it: options, time, the end of a store, forked children.

#include <fenceguard/core/errors.hpp>
#include <fenceguard/redis/redlock_store.hpp>
#include <string>
#include <thread>
#include <vector>

#include "redis/redlock_fixture.hpp"
#include "servers/forked_child.hpp"

namespace fenceguard::redis_tests {

using redis::redlock_store;
using redis::redlock_store_options;
using test_servers::direction;
using test_servers::eventually;

namespace {

redlock_store_options relayed(quorum& servers, lease_store_settings const& settings = {}) {
  redlock_store_options options{.settings = settings};
  for (std::size_t i = 0; i < 5; ++i) {
    options.urls.push_back("redis://127.0.0.1:" + std::to_string(servers.relay(i).port()));
  }
  return options;
}

std::string refusal_of(std::vector<std::string> urls) {
  counted_tokens tokens;
  try {
    redlock_store const store{{.urls = std::move(urls)}, tokens};
  } catch (invalid_request const& told) {
    return told.what();
  }
  return {};
}

bool says(std::string const& message, char const* part) {
  return message.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("which servers make a quorum is checked before anything is sent") {
  CHECK(says(refusal_of({}), "at least 3"));
  CHECK(says(refusal_of({"redis://a", "redis://b"}), "at least 3"));
  CHECK(says(refusal_of({"redis://a", "redis://b", "redis://c", "redis://d"}), "odd number"));
  CHECK(says(refusal_of({"redis://a", "redis://b", "redis://a:6379/2"}), "a:6379 twice"));
  CHECK(says(refusal_of({"redis://a", "redis://b", "redis+cluster://c"}), "one Redis server"));
  CHECK(says(refusal_of({"redis://a", "redis://b", "http://c"}), "http"));
  // Nobody is asked: not even whether the names exist.
  CHECK(refusal_of({"redis://a.invalid", "redis://b.invalid", "redis://c.invalid"}).empty());
}

TEST_CASE("negative remaining time after retries: what slow servers took counts") {
  quorum servers;
  counted_tokens tokens;
  redlock_store store{relayed(servers), tokens};
  REQUIRE(store.acquire({.resource = "account/0"}).has_value());

  SUBCASE("a majority is slow") {
    for (std::size_t i : {0U, 1U, 2U}) servers.relay(i).delay(50ms);
    auto const lease = store.acquire({.resource = "account/1", .ttl = 2s});
    REQUIRE(lease.has_value());
    // Two round trips, the one hundredth for drift and the two milliseconds.
    CHECK(lease->remaining() <= 2s - 2 * 100ms - 20ms - 2ms);
    CHECK(lease->remaining() > 0ms);
  }
  SUBCASE("so slow that nothing is left: no lease, and nothing behind") {
    for (std::size_t i : {0U, 1U, 2U}) servers.relay(i).delay(60ms);
    for (int i = 0; i < 3; ++i) {
      CHECK_THROWS_AS(static_cast<void>(store.acquire({.resource = "account/1", .ttl = 100ms})),
                      lease_store_unavailable);
    }
    CHECK(store.counters().held == 0);
    CHECK(eventually([&] { return servers.copies("account/1") == 0; }));
  }
  SUBCASE("one server is slow: nobody waits for it") {
    servers.relay(3).delay(400ms);
    auto const took = time_of([&] {
      auto const lease = store.acquire({.resource = "account/1", .ttl = 10s});
      REQUIRE(lease.has_value());
      CHECK(lease->remaining() > 10s - 400ms);
    });
    CHECK(took < 400ms);
  }
}

TEST_CASE("leases of a store that has ended can be released") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens);
  auto const holder = new_holder();
  token_of(try_acquire(*store, "account/1", holder, 1h));
  REQUIRE(eventually([&] { return servers.copies("account/1") == 5; }));
  servers.server(4).pause();
  store->close();
  CHECK(
      std::holds_alternative<backend::not_applied>(try_acquire(*store, "account/2", new_holder())));
  CHECK(renew(*store, "account/1", holder).answer == backend::renew_answer::unknown);
  CHECK_THROWS_AS(static_cast<void>(store->inspect("account/1", in(5s))), lease_store_unavailable);
  CHECK(store->release("account/1", holder, in(5s)) == release_outcome::released);
  servers.server(4).resume();
  CHECK(eventually([&] { return servers.copies("account/1") == 0; }));
}

TEST_CASE("the end of a store ends what waits for servers that hang") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens, {.command_timeout = 30s});
  token_of(try_acquire(*store, "account/0", new_holder()));
  for (std::size_t i = 0; i < 5; ++i) servers.server(i).pause();
  std::vector<std::thread> threads;
  std::atomic<int> ended{0};
  threads.emplace_back([&] {
    static_cast<void>(try_acquire(*store, "account/1", new_holder(), 60s, 30s));
    ++ended;
  });
  threads.emplace_back([&] {
    static_cast<void>(renew(*store, "account/0", new_holder(), 60s, 30s));
    ++ended;
  });
  threads.emplace_back([&] {
    static_cast<void>(store->release("account/0", new_holder(), in(30s)));
    ++ended;
  });
  std::this_thread::sleep_for(50ms);  // so that they are under way, as a rule
  CHECK(time_of([&] {
          store->close();
          for (auto& one : threads) one.join();
        }) < 10s);
  CHECK(ended == 3);
  for (std::size_t i = 0; i < 5; ++i) servers.server(i).resume();
}

TEST_CASE("a forked child is inert") {
  quorum servers;
  counted_tokens tokens;
  auto store = servers.open(tokens);
  auto const holder = new_holder();
  token_of(try_acquire(*store, "account/1", holder, 1h));
  REQUIRE(renew(*store, "account/1", holder, 1h).answer == backend::renew_answer::renewed);
  CHECK(test_servers::status_of_child([&] {
          int wrong = 0;
          try {
            static_cast<void>(try_acquire(*store, "account/2", new_holder()));
            wrong = 1;
          } catch (invalid_request const&) {
          }
          if (store->release("account/1", holder, in(1s)) != release_outcome::unknown) wrong = 2;
          if (renew(*store, "account/1", holder).answer != backend::renew_answer::unknown) {
            wrong = 3;
          }
          store->close();
          store.reset();
          return wrong;
        }) == 0);
  CHECK(renew(*store, "account/1", holder).answer == backend::renew_answer::renewed);
  CHECK(store->release("account/1", holder, in(5s)) == release_outcome::released);
}

TEST_CASE("callers who ask at the same time share messages and reservations") {
  quorum servers;
  counted_tokens tokens;
  redlock_store store{relayed(servers), tokens};
  REQUIRE(store.acquire({.resource = "account/0"}).has_value());
  for (std::size_t i = 0; i < 5; ++i) servers.relay(i).delay(5ms);
  auto const reserved = tokens.calls();
  for (std::size_t i = 0; i < 5; ++i) servers.relay(i).reset_counters();
  constexpr int callers = 32;
  std::atomic<int> granted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < callers; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i) {
        auto held = store.acquire({.resource = "own/" + std::to_string(t), .wait = 5s});
        if (held) ++granted;
      }
    });
  }
  for (auto& one : threads) one.join();
  CHECK(granted == callers * 5);
  // One by one it would be three for each grant.
  CHECK(servers.relay(0).round_trips() < callers * 5);
  CHECK(tokens.calls() - reserved < callers * 5);
}

}  // namespace fenceguard::redis_tests
