// Users with the rights that are documented, with one right less, and what the README says of them.

#include "redis/rights.hpp"

#include <atomic>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/redis/lease_store.hpp>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "redis/backend_fixture.hpp"

namespace fenceguard::redis_tests {

using redis::needed_rights;
using test_servers::eventually;
using test_servers::redis_server;

namespace {

std::vector<std::string> words_of(std::string const& text) {
  std::istringstream stream{text};
  std::vector<std::string> all;
  for (std::string word; stream >> word;) all.push_back(word);
  return all;
}

// The rules of these groups of rights, by number, for a store with the usual prefix.
std::vector<std::string> rules_of(std::vector<std::size_t> const& groups) {
  auto all = words_of("reset on >secret " + redis::needed_patterns("fenceguard"));
  for (auto const group : groups) {
    for (auto& word : words_of(std::string{needed_rights.at(group).rules})) {
      if (word != "+waitaof") all.push_back(std::move(word));  // Redis 7.2 and later know it
    }
  }
  return all;
}

void set_user(redis_server const& server, std::vector<std::string> const& rules) {
  std::vector<std::string> command{"ACL", "SETUSER", "app"};
  command.insert(command.end(), rules.begin(), rules.end());
  auto const said = server.command(command);
  INFO(said.text);
  REQUIRE_FALSE(said.is_error());
}

std::string url_of(redis_server const& server, std::string const& path = "") {
  return "redis://app:secret@127.0.0.1:" + std::to_string(server.port()) + path;
}

// The whole life of a lease, a handoff by message included. Whatever goes wrong, as one text.
std::string live(redis_server const& server, redis::replication_options const& copies = {},
                 std::string const& path = "") {
  std::string wrong;
  try {
    event_log log;
    counted_tokens tokens;
    redis::lease_store store{
        {.url = url_of(server, path), .replication = copies, .settings = {.observer = &log}},
        tokens};
    redis::lease_store other{{.url = url_of(server, path), .settings = {.observer = &log}}, tokens};
    auto held = store.acquire({.resource = "account/1", .ttl = 300ms});
    REQUIRE(held.has_value());
    if (!store.inspect("account/1")) wrong += " not to be seen;";
    held->advance();
    if (!eventually(
            [&] { return store.counters().renewed > 0 || held->lost().stop_requested(); })) {
      wrong += " not renewed;";
    }
    std::optional<lease> next;
    std::string why;
    std::atomic<bool> over{false};
    std::thread waiter{[&] {
      try {
        next = other.acquire({.resource = "account/1", .ttl = 1min, .wait = 5s});
      } catch (error const& failed) {
        why = failed.what();
      }
      over = true;
    }};
    CHECK(eventually([&] { return over || other.counters().attempts > 1; }));
    auto const outcome = held->release();
    waiter.join();
    wrong += why;
    if (outcome != release_outcome::released) wrong += " not released;";
    if (!next) wrong += " not handed over;";
    for (auto const& text : log.errors()) wrong += ' ' + text;
  } catch (error const& failed) {
    wrong += failed.what();
  }
  return wrong;
}

long long denied(redis_server const& server) {
  return static_cast<long long>(server.command({"ACL", "LOG"}).elements.size());
}

}  // namespace

TEST_CASE("the rights that are documented are enough") {
  redis_server server;
  SUBCASE("a lease and its handoff") {
    set_user(server, rules_of({0, 1, 2}));
    CHECK(live(server) == "");
  }
  SUBCASE("acknowledged by a replica") {
    redis_server replica;
    replica.replica_of(server);
    // Up to a second after the first copy the replica has not asked for what comes after it.
    REQUIRE_FALSE(server.command({"SET", "probe", "1"}).is_error());
    REQUIRE(eventually([&] { return replica.command({"GET", "probe"}).text == "1"; }));
    set_user(server, rules_of({0, 1, 2, 5}));
    CHECK(live(server, {.replicas_to_wait = 1, .timeout = 500ms}) == "");
  }
  SUBCASE("in another database") {
    set_user(server, rules_of({0, 1, 2, 6}));
    CHECK(live(server, {}, "/3") == "");
  }
  CHECK(denied(server) == 0);
  CHECK(server.command({"KEYS", "*"}).type == test_servers::redis_reply::kind::array);
}

TEST_CASE("each right of every lease is needed, and the error says which are") {
  redis_server server;
  for (auto const& right : words_of(std::string{needed_rights.front().rules})) {
    auto rules = rules_of({0, 1, 2});
    rules.push_back('-' + right.substr(1));
    set_user(server, rules);
    REQUIRE_FALSE(server.command({"FLUSHALL"}).is_error());
    REQUIRE_FALSE(server.command({"SCRIPT", "FLUSH"}).is_error());
    auto const wrong = live(server);
    INFO(right << ": " << wrong);
    CHECK(wrong.find(needed_rights.front().rules) != std::string::npos);
    CHECK(denied(server) > 0);
  }
}

TEST_CASE("keys of another prefix are refused by name of what is needed") {
  redis_server server;
  auto rules = rules_of({0, 1, 2});
  rules.push_back("resetkeys");
  rules.push_back("~other:*");
  set_user(server, rules);
  CHECK(live(server).find("~<prefix>:*") != std::string::npos);
}

TEST_CASE("without the right to hear of releases, waiters poll") {
  redis_server server;
  set_user(server, rules_of({0, 1}));
  counted_tokens tokens;
  event_log log;
  redis::lease_store store{{.url = url_of(server), .settings = {.observer = &log}}, tokens};
  redis::lease_store other{{.url = url_of(server)}, tokens};
  auto held = store.acquire({.resource = "account/1"});
  REQUIRE(held.has_value());
  std::optional<lease> next;
  std::thread waiter{
      [&] { next = store.acquire({.resource = "account/1", .ttl = 1min, .wait = 20s}); }};
  CHECK(eventually([&] { return log.errors().size() == 1; }));
  CHECK(log.errors().front().find("+subscribe") != std::string::npos);
  CHECK(held->release() == release_outcome::released);
  waiter.join();
  CHECK(next.has_value());
}

TEST_CASE("the README gives these rights") {
  std::ifstream file{FENCEGUARD_SOURCE_DIR "/README.md"};
  std::stringstream text;
  text << file.rdbuf();
  REQUIRE(text.str().size() > 1'000);
  for (auto const& some : needed_rights) {
    INFO(some.rules);
    CHECK(text.str().find("| `" + std::string{some.rules} + "` | " + std::string{some.needed_for} +
                          " | " + std::string{some.otherwise} + " |") != std::string::npos);
  }
  CHECK(text.str().find(redis::needed_patterns("fenceguard")) != std::string::npos);
}

}  // namespace fenceguard::redis_tests
