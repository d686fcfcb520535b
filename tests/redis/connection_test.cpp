#include "redis/connection.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <fenceguard/core/errors.hpp>
#include <string>
#include <thread>
#include <vector>

#include "redis/byte_server.hpp"
#include "servers/forked_child.hpp"
#include "servers/free_port.hpp"
#include "servers/redis_server.hpp"
#include "servers/wait.hpp"

using namespace fenceguard::redis;
using namespace std::chrono_literals;
using fenceguard::boottime;
using fenceguard::redis_tests::byte_server;
using fenceguard::test_servers::eventually;
using fenceguard::test_servers::redis_server;

namespace {

connection_options options_for(redis_server const& server, int database = 0) {
  return connection_options::from_url(parse_url(server.url(database)));
}

connection_options options_for_port(int port) {
  connection_options options;
  options.server = {"127.0.0.1", static_cast<std::uint16_t>(port), ""};
  return options;
}

result ping(connection& store, std::chrono::nanoseconds time = 10s) {
  return store.call(command{"PING"}, boottime::now() + time);
}

bool mentions(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("every kind of reply, binary safe") {
  redis_server server;
  connection store{options_for(server)};
  auto const call = [&](std::initializer_list<std::string_view> words) {
    auto outcome = store.call(command{words}, boottime::now() + 10s);
    REQUIRE(outcome.replied());
    CHECK(outcome.why == failure::none);
    return std::move(outcome.answer);
  };
  std::string_view const binary{"a\r\n$3\0\xff", 7};
  CHECK(call({"SET", "k", binary}).kind() == reply_kind::status);
  CHECK(call({"GET", "k"}).text() == binary);
  CHECK(call({"GET", "none"}).is_nil());
  CHECK(call({"STRLEN", "k"}).integer() == 7);
  CHECK(call({"SET", "n", "9007199254740993"}).text() == "OK");
  CHECK(call({"GET", "n"}).integer() == 9007199254740993);
  CHECK(call({"GET", "k"}).integer() == std::nullopt);
  CHECK(call({"SET", "empty", ""}).text() == "OK");
  CHECK(call({"GET", "empty"}).kind() == reply_kind::text);
  auto const error = call({"INCR", "k"});
  CHECK(error.is_error());
  CHECK(error.error_code() == "ERR");
  auto const array = call({"MGET", "k", "none"});
  REQUIRE(array.size() == 2);
  CHECK(array[0].text() == binary);
  CHECK(array[1].is_nil());
  CHECK(array[2].kind() == reply_kind::none);
  CHECK(array.text().empty());
  std::string const large(3'000'000, 'x');
  CHECK(call({"SET", "large", large}).text() == "OK");
  CHECK(call({"GET", "large"}).text() == large);
  CHECK_THROWS_AS((command{std::span<std::string_view const>{}}), fenceguard::invalid_request);
}

TEST_CASE("many commands in one call keep their order") {
  redis_server server;
  connection store{options_for(server)};
  std::vector<command> commands;
  for (int i = 0; i < 3000; ++i) commands.push_back(command{"ECHO", std::to_string(i)});
  for (auto order : {priority::normal, priority::urgent}) {
    auto const results = store.call_all(commands, boottime::now() + 10s, order);
    REQUIRE(results.size() == commands.size());
    int right = 0;
    for (int i = 0; i < 3000; ++i) {
      right += results[static_cast<std::size_t>(i)].answer.integer() == i ? 1 : 0;
    }
    CHECK(right == 3000);
  }
  CHECK(store.call_all({}, boottime::now() + 10s).empty());
  auto const counters = store.counters();
  CHECK(counters.commands == 6000);
  CHECK(counters.batches < 100);
  CHECK(counters.connects == 1);
}

TEST_CASE("login: password, ACL user, database, Unix socket") {
  redis_server server{{.password = "s3cr3t"}};
  connection store{options_for(server, 5)};
  REQUIRE(ping(store).replied());
  CHECK(store.call(command{"SET", "here", "1"}, boottime::now() + 10s).answer.text() == "OK");
  connection elsewhere{options_for(server)};
  CHECK(elsewhere.call(command{"EXISTS", "here"}, boottime::now() + 10s).answer.integer() == 0);
  server.command({"ACL", "SETUSER", "alice", "on", ">wonder", "~*", "+@all"});
  auto options = options_for(server, 5);
  options.login = {"alice", "wonder"};
  connection named{options};
  CHECK(named.call(command{"ACL", "WHOAMI"}, boottime::now() + 10s).answer.text() == "alice");
  CHECK(named.call(command{"EXISTS", "here"}, boottime::now() + 10s).answer.integer() == 1);
  auto over_unix =
      connection_options::from_url(parse_url(server.url_unix() + "?password=s3cr3t&db=5"));
  connection local{over_unix};
  CHECK(local.call(command{"EXISTS", "here"}, boottime::now() + 10s).answer.integer() == 1);
}

TEST_CASE("localhost by name") {
  redis_server server;
  auto options = options_for(server);
  options.server.host = "localhost";
  connection store{options};
  CHECK(ping(store).replied());
}

TEST_CASE("a wrong password is reported with the server's text and without the password") {
  redis_server server{{.password = "right"}};
  auto options = options_for(server);
  options.login.password = "s3cr3t";
  connection store{options};
  for (int i = 0; i < 2; ++i) {
    auto const outcome = ping(store);
    CHECK(outcome.outcome == fate::not_sent);
    CHECK(outcome.why == failure::refused);
    CHECK(mentions(outcome.error, "WRONGPASS"));
    CHECK(mentions(outcome.error, "AUTH"));
    CHECK_FALSE(mentions(outcome.error, "s3cr3t"));
  }
  CHECK(store.counters().connects == 0);
  // One attempt for each call: an account must not be locked by retries that nobody asked for.
  auto const log = server.command({"ACL", "LOG"});
  REQUIRE(log.elements.size() == 1);
  CHECK(log.elements[0].elements[1].integer == 2);
}

TEST_CASE("a server that quotes what it refuses does not make the password public") {
  byte_server server{[](int descriptor) {
    byte_server::hear(descriptor);
    byte_server::say(descriptor, "-ERR unknown command 'AUTH', with args: 's3cr3t' 's3cr3t'\r\n");
    byte_server::hear(descriptor);
  }};
  auto options = options_for_port(server.port());
  options.login.password = "s3cr3t";
  connection store{options};
  auto const outcome = ping(store);
  CHECK(outcome.why == failure::refused);
  CHECK(mentions(outcome.error, "unknown command"));
  CHECK_FALSE(mentions(outcome.error, "s3cr3t"));
}

TEST_CASE("a database that does not exist") {
  redis_server server;
  connection store{options_for(server, 4711)};
  auto const outcome = ping(store);
  CHECK(outcome.outcome == fate::not_sent);
  CHECK(outcome.why == failure::refused);
  CHECK(mentions(outcome.error, "SELECT"));
}

TEST_CASE("nobody listens, unknown host") {
  connection store{options_for_port(fenceguard::test_servers::free_port())};
  auto const start = boottime::now();
  auto const outcome = ping(store, 5s);
  CHECK(outcome.outcome == fate::not_sent);
  CHECK(outcome.why == failure::unreachable);
  CHECK(mentions(outcome.error, "refused"));
  CHECK(boottime::now() - start < 2s);

  auto options = options_for_port(6379);
  options.server.host = "no-such-host.invalid";
  connection nowhere{options};
  auto const begun = boottime::now();
  auto const unknown = ping(nowhere, 300ms);
  CHECK(unknown.outcome == fate::not_sent);
  CHECK(unknown.why == failure::unreachable);
  CHECK(mentions(unknown.error, "no-such-host.invalid"));
  CHECK(boottime::now() - begun < 1s);
}

TEST_CASE("options that cannot be served are refused at construction") {
  auto const refuse = [](auto change) {
    auto options = options_for_port(6379);
    change(options);
    CHECK_THROWS_AS(connection{options}, fenceguard::invalid_request);
  };
  refuse([](auto& o) { o.connect_timeout = 0ms; });
  refuse([](auto& o) { o.silence_limit = -1ms; });
  refuse([](auto& o) { o.longest_batch = 0; });
  refuse([](auto& o) { o.database = -1; });
  CHECK_THROWS_AS(static_cast<void>(connection_options::from_url(parse_url("redis+cluster://a"))),
                  fenceguard::invalid_request);
}

TEST_CASE("a deadline that has passed sends nothing") {
  redis_server server;
  connection store{options_for(server)};
  auto const outcome = store.call(command{"SET", "k", "v"}, boottime::now() - 1ms);
  CHECK(outcome.outcome == fate::not_sent);
  CHECK(outcome.why == failure::deadline);
  CHECK_FALSE(outcome.error.empty());
  CHECK(server.command({"EXISTS", "k"}).integer == 0);
}

TEST_CASE("urgent commands overtake what has not been sent") {
  redis_server server;
  auto options = options_for(server);
  options.silence_limit = 30s;
  connection store{options};
  REQUIRE(ping(store).replied());
  server.pause();
  std::vector<std::thread> callers;
  auto const push = [&](char const* value, priority order) {
    callers.emplace_back([&store, value, order] {
      CHECK(store.call(command{"RPUSH", "list", value}, boottime::now() + 30s, order).replied());
    });
  };
  push("first", priority::normal);  // on its way: the batch is closed
  REQUIRE(eventually([&] { return store.counters().commands == 2; }));
  push("late", priority::normal);
  std::this_thread::sleep_for(50ms);  // lets it queue up; where it has not, the order holds anyway
  push("urgent", priority::urgent);
  std::this_thread::sleep_for(50ms);
  server.resume();
  for (auto& one : callers) one.join();
  auto const list = server.command({"LRANGE", "list", "0", "-1"});
  REQUIRE(list.elements.size() == 3);
  CHECK(list.elements[0].text == "first");
  CHECK(list.elements[1].text == "urgent");
  CHECK(list.elements[2].text == "late");
}

TEST_CASE("shutdown() ends a call that waits, and every later one") {
  redis_server server;
  auto options = options_for(server);
  options.silence_limit = 60s;
  connection store{options};
  REQUIRE(ping(store).replied());
  server.pause();
  std::vector<result> results(3);
  std::vector<std::thread> callers;
  for (std::size_t i = 0; i < results.size(); ++i) {
    callers.emplace_back([&, i] { results[i] = ping(store, 60s); });
    if (i == 0) REQUIRE(eventually([&] { return store.counters().commands == 2; }));
  }
  auto const start = boottime::now();
  store.shutdown();
  for (auto& one : callers) one.join();
  CHECK(boottime::now() - start < 2s);
  server.resume();
  CHECK(results[0].outcome == fate::unknown);
  for (auto const& one : results) {
    CHECK_FALSE(one.replied());
    CHECK(one.why == failure::closed);
    CHECK(mentions(one.error, "shut down"));
  }
  CHECK(results[1].outcome == fate::not_sent);
  CHECK(results[2].outcome == fate::not_sent);
  CHECK(ping(store).why == failure::closed);
  store.shutdown();
}

TEST_CASE("shutdown() ends a login that hangs") {
  byte_server server{[](int descriptor) {
    while (!byte_server::hear(descriptor).empty()) {
    }
  }};
  auto options = options_for_port(server.port());
  options.login.password = "x";
  options.connect_timeout = 60s;
  connection store{options};
  result outcome;
  std::thread caller{[&] { outcome = ping(store, 60s); }};
  std::this_thread::sleep_for(50ms);  // into the login, most likely; the test holds before it too
  auto const start = boottime::now();
  store.shutdown();
  caller.join();
  CHECK(boottime::now() - start < 2s);
  CHECK(outcome.outcome == fate::not_sent);
  CHECK(outcome.why == failure::closed);
}

TEST_CASE("a forked child gets a clear error and the parent goes on") {
  redis_server server;
  connection store{options_for(server)};
  REQUIRE(ping(store).replied());
  server.pause();  // a call under way, so that lock, role and stream are in use at fork()
  std::thread caller{[&] { CHECK(ping(store, 30s).replied()); }};
  REQUIRE(eventually([&] { return store.counters().commands == 2; }));
  CHECK(fenceguard::test_servers::status_of_child([&] {
          auto const outcome = ping(store);
          store.shutdown();
          bool const right = outcome.outcome == fate::not_sent && outcome.why == failure::forked &&
                             mentions(outcome.error, "parent process") &&
                             store.counters().commands == 0;
          store.~connection();
          return right;
        }) == 0);
  server.resume();
  caller.join();
  CHECK(ping(store).replied());
  CHECK(store.counters().connects == 1);
}
