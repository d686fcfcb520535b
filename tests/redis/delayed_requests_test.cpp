// Requests and replies that are late, and callers that are gone.

#include <fenceguard/core/errors.hpp>
#include <string>
#include <thread>

#include "core/server_clock.hpp"
#include "redis/backend_fixture.hpp"
#include "redis/lease_backend.hpp"
#include "servers/forked_child.hpp"
#include "servers/relay.hpp"

namespace fenceguard::redis_tests {
namespace {

using test_servers::direction;
using test_servers::eventually;

// How many scripts the server has run.
long long scripts_run(test_servers::redis_server const& server) {
  auto const field = server.info("commandstats", "cmdstat_evalsha").value_or("calls=0,");
  return std::stoll(field.substr(field.find('=') + 1));
}

}  // namespace

TEST_CASE("key left by a timed-out acquire: it is found and undone") {
  test_servers::redis_server server;
  test_servers::relay relay{server.port()};
  counted_tokens tokens;
  auto const store = open_backend(relay.port(), tokens);
  pass(*store, "account/1");

  relay.stall(direction::to_client);
  auto const holder = new_holder();
  auto const answer = try_acquire(*store, "account/1", holder, 60s, 200ms);
  INFO(describe(answer));
  CHECK(std::holds_alternative<backend::unknown>(answer));
  CHECK(server.command({"EXISTS", "fenceguard:{0}:lease:account/1"}).integer == 1);
  relay.flow();
  CHECK(store->release("account/1", holder, in(5s)) == release_outcome::released);
  CHECK(server.command({"EXISTS", "fenceguard:{0}:lease:account/1"}).integer == 0);
}

TEST_CASE("an acquisition that arrives after it was undone takes nothing") {
  test_servers::redis_server server;
  test_servers::relay relay{server.port()};
  counted_tokens tokens;
  bool numbered = false;
  SUBCASE("a token of a block") {}
  SUBCASE("a token of its own") { numbered = true; }
  auto const store = open_backend(relay.port(), tokens, nullptr, {.number_each_grant = numbered});
  auto const direct = open_backend(server.port(), tokens);
  pass(*store, "account/1");

  relay.stall(direction::to_server);
  auto const holder = new_holder();
  auto const before = scripts_run(server);
  auto const answer = try_acquire(*store, "account/1", holder, 60s, 100ms);
  INFO(describe(answer));
  CHECK(std::holds_alternative<backend::unknown>(answer));
  CHECK(direct->release("account/1", holder, in(5s)) == release_outcome::already_lost);
  auto const undone = scripts_run(server);
  CHECK(undone >= before);
  relay.flow();
  REQUIRE(eventually([&] { return scripts_run(server) > undone; }));
  CHECK(server.command({"EXISTS", "fenceguard:{0}:lease:account/1"}).integer == 0);
}

TEST_CASE("a server whose clock is set right is followed at once") {
  server_clock clock;
  auto const now = boottime::now();
  CHECK(clock.at(now) == 0);
  clock.observe(5'000'000'000'000);
  auto const first = clock.at(now);
  CHECK(first <= 5'000'000'000'000);
  CHECK(first > 4'999'990'000'000);
  CHECK(clock.at(now + 1s) == first + 1'000'000);
  clock.observe(1'000'000'000'000);
  CHECK(clock.at(now) <= 1'000'000'000'000);
  clock.forget();
  CHECK(clock.at(now) == 0);
}

TEST_CASE("a grant takes one round trip, and so does its release") {
  test_servers::redis_server server;
  test_servers::relay relay{server.port()};
  counted_tokens tokens;
  auto const store = open_backend(relay.port(), tokens, nullptr, {.block_size = 1'000'000});
  pass(*store, "account/1");
  relay.reset_counters();
  for (int i = 0; i < 10; ++i) pass(*store, "account/1");
  CHECK(relay.round_trips() == 20);
}

TEST_CASE("the token source is down: an error when a block is needed, nothing while there is one") {
  test_servers::redis_server server;
  counted_tokens tokens;
  event_log log;
  auto const store = open_backend(server.port(), tokens, &log, {.block_size = 100});
  auto const last = pass(*store, "account/1") + 99;
  tokens.set_available(false);
  std::int64_t token = 0;
  while (token < last - 1) token = pass(*store, "account/1");
  // Fetching ahead, on a thread of its own, has failed, which disturbed nobody.
  CHECK(eventually([&] { return !log.errors().empty(); }));

  auto const holder = new_holder();
  CHECK(token_of(acquire(*store, "account/1", holder)) == last);
  CHECK(renew(*store, "account/1", holder).answer == backend::renew_answer::renewed);
  CHECK_THROWS_AS(static_cast<void>(acquire(*store, "account/2", new_holder())),
                  token_source_unavailable);
  CHECK_THROWS_AS(static_cast<void>(store->advance("account/1", holder, std::nullopt, in(5s))),
                  token_source_unavailable);
  CHECK(server.command({"EXISTS", "fenceguard:{0}:lease:account/2"}).integer == 0);
  CHECK(store->release("account/1", holder, in(5s)) == release_outcome::released);
  tokens.set_available(true);
  // For a moment yet those who did not ask themselves are told what the one who asked was told.
  CHECK(eventually([&] {
    try {
      return grant_token(*store, "account/1") > last;
    } catch (token_source_unavailable const&) {
      return false;
    }
  }));
}

TEST_CASE("the token source is down while each grant is numbered by itself: nothing stays held") {
  test_servers::redis_server server;
  counted_tokens tokens;
  auto const store = open_backend(server.port(), tokens, nullptr, {.number_each_grant = true});
  tokens.set_available(false);
  CHECK_THROWS_AS(static_cast<void>(acquire(*store, "account/1", new_holder())),
                  token_source_unavailable);
  CHECK(server.command({"EXISTS", "fenceguard:{0}:lease:account/1"}).integer == 0);
  tokens.set_available(true);
  auto const before = boottime::now();
  tokens.hold_up();
  CHECK_THROWS_AS(static_cast<void>(try_acquire(*store, "account/1", new_holder(), 60s, 400ms)),
                  token_source_unavailable);
  CHECK(boottime::now() - before < 10s);
  CHECK(server.command({"EXISTS", "fenceguard:{0}:lease:account/1"}).integer == 0);
  tokens.go_on();
}

TEST_CASE("a grant that ran out before it was numbered is none") {
  test_servers::redis_server server;
  counted_tokens tokens;
  auto const store = open_backend(server.port(), tokens, nullptr, {.number_each_grant = true});
  tokens.hold_up();
  backend::acquire_answer answer = backend::unknown{};
  std::thread caller{[&] { answer = try_acquire(*store, "account/1", new_holder(), 20ms, 20s); }};
  REQUIRE(eventually([&] { return tokens.waiting() == 1; }));
  auto const unnumbered = store->inspect("account/1", in(5s));
  if (unnumbered) CHECK(!unnumbered->token.has_value());
  REQUIRE(eventually([&] { return !store->inspect("account/1", in(5s)).has_value(); }));
  tokens.go_on();
  caller.join();
  INFO(describe(answer));
  CHECK(std::holds_alternative<backend::not_applied>(answer));
  CHECK(!store->inspect("account/1", in(5s)).has_value());
}

TEST_CASE("stores that number in different ways never go backwards") {
  test_servers::redis_server server;
  counted_tokens tokens;
  auto const by_blocks = open_backend(server.port(), tokens);
  auto const one_by_one = open_backend(server.port(), tokens, nullptr, {.number_each_grant = true});
  std::int64_t last = 0;
  for (int i = 0; i < 5; ++i) {
    for (auto* store : {by_blocks.get(), one_by_one.get()}) {
      auto const token = pass(*store, "account/1");
      CHECK(token > last);
      last = token;
    }
  }
}

TEST_CASE("a token above one that the database has seen") {
  test_servers::redis_server server;
  counted_tokens tokens;
  auto const store = open_backend(server.port(), tokens);
  auto const holder = new_holder();
  auto const first = token_of(acquire(*store, "account/1", holder));
  CHECK(tokens.calls() == 1);

  SUBCASE("in the block: the next one") {
    auto const above = fencing_token{first};
    CHECK(token_of(store->advance("account/1", holder, above, in(5s))) == first + 1);
    CHECK(tokens.calls() == 1);
  }
  SUBCASE("at the next token or later: the whole block is a ghost") {
    auto const above = fencing_token{first + 1};
    auto const fresh = token_of(store->advance("account/1", holder, above, in(5s)));
    CHECK(fresh >= first + 1'000);
    CHECK(tokens.calls() == 2);
    CHECK(grant_token(*store, "account/2") > fresh);
  }
  SUBCASE("far above the source: blocks are asked for until one lies above it") {
    tokens.set_next(10'000'000);
    auto const above = fencing_token{5'000'000};
    CHECK(token_of(store->advance("account/1", holder, above, in(5s))) >= 10'000'000);
    CHECK(tokens.calls() == 2);
  }
}

TEST_CASE("a source that is another one than before is refused") {
  test_servers::redis_server server;
  counted_tokens real{1'000'000};
  counted_tokens other{1'000};
  auto const store = open_backend(server.port(), real, nullptr, {.block_size = 1});
  auto const token = pass(*store, "account/1");
  auto const wrong = open_backend(server.port(), other, nullptr, {.block_size = 1});
  CHECK_THROWS_WITH_AS(static_cast<void>(acquire(*wrong, "account/1", new_holder())),
                       doctest::Contains("went backwards"), token_source_unavailable);
  CHECK(pass(*store, "account/1") > token);
}

TEST_CASE("tokens are fetched ahead, before they are used up") {
  test_servers::redis_server server;
  counted_tokens tokens;
  event_log log;
  auto const store = open_backend(server.port(), tokens, &log, {.block_size = 100});
  auto const first = pass(*store, "account/1");
  std::int64_t token = first;
  while (token < first + 89) token = pass(*store, "account/1");
  CHECK(tokens.calls() == 1);
  CHECK(pass(*store, "account/1") == first + 90);
  CHECK(eventually([&] { return log.accepted() == 2; }));
  CHECK(pass(*store, "account/1") >= first + 100);
  CHECK(log.needed() == 1);
}

TEST_CASE("stores that were told different numbers of partitions do not share leases silently") {
  test_servers::redis_server server;
  counted_tokens tokens;
  auto const store = open_backend(server.port(), tokens, nullptr, {.partitions = 1});
  pass(*store, "account/1");
  auto const other = open_backend(server.port(), tokens, nullptr, {.partitions = 2});
  std::string resource = "account/1";
  redis::key_space const two{"fenceguard", 2};
  while (two.partition_of(resource) != 0) resource += "1";
  CHECK_THROWS_WITH_AS(static_cast<void>(acquire(*other, resource, new_holder())),
                       doctest::Contains("partitions"), invalid_request);
  CHECK(server.command({"EXISTS", "fenceguard:{0}:lease:" + resource}).integer == 0);
}

TEST_CASE("closed: acquisitions end, leases can still be released") {
  test_servers::redis_server server;
  counted_tokens tokens;
  auto const store = open_backend(server.port(), tokens);
  auto const holder = new_holder();
  token_of(acquire(*store, "account/1", holder));
  store->close();
  auto const answer = try_acquire(*store, "account/2", new_holder());
  CHECK(std::holds_alternative<backend::not_applied>(answer));
  CHECK(renew(*store, "account/1", holder).answer == backend::renew_answer::unknown);
  CHECK(store->release("account/1", holder, in(5s)) == release_outcome::released);
}

TEST_CASE("close ends a call that is waiting for the server") {
  test_servers::redis_server server;
  test_servers::relay relay{server.port()};
  counted_tokens tokens;
  auto const store = open_backend(relay.port(), tokens, nullptr, {.silence_limit = 60s});
  pass(*store, "account/1");
  relay.stall(direction::to_client);
  auto const before = scripts_run(server);
  auto const begun = boottime::now();
  backend::acquire_answer answer = backend::busy{};
  std::thread caller{[&] { answer = try_acquire(*store, "account/1", new_holder(), 60s, 60s); }};
  CHECK(eventually([&] { return scripts_run(server) > before; }));
  store->close();
  caller.join();
  CHECK(boottime::now() - begun < 30s);
  INFO(describe(answer));
  CHECK(std::holds_alternative<backend::unknown>(answer));
}

TEST_CASE("a forked child gets a clear error and disturbs nobody") {
  test_servers::redis_server server;
  counted_tokens tokens;
  auto store = open_backend(server.port(), tokens);
  auto const holder = new_holder();
  token_of(acquire(*store, "account/1", holder));
  CHECK(test_servers::status_of_child([&] {
          try {
            static_cast<void>(try_acquire(*store, "account/2", new_holder()));
          } catch (invalid_request const& refused) {
            bool const clear = std::string{refused.what()}.find("forked") != std::string::npos;
            bool const kept =
                store->release("account/1", holder, in(1s)) == release_outcome::unknown;
            store.reset();
            return clear && kept ? 0 : 2;
          }
          return 1;
        }) == 0);
  CHECK(renew(*store, "account/1", holder).answer == backend::renew_answer::renewed);
  CHECK(store->release("account/1", holder, in(5s)) == release_outcome::released);
}

TEST_CASE("bad input") {
  test_servers::redis_server server;
  counted_tokens tokens;
  auto const store = open_backend(server.port(), tokens);
  CHECK_THROWS_AS(static_cast<void>(try_acquire(*store, "a", new_holder(), 0ms)), invalid_request);
  CHECK_THROWS_AS(static_cast<void>(try_acquire(*store, "a", new_holder(), -1ms)), invalid_request);
  CHECK_THROWS_AS(static_cast<void>(try_acquire(*store, "a", "short")), invalid_request);
  CHECK(server.command({"DBSIZE"}).integer == 0);
  for (std::string prefix : {"", "a{b", "a}b", "a b", "a\nb"}) {
    CHECK_THROWS_AS(redis::key_space{prefix}, invalid_request);
  }
  CHECK_THROWS_AS(redis::key_space{std::string(65, 'a')}, invalid_request);
  CHECK_THROWS_AS((redis::key_space{"a", 0}), invalid_request);
  CHECK_THROWS_AS((redis::key_space{"a", 1'025}), invalid_request);
}

TEST_CASE("a resource belongs to one partition for ever") {
  redis::key_space const keys{"fenceguard", 16};
  CHECK(keys.partition_of("account/42") == 15);
  CHECK(keys.lease("account/42") ==
        "fenceguard:{" + std::to_string(keys.partition_of("account/42")) + "}:lease:account/42");
  CHECK(keys.tokens(3) == "fenceguard:{3}:tokens");
  CHECK(redis::key_space{"fenceguard"}.lease("{x}") == "fenceguard:{0}:lease:{x}");
}

TEST_CASE("many leases are renewed at once, each with its own answer") {
  test_servers::redis_server server;
  test_servers::relay relay{server.port()};
  counted_tokens tokens;
  auto const store = open_backend(relay.port(), tokens);
  std::vector<std::string> resources;
  std::vector<std::string> holders;
  for (int i = 0; i < 100; ++i) {
    resources.push_back("account/" + std::to_string(i));
    holders.push_back(new_holder());
    token_of(acquire(*store, resources.back(), holders.back()));
  }
  server.command({"DEL", "fenceguard:{0}:lease:account/7"});
  std::vector<backend::renew_item> batch;
  for (std::size_t i = 0; i < resources.size(); ++i) {
    batch.push_back({.resource = resources[i], .holder = holders[i], .ttl = 60s});
  }
  store->renew(batch, in(5s));  // connects and learns the script
  relay.reset_counters();
  auto const before = boottime::now();
  store->renew(batch, in(5s));
  CHECK(relay.round_trips() <= 2);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    INFO("lease " << i);
    CHECK(batch[i].answer ==
          (i == 7 ? backend::renew_answer::lost : backend::renew_answer::renewed));
    CHECK(batch[i].sent_at >= before);
    CHECK(batch[i].sent_at <= boottime::now());
    CHECK(batch[i].validity == 60s);
  }
  server.pause();
  store->renew(batch, in(100ms));
  CHECK(batch[0].answer == backend::renew_answer::unknown);
  server.resume();
}

}  // namespace fenceguard::redis_tests
