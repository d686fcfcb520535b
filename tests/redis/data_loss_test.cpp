// Redis loses data in every way it can; tokens never come twice and never go backwards.

#include <algorithm>
#include <fenceguard/core/errors.hpp>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "redis/backend_fixture.hpp"
#include "redis/lease_backend.hpp"
#include "servers/relay.hpp"

namespace fenceguard::redis_tests {
namespace {

using test_servers::direction;
using test_servers::eventually;

// All tokens that were given out in a test.
class issued {
 public:
  void add(std::int64_t token) {
    INFO("token " << token);
    CHECK(all_.insert(token).second);
  }
  std::int64_t highest() const { return *all_.rbegin(); }
  // One that must also be above all before it.
  void add_rising(std::int64_t token) {
    if (!all_.empty()) CHECK(token > highest());
    add(token);
  }

 private:
  std::set<std::int64_t> all_;
};

void wait_for_copy(test_servers::redis_server const& replica, std::string const& key) {
  REQUIRE(eventually([&] { return replica.command({"EXISTS", key}).integer == 1; }));
}

// The release comes after the grant's token: a replica that is cut off in between keeps the lease.
void wait_for_end(test_servers::redis_server const& replica, std::string const& lease) {
  REQUIRE(eventually([&] { return replica.command({"EXISTS", lease}).integer == 0; }));
}

}  // namespace

TEST_CASE("FLUSHALL between two grants: the next token is higher") {
  test_servers::redis_server server;
  counted_tokens tokens;
  auto const store = open_backend(server.port(), tokens);
  issued seen;
  for (int i = 0; i < 3; ++i) {
    seen.add_rising(grant_token(*store, "account/1"));
    server.command({"FLUSHALL"});
  }
  seen.add_rising(grant_token(*store, "account/1"));
  CHECK(tokens.calls() == 4);
}

TEST_CASE("Redis restarted without persistence: the next call works and its token is higher") {
  test_servers::redis_server server;
  counted_tokens tokens;
  auto const store = open_backend(server.port(), tokens);
  issued seen;
  seen.add_rising(grant_token(*store, "account/1"));
  server.restart();
  seen.add_rising(grant_token(*store, "account/1"));
  server.restart(test_servers::redis_server::stop_mode::kill);
  seen.add_rising(grant_token(*store, "account/1"));
}

TEST_CASE("Redis restarted with what it had saved earlier: no token twice") {
  test_servers::redis_server server{{.arguments = {"--save", "3600 1000000"}}};
  counted_tokens tokens;
  auto const store = open_backend(server.port(), tokens);
  issued seen;
  seen.add_rising(pass(*store, "account/1"));
  REQUIRE(!server.command({"SAVE"}).is_error());
  for (int i = 0; i < 10; ++i) seen.add_rising(pass(*store, "account/1"));
  server.restart(test_servers::redis_server::stop_mode::kill);
  REQUIRE(server.command({"EXISTS", "fenceguard:{0}:tokens"}).integer == 1);
  for (int i = 0; i < 10; ++i) seen.add_rising(pass(*store, "account/1"));
}

TEST_CASE("a lagging replica is promoted: no token twice") {
  test_servers::redis_server primary;
  test_servers::redis_server replica;
  test_servers::relay link{primary.port()};
  replica.replica_of(primary, link.port());
  counted_tokens tokens;
  auto const at_primary = open_backend(primary.port(), tokens);
  issued seen;
  seen.add_rising(pass(*at_primary, "account/1"));
  wait_for_copy(replica, "fenceguard:{0}:tokens");
  wait_for_end(replica, "fenceguard:{0}:lease:account/1");

  link.swallow(direction::to_client);
  for (int i = 0; i < 20; ++i) seen.add_rising(pass(*at_primary, "account/1"));
  replica.promote();
  auto const at_replica = open_backend(replica.port(), tokens);
  for (int i = 0; i < 20; ++i) seen.add_rising(pass(*at_replica, "account/1"));
  // The old primary goes on for those who still reach it.
  for (int i = 0; i < 20; ++i) seen.add(pass(*at_primary, "account/1"));
}

TEST_CASE("demoted and promoted again with connections left open: no token twice") {
  test_servers::redis_server first;
  test_servers::redis_server second;
  counted_tokens tokens;
  auto const at_first = open_backend(first.port(), tokens);
  auto const at_second = open_backend(second.port(), tokens);
  issued seen;
  second.replica_of(first);
  seen.add_rising(pass(*at_first, "account/1"));
  wait_for_copy(second, "fenceguard:{0}:tokens");
  wait_for_end(second, "fenceguard:{0}:lease:account/1");

  second.promote();
  for (int i = 0; i < 5; ++i) seen.add_rising(pass(*at_second, "account/1"));
  test_servers::relay link{second.port()};
  first.replica_of(second, link.port());
  // Attaching its first replica has changed the identity of the second server.
  seen.add_rising(pass(*at_second, "account/1"));
  auto const next = second.command({"HGET", "fenceguard:{0}:tokens", "next"}).text;
  REQUIRE(eventually([&] {
    return first.command({"HGET", "fenceguard:{0}:tokens", "next"}).text == next;
  }));
  wait_for_end(first, "fenceguard:{0}:lease:account/1");

  link.swallow(direction::to_client);
  for (int i = 0; i < 20; ++i) seen.add_rising(pass(*at_second, "account/1"));
  first.promote();
  for (int i = 0; i < 20; ++i) seen.add_rising(pass(*at_first, "account/1"));
}

TEST_CASE("SCRIPT FLUSH between calls is no error") {
  test_servers::redis_server server;
  counted_tokens tokens;
  auto const store = open_backend(server.port(), tokens);
  auto const holder = new_holder();
  auto const flush = [&] { REQUIRE(!server.command({"SCRIPT", "FLUSH"}).is_error()); };
  for (int i = 0; i < 2; ++i) {
    flush();
    auto const token = token_of(acquire(*store, "account/1", holder));
    flush();
    CHECK(renew(*store, "account/1", holder).answer == backend::renew_answer::renewed);
    flush();
    CHECK(token_of(store->advance("account/1", holder, std::nullopt, in(5s))) > token);
    flush();
    CHECK(store->inspect("account/1", in(5s)).has_value());
    flush();
    CHECK(store->release("account/1", holder, in(5s)) == release_outcome::released);
  }
  CHECK(tokens.calls() == 1);
}

TEST_CASE("60 callers after FLUSHALL reserve one block, two at most") {
  test_servers::redis_server server;
  counted_tokens tokens;
  std::size_t count = 0;
  SUBCASE("in one store") { count = 1; }
  SUBCASE("in 60 stores") { count = 60; }
  std::vector<std::unique_ptr<backend>> stores;
  while (stores.size() < count) {
    stores.push_back(open_backend(server.port(), tokens));
    pass(*stores.back(), "warm-up");
  }
  server.command({"FLUSHALL"});
  auto const before = tokens.calls();
  std::mutex mutex;
  std::vector<backend::acquire_answer> answers;
  std::vector<std::thread> callers;
  for (std::size_t i = 0; i < 60; ++i) {
    callers.emplace_back([&, i] {
      auto answer =
          acquire(*stores[i % stores.size()], "account/" + std::to_string(i), new_holder());
      std::lock_guard const held{mutex};
      answers.push_back(std::move(answer));
    });
  }
  for (auto& caller : callers) caller.join();
  issued seen;
  for (auto const& answer : answers) seen.add(token_of(answer));
  CHECK(tokens.calls() - before >= 1);
  CHECK(tokens.calls() - before <= 2);
}

TEST_CASE("a block that was reserved for lost data is refused") {
  test_servers::redis_server server;
  counted_tokens slow{1'000};
  counted_tokens quick{1'000'000};
  counted_tokens third{2'000'000};
  event_log log;
  auto const old_store = open_backend(server.port(), slow, &log);
  auto const middle_store = open_backend(server.port(), quick);
  auto const new_store = open_backend(server.port(), third);

  slow.hold_up();
  backend::acquire_answer late_answer = backend::unknown{};
  std::thread late_caller{[&] { late_answer = acquire(*old_store, "account/1", new_holder()); }};
  REQUIRE(eventually([&] { return slow.waiting() == 1; }));
  server.command({"FLUSHALL"});
  auto const token = pass(*middle_store, "account/1");
  server.command({"FLUSHALL"});

  third.hold_up();
  backend::acquire_answer new_answer = backend::unknown{};
  std::thread new_caller{[&] { new_answer = acquire(*new_store, "account/1", new_holder()); }};
  REQUIRE(eventually([&] { return third.waiting() == 1; }));
  slow.go_on();
  CHECK(eventually([&] { return log.refused() + log.accepted() >= 1; }));
  CHECK(log.refused() == 1);
  CHECK(log.accepted() == 0);
  // The old store's caller is elected in time, or told of the new block; either way it is busy or
  // has a token above the one of before.
  slow.set_next(3'000'000);
  third.go_on();
  late_caller.join();
  new_caller.join();
  for (auto const* answer : {&late_answer, &new_answer}) {
    if (std::holds_alternative<backend::busy>(*answer)) continue;
    CHECK(token_of(*answer) > token);
  }
}

TEST_CASE("the first replica attaches while a block is on its way: the next block is taken") {
  test_servers::redis_server server;
  test_servers::redis_server replica;
  counted_tokens tokens;
  event_log log;
  auto const store = open_backend(server.port(), tokens, &log);
  tokens.hold_up();
  backend::acquire_answer answer = backend::unknown{};
  std::thread caller{[&] { answer = try_acquire(*store, "account/1", new_holder(), 30s, 60s); }};
  REQUIRE(eventually([&] { return tokens.waiting() == 1; }));
  replica.replica_of(server);
  tokens.go_on();
  caller.join();
  CHECK(token_of(answer) >= 2'000);
  CHECK(log.refused() == 1);
  CHECK(log.accepted() == 1);
}

}  // namespace fenceguard::redis_tests
