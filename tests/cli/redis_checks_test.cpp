#include "cli/redis_checks.hpp"

#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>
#include <sstream>

#include "cli/program.hpp"
#include "servers/postgres_server.hpp"
#include "servers/redis_server.hpp"

namespace fg = fenceguard;
using fg::cli::check_redis;
using fg::cli::diagnosis;
using fg::cli::severity;
using fg::test_servers::redis_server;
using namespace std::chrono_literals;

namespace {

diagnosis const* find(std::vector<diagnosis> const& found, std::string const& subject) {
  for (auto const& one : found) {
    if (one.subject == subject) return &one;
  }
  return nullptr;
}

void send(redis_server const& server, std::string const& line) {
  std::istringstream text{line};
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word == "\"\"" ? "" : word);
  auto const reply = server.command(words);
  INFO(line << ": " << reply.text);
  REQUIRE_FALSE(reply.is_error());
}

std::string listed(std::vector<diagnosis> const& found) {
  std::string all;
  for (auto const& one : found) all += one.subject + ": " + one.finding + "; ";
  return all;
}

}  // namespace

TEST_CASE("doctor finds each fault planted in Redis, and its remedy mends it") {
  struct fault {
    std::vector<std::string> plant;
    severity grade;
    std::string subject;
    std::string finding;
    std::string mend = {};
  };
  redis_server const server{{.persistent = true}};
  auto const healthy = check_redis(server.url());
  CAPTURE(listed(healthy));
  REQUIRE(healthy.size() == 1);  // without replicas
  REQUIRE(healthy[0].grade == severity::notice);

  std::vector<fault> const faults{
      {{"CONFIG SET maxmemory 100mb", "CONFIG SET maxmemory-policy allkeys-lru"},
       severity::error,
       "maxmemory-policy",
       "is allkeys-lru with maxmemory 104857600"},
      {{"CONFIG SET maxmemory-policy volatile-ttl"},
       severity::error,
       "maxmemory-policy",
       "is volatile-ttl"},
      {{"CONFIG SET maxmemory 1mb"},
       severity::warning,
       "maxmemory",
       "bytes are used",
       "CONFIG SET maxmemory 0"},
      {{"CONFIG SET appendonly no"}, severity::notice, "appendonly", "is no"},
      {{"CONFIG SET protected-mode no"},
       severity::warning,
       "protected-mode",
       "there is no password"},
  };
  // An address of no machine, which Redis is told not to mind: the port stays on the loopback.
  send(server, "CONFIG SET bind 127.0.0.1");
  REQUIRE_FALSE(server.command({"CONFIG", "SET", "bind", "127.0.0.1 -192.0.2.1"}).is_error());
  for (auto const& one : faults) {
    CAPTURE(one.subject);
    for (auto const& line : one.plant) send(server, line);
    auto const found = check_redis(server.url());
    CAPTURE(listed(found));
    diagnosis const* const planted = find(found, one.subject);
    REQUIRE(planted != nullptr);
    CHECK(planted->grade == one.grade);
    CHECK(planted->finding.find(one.finding) != std::string::npos);
    CHECK_FALSE(planted->reason.empty());
    send(server, one.mend.empty() ? planted->remedy : one.mend);
    CHECK(listed(check_redis(server.url())) == listed(healthy));
  }
}

TEST_CASE("an eviction policy without a limit of memory evicts nothing") {
  redis_server const server;
  send(server, "CONFIG SET maxmemory-policy allkeys-lru");
  CHECK(find(check_redis(server.url()), "maxmemory-policy") == nullptr);
}

TEST_CASE("protected mode off is no finding with a password, or on the loopback alone") {
  redis_server const server{{.password = "secret"}};
  send(server, "CONFIG SET protected-mode no");
  CHECK(find(check_redis(server.url()), "protected-mode") == nullptr);
  REQUIRE_FALSE(server.command({"CONFIG", "SET", "bind", "127.0.0.1 -192.0.2.1"}).is_error());
  CHECK(find(check_redis(server.url()), "protected-mode") == nullptr);
}

TEST_CASE("which addresses a server is bound to") {
  using fg::cli::binds_beyond_loopback;
  CHECK_FALSE(binds_beyond_loopback("127.0.0.1 -::1"));
  CHECK_FALSE(binds_beyond_loopback("127.0.0.53"));
  CHECK(binds_beyond_loopback(""));
  CHECK(binds_beyond_loopback("* -::*"));
  CHECK(binds_beyond_loopback("127.0.0.1 192.0.2.1"));
}

TEST_CASE("a replica is the wrong server; its primary is told of min-replicas-to-write") {
  redis_server const primary;
  redis_server replica;
  replica.replica_of(primary);
  diagnosis const* wrong = nullptr;
  auto const of_replica = check_redis(replica.url());
  wrong = find(of_replica, "server");
  REQUIRE(wrong != nullptr);
  CHECK(wrong->grade == severity::error);
  CHECK(wrong->finding.find("replica of 127.0.0.1") != std::string::npos);

  auto const found = check_redis(primary.url());
  diagnosis const* const unbounded = find(found, "min-replicas-to-write");
  REQUIRE(unbounded != nullptr);
  CHECK(unbounded->grade == severity::notice);
  CHECK(find(found, "replicas") == nullptr);
  send(primary, unbounded->remedy);
  CHECK(find(check_redis(primary.url()), "min-replicas-to-write") == nullptr);
}

TEST_CASE("clocks that differ by more than the tolerance") {
  redis_server const server;
  fg::cli::examination const how{.now = [] { return std::chrono::system_clock::now() + 6s; }};
  auto const found = check_redis(server.url(), how);
  REQUIRE(find(found, "clock") != nullptr);
  CHECK(find(found, "clock")->finding.find("behind this machine") != std::string::npos);
  CHECK(find(check_redis(server.url()), "clock") == nullptr);
}

TEST_CASE("what a user may not see is said, and is no finding of its own") {
  redis_server const server;
  send(server, "ACL SETUSER service on >secret ~* +@all -@dangerous");
  auto const url = "redis://service:secret@127.0.0.1:" + std::to_string(server.port());
  auto const found = check_redis(url);
  for (auto const* const command : {"INFO", "CONFIG GET"}) {
    CAPTURE(command);
    REQUIRE(find(found, command) != nullptr);
    CHECK(find(found, command)->grade == severity::notice);
    CHECK(find(found, command)->unchecked);
  }
}

TEST_CASE("a server that is not there is no finding but an error") {
  CHECK_THROWS_AS((void)check_redis("redis://127.0.0.1:1"), fg::lease_store_unavailable);
  CHECK_THROWS_AS((void)check_redis("http://127.0.0.1"), fg::invalid_request);
}

TEST_CASE("the program: an evicting Redis exits 1, a denied look is told beside the output") {
  fg::test_servers::postgres_server const database{{.durable = true}};
  database.query("CREATE ROLE keeper LOGIN IN ROLE pg_read_all_stats, pg_signal_backend");
  database.query("GRANT CREATE ON DATABASE postgres TO keeper");
  auto const database_url = database.url("postgres", "keeper");
  REQUIRE(run_program({"migrate", "--database-url", database_url}).status == fg::cli::done);
  redis_server const server;
  auto const doctor = [&](std::string const& redis_url) {
    return run_program({"doctor", "--database-url", database_url, "--redis-url", redis_url});
  };
  auto const good = doctor(server.url());
  CHECK(good.status == fg::cli::done);
  CHECK(good.out == "");
  CHECK(good.err == "");

  send(server, "ACL SETUSER service on >secret ~* +@all -@dangerous");
  auto const denied = doctor("redis://service:secret@127.0.0.1:" + std::to_string(server.port()));
  CHECK(denied.status == fg::cli::done);
  CHECK(denied.out == "");
  CHECK(denied.err.find("could not be checked") != std::string::npos);

  send(server, "CONFIG SET maxmemory 100mb");
  send(server, "CONFIG SET maxmemory-policy allkeys-lfu");
  auto const evicting = doctor(server.url());
  CHECK(evicting.status == fg::cli::finding);
  CHECK(evicting.out.find("CONFIG SET maxmemory-policy noeviction") != std::string::npos);
}
