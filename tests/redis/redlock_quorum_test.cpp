// What a quorum answers while servers are dead, hung, slow, replicas, or without their data.

#include <fenceguard/core/errors.hpp>
#include <string>

#include "redis/redlock_fixture.hpp"

namespace fenceguard::redis_tests {

using test_servers::direction;
using test_servers::eventually;
using renewed = backend::renew_answer;

TEST_CASE("a grant is held by all servers that answer, and released by all") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens);
  auto const other = servers.open(tokens);
  auto const holder = new_holder();
  auto const token = token_of(try_acquire(*store, "account/1", holder));
  CHECK(eventually([&] { return servers.copies("account/1") == 5; }));
  auto const info = other->inspect("account/1", in(5s));
  REQUIRE(info.has_value());
  CHECK(info->holder == holder);
  CHECK(info->token == fencing_token{token});
  CHECK(info->label == "a test");
  CHECK(info->remaining > 20s);

  auto const busy = try_acquire(*other, "account/1", new_holder());
  REQUIRE(std::holds_alternative<backend::busy>(busy));
  CHECK(std::get<backend::busy>(busy).remaining > 20s);
  CHECK(renew(*store, "account/1", holder).answer == renewed::renewed);

  CHECK(store->release("account/1", holder, in(5s)) == release_outcome::released);
  CHECK(eventually([&] { return servers.copies("account/1") == 0; }));
  CHECK(store->release("account/1", holder, in(5s)) == release_outcome::already_lost);
  CHECK(!other->inspect("account/1", in(5s)).has_value());
  CHECK(token_of(try_acquire(*other, "account/1", new_holder())) > token);
}

TEST_CASE("one dead server that breaks the quorum: one dead and one hung cost nobody any time") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens, {.command_timeout = 20s});
  bool already_known = false;
  SUBCASE("from the first call on") {}
  SUBCASE("after the store has used them") { already_known = true; }
  if (already_known) {
    auto const holder = new_holder();
    token_of(try_acquire(*store, "account/0", holder));
    REQUIRE(store->release("account/0", holder, in(5s)) == release_outcome::released);
  }
  servers.kill(1);
  servers.server(3).pause();
  auto const took = time_of([&] {
    for (int i = 1; i <= 5; ++i) {
      auto const name = "account/" + std::to_string(i);
      auto const holder = new_holder();
      auto const token = token_of(try_acquire(*store, name, holder, 60s, 20s));
      CHECK(renew(*store, name, holder, 60s, 20s).answer == renewed::renewed);
      CHECK(token_of(store->advance(name, holder, fencing_token{token}, in(20s))) > token);
      auto const info = store->inspect(name, in(20s));
      REQUIRE(info.has_value());
      CHECK(info->holder == holder);
      CHECK(
          std::holds_alternative<backend::busy>(try_acquire(*store, name, new_holder(), 60s, 20s)));
      CHECK(store->release(name, holder, in(20s)) == release_outcome::released);
      CHECK(!store->inspect(name, in(20s)).has_value());
    }
  });
  CHECK(took < 10s);
  servers.server(3).resume();
}

TEST_CASE("a server that does not answer is waited for once, and not again for a split vote") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens, {.command_timeout = 300ms});
  servers.server(0).pause();
  servers.server(1).pause();
  servers.put(2, "account/1", new_holder());
  auto const ask = [&] {
    auto const answer = try_acquire(*store, "account/1", new_holder(), 60s, 300ms);
    INFO(describe(answer));
    CHECK(std::holds_alternative<backend::busy>(answer));
  };
  static_cast<void>(time_of(ask));  // finds out that two do not answer
  auto const second = time_of([&] {
    for (int i = 0; i < 5; ++i) ask();
  });
  CHECK(second < 5 * 300ms);
  servers.server(0).resume();
  servers.server(1).resume();
  CHECK(eventually([&] { return servers.copies("account/1") == 1; }));
  // They take part again.
  CHECK(eventually([&] {
    auto const name = new_holder();
    token_of(try_acquire(*store, name, name));
    return servers.copies(name) == 5;
  }));
}

TEST_CASE("no majority: what is known is said, and nothing is left") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens);
  for (std::size_t i : {0U, 1U, 2U}) servers.kill(i);
  auto const reason = reason_of(try_acquire(*store, "account/1", new_holder()));
  CHECK(reason.find("a majority has 3") != std::string::npos);
  for (std::size_t i : {0U, 1U, 2U}) {
    auto const name = "127.0.0.1:" + std::to_string(servers.server(i).port());
    CHECK(reason.find(name + ": Connection refused") != std::string::npos);
  }
  CHECK(eventually([&] { return servers.copies("account/1") == 0; }));
  CHECK_THROWS_AS(static_cast<void>(store->inspect("account/1", in(5s))), lease_store_unavailable);
  auto const advanced = store->advance("account/1", new_holder(), std::nullopt, in(5s));
  CHECK(std::holds_alternative<backend::unknown>(advanced));
  CHECK(renew(*store, "account/1", new_holder()).answer == renewed::unknown);
  CHECK(store->release("account/1", new_holder(), in(5s)) == release_outcome::unknown);
}

TEST_CASE("renewal that re-acquires: a server without its data does not get the lease back") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens);
  auto const holder = new_holder();
  token_of(try_acquire(*store, "account/1", holder));
  REQUIRE(eventually([&] { return servers.copies("account/1") == 5; }));
  auto const before = boottime::now();
  servers.server(0).restart();
  servers.server(1).restart();
  REQUIRE(eventually([&] {
    auto const item = renew(*store, "account/1", holder);
    return item.answer == renewed::renewed && item.sent_at >= before && item.validity == 30s;
  }));
  CHECK(servers.copies("account/1") == 3);

  SUBCASE("a third one denies it: no majority can be had any more") {
    REQUIRE(servers.drop(2, "account/1"));
    CHECK(renew(*store, "account/1", holder).answer == renewed::lost);
    CHECK(servers.copies("account/1") == 2);
    CHECK(store->release("account/1", holder, in(5s)) == release_outcome::already_lost);
    CHECK(eventually([&] { return servers.copies("account/1") == 0; }));
  }
  SUBCASE("a third one hangs: nobody knows") {
    servers.server(2).pause();
    CHECK(renew(*store, "account/1", holder, 30s, 200ms).answer == renewed::unknown);
    servers.server(2).resume();
    CHECK(
        eventually([&] { return renew(*store, "account/1", holder).answer == renewed::renewed; }));
  }
  SUBCASE("extension of a lease owned by someone else") {
    auto const newer = new_holder();
    for (std::size_t i = 0; i < 5; ++i) servers.put(i, "account/1", newer, 10s);
    CHECK(renew(*store, "account/1", holder, 1h).answer == renewed::lost);
    for (std::size_t i = 0; i < 5; ++i) {
      auto const left = servers.server(i).command({"PTTL", quorum::key("account/1")});
      CHECK(left.integer <= 10'000);
    }
  }
}

TEST_CASE("renewals of many leases: each has its own majority") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens);
  std::vector<std::string> names;
  std::vector<std::string> holders;
  for (int i = 0; i < 50; ++i) {
    names.push_back("account/" + std::to_string(i));
    holders.push_back(new_holder());
    token_of(try_acquire(*store, names.back(), holders.back()));
    REQUIRE(eventually([&] { return servers.copies(names.back()) == 5; }));
  }
  for (std::size_t i : {0U, 2U, 4U}) REQUIRE(servers.drop(i, names[7]));
  for (std::size_t i : {1U, 3U}) REQUIRE(servers.drop(i, names[8]));
  std::vector<backend::renew_item> batch;
  for (std::size_t i = 0; i < names.size(); ++i) {
    batch.push_back({.resource = names[i], .holder = holders[i], .ttl = 60s});
  }
  auto const before = boottime::now();
  store->renew(batch, in(5s));
  for (std::size_t i = 0; i < batch.size(); ++i) {
    INFO("lease " << i);
    CHECK(batch[i].answer == (i == 7 ? renewed::lost : renewed::renewed));
    CHECK(batch[i].sent_at >= before);
    CHECK(batch[i].validity == 60s);
  }
}

TEST_CASE("advance: a fresh token while a majority holds") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens);
  auto const holder = new_holder();
  auto const first = token_of(try_acquire(*store, "account/1", holder));
  REQUIRE(eventually([&] { return servers.copies("account/1") == 5; }));
  servers.kill(0);
  REQUIRE(servers.drop(1, "account/1"));
  auto const second = token_of(store->advance("account/1", holder, std::nullopt, in(5s)));
  CHECK(second > first);

  // Three servers have seen a higher token of the same grant.
  for (std::size_t i : {2U, 3U, 4U}) {
    auto const value = holder + " 9000000 1700000000000000 a test";
    REQUIRE(!servers.server(i).command({"SET", quorum::key("account/1"), value}).is_error());
  }
  auto const overtaken = store->advance("account/1", holder, std::nullopt, in(5s));
  INFO(describe(overtaken));
  REQUIRE(std::holds_alternative<backend::not_applied>(overtaken));
  CHECK(std::get<backend::not_applied>(overtaken).reason.find("another advance") !=
        std::string::npos);

  CHECK_THROWS_AS(
      static_cast<void>(store->advance("account/1", holder, fencing_token{9'000'000}, in(5s))),
      token_source_unavailable);
  REQUIRE(servers.drop(2, "account/1"));
  REQUIRE(servers.drop(3, "account/1"));
  CHECK(std::holds_alternative<backend::lost>(
      store->advance("account/1", holder, std::nullopt, in(5s))));
}

TEST_CASE("a replica has no vote") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens);
  servers.server(1).replica_of(servers.server(0));
  auto const holder = new_holder();
  token_of(try_acquire(*store, "account/1", holder));
  CHECK(renew(*store, "account/1", holder).answer == renewed::renewed);
  CHECK(store->release("account/1", holder, in(5s)) == release_outcome::released);
  servers.server(2).replica_of(servers.server(0));
  servers.server(3).replica_of(servers.server(0));
  auto const reason = reason_of(try_acquire(*store, "account/1", new_holder()));
  CHECK(reason.find("is a replica") != std::string::npos);
  CHECK(eventually([&] { return servers.copies("account/1") == 0; }));
}

TEST_CASE("a user without INFO, and a password that is wrong") {
  quorum servers;
  counted_tokens tokens;
  for (std::size_t i = 0; i < 5; ++i) {
    auto const said = servers.server(i).command(
        {"ACL", "SETUSER", "worker", "on", i == 4 ? ">another" : ">secret", "resetkeys",
         "~fenceguard:*", "-@all", "+evalsha", "+eval", "+get", "+set", "+del", "+hdel", "+pttl",
         "+pexpire", "+time"});
    REQUIRE(!said.is_error());
  }
  auto const store = servers.open(tokens, {.user = "worker", .password = "secret"});
  auto const holder = new_holder();
  auto const token = token_of(try_acquire(*store, "account/1", holder));
  CHECK(eventually([&] { return servers.copies("account/1") == 4; }));
  CHECK(renew(*store, "account/1", holder).answer == renewed::renewed);
  CHECK(token_of(store->advance("account/1", holder, std::nullopt, in(5s))) > token);
  CHECK(store->release("account/1", holder, in(5s)) == release_outcome::released);

  auto const stranger = servers.open(tokens, {.user = "worker", .password = "guessed"});
  try {
    static_cast<void>(try_acquire(*stranger, "account/1", new_holder()));
    FAIL("a wrong password must be told");
  } catch (invalid_request const& told) {
    std::string const message = told.what();
    CHECK(message.find("WRONGPASS") != std::string::npos);
    CHECK(message.find("guessed") == std::string::npos);
  }
}

TEST_CASE("NOSCRIPT: servers that have forgotten the scripts are taught again") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens);
  for (int i = 0; i < 5; ++i) {
    for (std::size_t s = 0; s < 5; ++s) {
      REQUIRE(!servers.server(s).command({"SCRIPT", "FLUSH"}).is_error());
    }
    auto const holder = new_holder();
    token_of(try_acquire(*store, "account/1", holder));
    CHECK(store->release("account/1", holder, in(5s)) == release_outcome::released);
    CHECK(eventually([&] { return servers.copies("account/1") == 0; }));
  }
}

}  // namespace fenceguard::redis_tests
