#include "redis/tls.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/redis/lease_store.hpp>
#include <fenceguard/redis/redlock_store.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "redis/byte_server.hpp"
#include "redis/connection.hpp"
#include "servers/certificates.hpp"
#include "servers/redis_cluster.hpp"
#include "servers/redis_sentinels.hpp"
#include "servers/redis_server.hpp"
#include "servers/relay.hpp"
#include "servers/wait.hpp"

namespace fenceguard::redis_tests {

using namespace std::chrono_literals;
using redis::command;
using redis::connection;
using redis::connection_options;
using redis::fate;
using redis::parse_url;
using test_servers::certificates;
using test_servers::direction;
using test_servers::eventually;
using test_servers::redis_server;
using test_servers::relay;

namespace {

constexpr char const* here = "IP:127.0.0.1,DNS:localhost";

redis_server encrypted_server(certificates& by, std::string const& names = here, int days = 2) {
  return redis_server{{.encrypted = redis_server::tls{by.issue(names, days), by.authority()}}};
}

// A URL as the server's, for another port or with further parameters.
std::string url_at(int port, std::string const& parameters) {
  return "rediss://127.0.0.1:" + std::to_string(port) + "/0?" + parameters;
}

connection_options options_of(std::string const& url) {
  return connection_options::from_url(parse_url(url));
}

redis::result ping(connection& to, std::chrono::milliseconds time = 10s) {
  return to.call(command{"PING"}, boottime::now() + time);
}

// Why a connection by that URL comes to nothing.
std::string refusal(std::string const& url) {
  connection made{options_of(url)};
  auto const outcome = ping(made);
  CHECK(outcome.outcome != fate::replied);
  return outcome.error;
}

bool mentions(std::string const& text, std::string const& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("TLS: a lease is taken, renewed, handed over by message, and released") {
  certificates authority;
  auto const server = encrypted_server(authority);
  testing::token_source tokens;
  redis::lease_store from{{.url = server.url()}, tokens};
  redis::lease_store to{{.url = server.url()}, tokens};
  auto held = from.acquire({.resource = "account/1", .ttl = 300ms});
  REQUIRE(held.has_value());
  CHECK(eventually([&] { return from.counters().renewed > 2; }));
  CHECK_FALSE(held->lost().stop_requested());
  std::optional<lease> next;
  std::thread waiter{[&] { next = to.acquire({.resource = "account/1", .wait = 20s}); }};
  std::vector<std::string> const question{"PUBSUB", "NUMSUB", "fenceguard:{0}:released:account/1"};
  CHECK(eventually([&] { return server.command(question).elements.at(1).integer == 1; }));
  CHECK(held->release() == release_outcome::released);
  waiter.join();
  REQUIRE(next.has_value());
  CHECK(next->token() > held->token());
  CHECK(next->release() == release_outcome::released);
  CHECK(server.info("stats", "total_connections_received").has_value());
}

TEST_CASE("TLS: a user with a password, in another database") {
  certificates authority;
  auto const server = encrypted_server(authority);
  server.command({"ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all"});
  auto url = server.url(3);
  url.insert(url.find("//") + 2, "app:secret@");
  testing::token_source tokens;
  redis::lease_store store{{.url = url}, tokens};
  CHECK(store.acquire({.resource = "account/1"}).has_value());
  url.replace(url.find("secret"), 6, "guess!");
  redis::lease_store wrong{{.url = url}, tokens};
  CHECK_THROWS_AS(static_cast<void>(wrong.acquire({.resource = "account/1"})), invalid_request);
}

TEST_CASE("TLS: every certificate is verified") {
  certificates authority;
  SUBCASE("by another authority") {
    certificates other;
    auto const server = encrypted_server(authority);
    auto const said = refusal(url_at(server.port(), "cacert=" + other.authority().string()));
    CHECK(mentions(said, "its certificate is refused"));
    CHECK(mentions(said, "127.0.0.1:" + std::to_string(server.port())));
  }
  SUBCASE("by none that the system knows") {
    auto const server = encrypted_server(authority);
    auto const url = "rediss://127.0.0.1:" + std::to_string(server.port());
    CHECK(mentions(refusal(url), "its certificate is refused"));
  }
  SUBCASE("for another server") {
    auto const server = encrypted_server(authority, "IP:127.0.0.2,DNS:redis.example");
    CHECK(mentions(refusal(server.url()), "IP address mismatch"));
    // Who is reached by another name than the certificate's says so.
    connection named{options_of(server.url() + "&sni=redis.example")};
    CHECK(ping(named).replied());
    CHECK(mentions(refusal(server.url() + "&sni=other.example"), "hostname mismatch"));
  }
  SUBCASE("that has run out") {
    auto const server = encrypted_server(authority, here, -1);
    CHECK(mentions(refusal(server.url()), "has expired"));
  }
}

TEST_CASE("TLS: a server that demands a certificate of its clients") {
  certificates authority;
  redis_server const server{
      {.encrypted = redis_server::tls{authority.issue(here), authority.authority(), true}}};
  // Always refused. That the server says why is lost where its end of the connection comes as a
  // reset.
  CHECK(eventually([&] { return mentions(refusal(server.url()), "certificate required"); }));
  auto const mine = authority.issue("DNS:client");
  connection made{options_of(server.url() + "&cert=" + mine.certificate.string() +
                             "&key=" + mine.key.string())};
  CHECK(ping(made).replied());
}

TEST_CASE("TLS: files that cannot be used are refused at construction") {
  certificates authority;
  auto const mine = authority.issue(here);
  auto const another = authority.issue(here);
  auto const refused = [](std::string const& parameters) {
    testing::token_source tokens;
    CHECK_THROWS_AS(redis::lease_store({.url = url_at(1, parameters)}, tokens), invalid_request);
  };
  refused("cacert=/nowhere/ca.crt");
  refused("cacert=" + mine.key.string());
  refused("cert=/nowhere/c.crt&key=" + mine.key.string());
  refused("cert=" + mine.certificate.string() + "&key=" + another.key.string());
}

TEST_CASE("TLS: who does not speak it costs no more than the time to connect") {
  redis_server const plain;
  certificates authority;
  auto const known = "cacert=" + authority.authority().string();
  SUBCASE("a server without TLS, which waits for the rest of a command") {
    auto options = options_of(url_at(plain.port(), known));
    options.connect_timeout = 200ms;
    connection made{options};
    auto const before = boottime::now();
    CHECK(mentions(ping(made).error, "does it speak TLS?"));
    CHECK(boottime::now() - before < 5s);
  }
  SUBCASE("one that hangs in the middle of the handshake") {
    auto const server = encrypted_server(authority);
    relay between{server.port()};
    between.stall(direction::to_client);
    connection made{options_of(url_at(between.port(), known))};
    auto const before = boottime::now();
    auto const outcome = ping(made, 300ms);
    CHECK(outcome.outcome == fate::not_sent);
    CHECK(boottime::now() - before < 5s);
    between.flow();
    CHECK(ping(made).replied());
  }
  SUBCASE("one that answers in another language") {
    byte_server const odd{[](int to) {
      byte_server::say(to, "HTTP/1.1 400 Bad Request\r\n\r\n");
      static_cast<void>(byte_server::hear(to));
    }};
    CHECK(mentions(refusal(url_at(odd.port(), known)), "TLS: "));
  }
  SUBCASE("a server with TLS that is asked without") {
    auto const server = encrypted_server(authority);
    CHECK(!refusal("redis://127.0.0.1:" + std::to_string(server.port())).empty());
  }
}

TEST_CASE("TLS: long requests and replies, in many records and parts") {
  certificates authority;
  auto const server = encrypted_server(authority);
  connection made{options_of(server.url())};
  std::string value;
  for (int i = 0; value.size() < 8'000'000; ++i) value += std::to_string(i);
  auto const end = [] { return boottime::now() + 30s; };
  REQUIRE(made.call(command{"SET", "long", value}, end()).replied());
  auto const back = made.call(command{"GET", "long"}, end());
  REQUIRE(back.replied());
  CHECK(back.answer.text() == value);
  // Each reply fills more than one buffer of the reader's, and their borders lie anywhere.
  std::vector<command> many;
  for (int i = 0; i < 300; ++i) {
    many.emplace_back(command{"GETRANGE", "long", std::to_string(i), std::to_string(i * 101)});
  }
  auto const all = made.call_all(many, end());
  for (std::size_t i = 0; i < all.size(); ++i) {
    REQUIRE(all[i].replied());
    CHECK(all[i].answer.text() == std::string_view{value}.substr(i, i * 100 + 1));
  }
}

TEST_CASE("TLS: many threads on one connection get their own replies") {
  certificates authority;
  auto const server = encrypted_server(authority);
  connection made{options_of(server.url())};
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 32; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        auto const text = std::to_string(t) + std::string(static_cast<std::size_t>(i * t), 'x');
        auto const said = made.call(command{"ECHO", text}, boottime::now() + 30s);
        if (said.replied() && said.answer.text() == text) ++right;
      }
    });
  }
  for (auto& one : threads) one.join();
  CHECK(right == 32 * 200);
  CHECK(made.counters().connects == 1);
}

TEST_CASE("TLS: a request that was cut in the middle has not been carried out, and is unknown") {
  certificates authority;
  auto const server = encrypted_server(authority);
  relay between{server.port()};
  connection made{options_of(url_at(between.port(), "cacert=" + authority.authority().string()))};
  REQUIRE(ping(made).replied());
  between.cut_after_bytes(direction::to_server, 100'000);
  auto const cut =
      made.call(command{"SET", "k", std::string(1'000'000, 'v')}, boottime::now() + 10s);
  CHECK(cut.outcome == fate::unknown);
  CHECK(ping(made).replied());
  CHECK(server.command({"EXISTS", "k"}).integer == 0);
}

TEST_CASE("TLS: a server that restarts is reached again; one that hangs is given up") {
  certificates authority;
  auto server = encrypted_server(authority);
  auto options = options_of(server.url());
  options.silence_limit = 200ms;
  connection made{options};
  REQUIRE(ping(made).replied());
  server.restart();
  CHECK(eventually([&] { return ping(made).replied(); }));
  server.pause();
  auto const before = boottime::now();
  CHECK(ping(made).outcome == fate::unknown);
  CHECK(boottime::now() - before < 5s);
  server.resume();
  CHECK(eventually([&] { return ping(made).replied(); }));
}

TEST_CASE("TLS: Redlock") {
  certificates authority;
  std::vector<redis_server> servers;
  redis::redlock_store_options options;
  for (int i = 0; i < 3; ++i) {
    servers.push_back(encrypted_server(authority));
    options.urls.push_back(servers.back().url());
  }
  testing::token_source tokens;
  redis::redlock_store store{options, tokens};
  servers[1].stop();
  auto held = store.acquire({.resource = "account/1", .wait = 10s});
  REQUIRE(held.has_value());
  CHECK(held->release() == release_outcome::released);
}

TEST_CASE("TLS: through sentinels, also after a failover") {
  certificates authority;
  test_servers::redis_sentinels system{
      redis_server::tls{authority.issue(here), authority.authority()}};
  testing::token_source tokens;
  redis::lease_store store{{.url = system.url()}, tokens};
  auto const first = store.acquire({.resource = "account/1", .wait = 10s});
  REQUIRE(first.has_value());
  system.fail_over();
  std::optional<lease> second;
  REQUIRE(eventually([&] {
    try {
      second = store.acquire({.resource = "account/2", .wait = 1s});
    } catch (lease_store_unavailable const&) {
    }
    return second.has_value();
  }));
  CHECK(second->token() > first->token());
}

TEST_CASE("TLS: a cluster, to each node, also after a slot has moved") {
  certificates authority;
  test_servers::redis_cluster cluster{
      {.encrypted = redis_server::tls{authority.issue(here), authority.authority()}}};
  testing::token_source tokens;
  redis::lease_store store{{.url = cluster.url(), .partitions = 8}, tokens};
  std::vector<lease> held;
  for (int i = 0; i < 40; ++i) {
    auto got = store.acquire({.resource = "account/" + std::to_string(i), .wait = 10s});
    REQUIRE(got.has_value());
    held.push_back(std::move(*got));
  }
  for (auto& one : held) CHECK(one.release() == release_outcome::released);
}

}  // namespace fenceguard::redis_tests
