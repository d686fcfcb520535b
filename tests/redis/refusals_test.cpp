// Servers that refuse: what surely had no effect is told apart from what may have had one.

#include <fenceguard/core/errors.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "redis/backend_fixture.hpp"
#include "redis/lease_backend.hpp"
#include "redis/server_error.hpp"
#include "redis/server_version.hpp"
#include "servers/temporary_directory.hpp"

namespace fenceguard::redis_tests {
namespace {

using test_servers::eventually;

std::string reason_of(backend::acquire_answer const& answer) {
  INFO(describe(answer));
  REQUIRE(std::holds_alternative<backend::not_applied>(answer));
  return std::get<backend::not_applied>(answer).reason;
}

bool has(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

std::string message_of_invalid(backend& store) {
  try {
    auto const answer = try_acquire(store, "account/1", new_holder());
    FAIL("no exception, but: " << describe(answer));
  } catch (invalid_request const& refused) {
    return refused.what();
  }
  return {};
}

redis::refusal judge_reply(std::string const& error) {
  redis::reply_parser parser;
  auto const wire = "-" + error + "\r\n";
  parser.feed(wire.data(), wire.size());
  redis::result one;
  one.outcome = redis::fate::replied;
  REQUIRE(parser.parse(one.answer) == redis::reply_parser::state::complete);
  return redis::judge(one, "acquire").kind;
}

}  // namespace

TEST_CASE("a refusal surely not applied") {
  test_servers::redis_server server{{.arguments = {"--enable-protected-configs", "local"}}};
  counted_tokens tokens;
  auto const store = open_backend(server.port(), tokens);
  auto const holder = new_holder();
  token_of(acquire(*store, "held", holder));
  auto const set = [&](std::string const& name, std::string const& value) {
    REQUIRE(!server.command({"CONFIG", "SET", name, value}).is_error());
  };
  std::string code;

  SUBCASE("OOM") {
    code = "OOM";
    set("maxmemory", "1");
  }
  SUBCASE("NOREPLICAS") {
    code = "NOREPLICAS";
    set("min-replicas-to-write", "1");
  }
  SUBCASE("MISCONF") {
    code = "MISCONF";
    test_servers::temporary_directory gone;
    set("save", "3600 1000000");
    set("dir", gone.path().string());
    std::filesystem::remove_all(gone.path());
    server.command({"BGSAVE"});
    REQUIRE(
        eventually([&] { return server.info("persistence", "rdb_last_bgsave_status") == "err"; }));
  }

  auto const reason = reason_of(try_acquire(*store, "account/1", new_holder()));
  INFO(reason);
  CHECK(has(reason, code));
  CHECK(server.command({"EXISTS", "fenceguard:{0}:lease:account/1"}).integer == 0);
  auto const advanced = store->advance("held", holder, std::nullopt, in(5s));
  CHECK(std::holds_alternative<backend::not_applied>(advanced));
  if (code == "OOM") {  // does not touch what frees or keeps
    CHECK(renew(*store, "held", holder).answer == backend::renew_answer::renewed);
    CHECK(store->release("held", holder, in(5s)) == release_outcome::released);
    return;
  }
  CHECK(renew(*store, "held", holder).answer == backend::renew_answer::unknown);
  CHECK(store->release("held", holder, in(5s)) == release_outcome::unknown);
  CHECK(server.command({"EXISTS", "fenceguard:{0}:lease:held"}).integer == 1);
}

TEST_CASE("a replica gives, renews and denies nothing") {
  test_servers::redis_server primary;
  test_servers::redis_server replica;
  counted_tokens tokens;
  auto const at_primary = open_backend(primary.port(), tokens);
  auto const holder = new_holder();
  token_of(acquire(*at_primary, "held", holder));
  replica.replica_of(primary);
  REQUIRE(eventually([&] {
    return replica.command({"EXISTS", "fenceguard:{0}:lease:held"}).integer == 1;
  }));
  auto const before = tokens.calls();
  bool numbered = false;

  SUBCASE("read-only") {}
  SUBCASE("that takes writes") {
    REQUIRE(!replica.command({"CONFIG", "SET", "replica-read-only", "no"}).is_error());
  }
  SUBCASE("that takes writes, when every grant is numbered by itself") {
    REQUIRE(!replica.command({"CONFIG", "SET", "replica-read-only", "no"}).is_error());
    numbered = true;
  }

  auto const store = open_backend(replica.port(), tokens, nullptr, {.number_each_grant = numbered});
  CHECK(has(reason_of(try_acquire(*store, "account/1", new_holder())), "replica"));
  CHECK(has(reason_of(try_acquire(*store, "held", new_holder())), "replica"));
  CHECK(renew(*store, "held", holder).answer == backend::renew_answer::unknown);
  CHECK(renew(*store, "account/1", holder).answer == backend::renew_answer::unknown);
  CHECK(store->release("account/1", holder, in(5s)) == release_outcome::unknown);
  auto const advanced = store->advance("held", holder, std::nullopt, in(5s));
  CHECK(std::holds_alternative<backend::not_applied>(advanced));
  CHECK_THROWS_AS(static_cast<void>(store->inspect("account/1", in(5s))), lease_store_unavailable);
  CHECK(replica.command({"EXISTS", "fenceguard:{0}:lease:account/1"}).integer == 0);
  if (!numbered) CHECK(tokens.calls() == before);
}

TEST_CASE("users with few rights") {
  test_servers::redis_server server;
  counted_tokens tokens;
  std::vector<std::string> rules{"ACL",      "SETUSER",       "app",      "reset",    "on",
                                 ">secret",  "~fenceguard:*", "+eval",    "+evalsha", "+get",
                                 "+set",     "+del",          "+hdel",    "+hmget",   "+hset",
                                 "+hincrby", "+pttl",         "+pexpire", "+time"};
  auto const set_user = [&] { REQUIRE(!server.command(rules).is_error()); };
  backend_settings const login{.user = "app", .password = "secret"};

  SUBCASE("the least that blocks of tokens need") {
    rules.push_back("+info");
    set_user();
    event_log log;
    auto const store = open_backend(server.port(), tokens, &log, login);
    auto const holder = new_holder();
    auto const first = token_of(acquire(*store, "account/1", holder));
    CHECK(token_of(store->advance("account/1", holder, std::nullopt, in(5s))) == first + 1);
    CHECK(renew(*store, "account/1", holder).answer == backend::renew_answer::renewed);
    CHECK(renew(*store, "account/2", holder).answer == backend::renew_answer::lost);
    CHECK(store->inspect("account/1", in(5s)).has_value());
    CHECK(store->release("account/1", holder, in(5s)) == release_outcome::released);
    CHECK(store->release("account/1", holder, in(5s)) == release_outcome::already_lost);
    CHECK(log.accepted() == 1);
  }
  SUBCASE("INFO denied: each grant is numbered by a reservation of its own") {
    set_user();
    event_log log;
    auto const store = open_backend(server.port(), tokens, &log, login);
    std::int64_t last = 0;
    for (int i = 0; i < 5; ++i) {
      auto const holder = new_holder();
      auto const token = token_of(acquire(*store, "account/1", holder));
      CHECK(token > last);
      last = token_of(store->advance("account/1", holder, std::nullopt, in(5s)));
      CHECK(last > token);
      CHECK(renew(*store, "account/1", holder).answer == backend::renew_answer::renewed);
      CHECK(renew(*store, "account/2", holder).answer == backend::renew_answer::lost);
      CHECK(store->release("account/2", holder, in(5s)) == release_outcome::already_lost);
      CHECK(store->inspect("account/1", in(5s))->token->value() == last);
      CHECK(store->release("account/1", holder, in(5s)) == release_outcome::released);
    }
    CHECK(tokens.calls() == 10);
    CHECK(log.needed() == 0);
  }
  SUBCASE("INFO denied at a read-only replica: it denies nothing") {
    test_servers::redis_server primary;
    set_user();
    server.replica_of(primary);
    auto const store = open_backend(server.port(), tokens, nullptr, login);
    CHECK(has(reason_of(try_acquire(*store, "account/1", new_holder())), "READONLY"));
    CHECK(renew(*store, "account/1", new_holder()).answer == backend::renew_answer::unknown);
    CHECK(store->release("account/1", new_holder(), in(5s)) == release_outcome::unknown);
  }
  SUBCASE("a missing right is named") {
    rules.push_back("+info");
    rules.push_back("-hincrby");
    set_user();
    auto const store = open_backend(server.port(), tokens, nullptr, login);
    auto const message = message_of_invalid(*store);
    INFO(message);
    CHECK(has(message, "+hincrby"));
    CHECK(server.command({"EXISTS", "fenceguard:{0}:lease:account/1"}).integer == 0);
  }
  SUBCASE("keys of another prefix only") {
    rules.push_back("+info");
    rules[6] = "~other:*";
    set_user();
    auto const store = open_backend(server.port(), tokens, nullptr, login);
    CHECK(has(message_of_invalid(*store), "prefix"));
  }
  SUBCASE("a wrong password is said, but not shown") {
    set_user();
    auto const store =
        open_backend(server.port(), tokens, nullptr, {.user = "app", .password = "not-the-secret"});
    auto const message = message_of_invalid(*store);
    INFO(message);
    CHECK(has(message, "WRONGPASS"));
    CHECK(!has(message, "not-the-secret"));
  }
}

TEST_CASE("a server that wants a password and is given none") {
  test_servers::redis_server server{{.password = "secret"}};
  counted_tokens tokens;
  auto const store = open_backend(server.port(), tokens);
  CHECK(has(message_of_invalid(*store), "the URL has no password"));
}

TEST_CASE("no server") {
  int port = 0;
  {
    test_servers::redis_server server;
    port = server.port();
  }
  counted_tokens tokens;
  auto const store = open_backend(port, tokens);
  CHECK(has(reason_of(try_acquire(*store, "account/1", new_holder())), "127.0.0.1"));
  CHECK(store->release("account/1", new_holder(), in(1s)) == release_outcome::unknown);
  CHECK_THROWS_AS(static_cast<void>(store->inspect("account/1", in(1s))), lease_store_unavailable);
  CHECK(tokens.calls() == 0);
}

TEST_CASE("error replies, as Redis 6.2 and 7 write them") {
  using redis::refusal;
  CHECK(judge_reply("LOADING Redis is loading the dataset in memory") == refusal::not_applied);
  CHECK(judge_reply("BUSY Redis is busy running a script.") == refusal::not_applied);
  CHECK(judge_reply("OOM command not allowed when used memory > 'maxmemory'. script: 1, on "
                    "@user_script:27.") == refusal::not_applied);
  CHECK(judge_reply("ERR Error running script (call to f_1): @user_script:27: @user_script: 27: "
                    "-OOM command not allowed when used memory > 'maxmemory'.") ==
        refusal::not_applied);
  CHECK(judge_reply("ERR Error running script (call to f_1): @user_script:3: @user_script: 3: "
                    "-READONLY You can't write against a read only replica.") ==
        refusal::not_applied);
  CHECK(judge_reply("ERR Error running script (call to f_1): @user_script:3: The user executing "
                    "the script can't run this command or subcommand") == refusal::misconfigured);
  CHECK(judge_reply("WRONGPASS invalid username-password pair") == refusal::misconfigured);
  CHECK(judge_reply("ERR upstream failure") == refusal::unknown);
}

TEST_CASE("versions before 6.2 are too old") {
  CHECK(redis::is_too_old("2.8.24"));
  CHECK(redis::is_too_old("5.0.14"));
  CHECK(redis::is_too_old("6.0.16"));
  CHECK(!redis::is_too_old("6.2.0"));
  CHECK(!redis::is_too_old("7.0.15"));
  CHECK(!redis::is_too_old("10.0.0"));
  CHECK(!redis::is_too_old(""));
  CHECK(!redis::is_too_old("unstable"));
  test_servers::redis_server server;
  redis::connection connection{redis::connection_options::from_url(redis::parse_url(server.url()))};
  auto const version =
      redis::ask_version([&](redis::command const& what) { return connection.call(what, in(5s)); });
  CHECK(version.answered);
  CHECK(!version.too_old);
  CHECK(version.text == server.info("server", "redis_version"));
}

}  // namespace fenceguard::redis_tests
