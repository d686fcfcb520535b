#include <doctest/doctest.h>

#include <chrono>
#include <fenceguard/postgres/lease_store.hpp>
#include <fenceguard/postgres/token_source.hpp>
#include <fenceguard/redis/lease_store.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/program.hpp"
#include "servers/postgres_server.hpp"
#include "servers/redis_sentinels.hpp"
#include "servers/redis_server.hpp"

namespace fg = fenceguard;
using namespace std::chrono_literals;

namespace {

fg::lease_request request(std::string resource, std::string label) {
  fg::lease_request wanted;
  wanted.resource = std::move(resource);
  wanted.ttl = 60s;
  wanted.label = std::move(label);
  return wanted;
}

}  // namespace

TEST_CASE("leases: who holds what, since when, for how long") {
  fg::test_servers::redis_server const server;
  fg::testing::token_source tokens;
  fg::redis::lease_store leases{{.url = server.url()}, tokens};
  auto const none = run_program({"leases", "--redis-url", server.url()});
  CHECK(none.status == 0);
  CHECK(none.out == "Nobody holds a lease.\n");

  auto const first = leases.acquire(request("account/1", "worker 7"));
  auto const second = leases.acquire(request("order/{5}:x", ""));
  REQUIRE(first.has_value());
  REQUIRE(second.has_value());
  // Keys of others, some of which look alike.
  for (auto const* key : {"fenceguard:{x}:lease:account/2", "fenceguard:{0}:other:account/3",
                          "fenceguard2:{0}:lease:account/4", "fenceguard:{0}:lease:account/5"}) {
    REQUIRE_FALSE(server.command({"SET", key, "hello"}).is_error());
  }
  auto const shown = run_program({"leases", "--json", "--redis-url", server.url()});
  CHECK(shown.status == 0);
  auto const rows = nlohmann::json::parse(shown.out);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0]["resource"] == "account/1");
  CHECK(rows[0]["token"] == first->token().value());
  CHECK(rows[0]["label"] == "worker 7");
  CHECK(rows[0]["holder"].get<std::string>().size() == 32);
  CHECK(rows[0]["remaining_ms"] > 30'000);
  CHECK(rows[0]["remaining_ms"] <= 60'000);
  CHECK(rows[0]["held_ms"] < 30'000);
  CHECK(rows[0]["since"].get<std::string>().size() == 24);
  CHECK(rows[1]["resource"] == "order/{5}:x");

  auto const text = run_program({"leases", "--redis-url", server.url()});
  CHECK(text.out.find("worker 7") != std::string::npos);
  auto const other = run_program({"leases", "--prefix", "shop", "--redis-url", server.url()});
  CHECK(other.out == "Nobody holds a lease.\n");
}

TEST_CASE("leases: more than one portion") {
  fg::test_servers::redis_server const server;
  std::string const value = std::string(32, 'a') + " 5 1700000000000000 many";
  REQUIRE_FALSE(
      server
          .command({"EVAL",
                    "for i = 1, 2000 do redis.call('SET', 'fenceguard:{0}:lease:a/' .. i, "
                    "ARGV[1], 'PX', 60000) end",
                    "0", value})
          .is_error());
  auto const shown = run_program({"leases", "--json", "--redis-url", server.url()});
  CHECK(nlohmann::json::parse(shown.out).size() == 2'000);
}

TEST_CASE("leases: --watch shows them again") {
  fg::test_servers::redis_server const server;
  auto const shown =
      run_program({"leases", "--watch", "0.05", "--rounds", "3", "--redis-url", server.url()});
  CHECK(shown.status == 0);
  std::size_t times = 0;
  for (auto at = shown.out.find("Nobody"); at != std::string::npos;
       at = shown.out.find("Nobody", at + 1)) {
    ++times;
  }
  CHECK(times == 3);
}

TEST_CASE("leases: wrong usage, and a server that is not there") {
  CHECK(run_program({"leases", "--store", "redis"}).status == 2);
  CHECK(run_program({"leases", "--store", "memory"}).status == 2);
  CHECK(run_program({"leases", "--database-url", "postgresql://nobody@127.0.0.1:1/x"}).status == 3);
  CHECK(run_program({"leases", "--redis-url", "http://127.0.0.1"}).status == 2);
  CHECK(run_program({"leases", "--watch", "0", "--redis-url", "redis://127.0.0.1:1"}).status == 2);
  CHECK(run_program({"leases", "--redis-url", "redis://127.0.0.1:1"}).status == 3);
}

TEST_CASE("leases: those in PostgreSQL") {
  fg::test_servers::postgres_server server;
  auto const db = server.fresh_database();
  auto const before = run_program({"leases", "--database-url", db.url});
  CHECK(before.status == 1);
  CHECK(before.err.find("fenceguard migrate") != std::string::npos);
  REQUIRE(run_program({"migrate", "--database-url", db.url}).status == 0);
  CHECK(run_program({"leases", "--database-url", db.url}).out == "Nobody holds a lease.\n");

  fg::postgres::token_source tokens{db.url};
  fg::postgres::lease_store leases{{.url = db.url}, tokens};
  auto const first = leases.acquire(request("account/1", "worker 7"));
  auto second = leases.acquire(request("account/2", ""));
  REQUIRE(first.has_value());
  REQUIRE(second.has_value());
  REQUIRE(second->release() == fg::release_outcome::released);
  auto const shown = run_program({"leases", "--json", "--database-url", db.url});
  CHECK(shown.status == 0);
  auto const rows = nlohmann::json::parse(shown.out);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0]["resource"] == "account/1");
  CHECK(rows[0]["holder"] == first->holder());
  CHECK(rows[0]["token"] == first->token().value());
  CHECK(rows[0]["label"] == "worker 7");
  CHECK(rows[0]["remaining_ms"] > 30'000);
  CHECK(rows[0]["remaining_ms"] <= 60'000);
  CHECK(rows[0]["held_ms"] >= 0);
  CHECK(rows[0]["held_ms"] < 30'000);
  CHECK(rows[0]["since"].get<std::string>().size() == 24);

  fg::test_servers::redis_server const redis;
  CHECK(run_program({"leases", "--redis-url", redis.url(), "--database-url", db.url}).out ==
        "Nobody holds a lease.\n");
  auto const chosen = run_program(
      {"leases", "--store", "postgres", "--redis-url", redis.url(), "--database-url", db.url});
  CHECK(chosen.out.find("worker 7") != std::string::npos);

  server.query("CREATE ROLE visitor LOGIN; GRANT USAGE ON SCHEMA fenceguard TO visitor", db.name);
  auto url = db.url;
  url.replace(url.find("postgres@"), 8, "visitor");
  auto const refused = run_program({"leases", "--database-url", url});
  CHECK(refused.status == 1);
  CHECK(refused.err.find("live_leases") != std::string::npos);
}

TEST_CASE("leases and doctor through Sentinel") {
  fg::test_servers::redis_sentinels system;
  fg::testing::token_source tokens;
  fg::redis::lease_store leases{{.url = system.url()}, tokens};
  auto const held = leases.acquire(request("account/1", "worker 7"));
  REQUIRE(held.has_value());
  auto const shown = run_program({"leases", "--json", "--redis-url", system.url()});
  CHECK(shown.status == 0);
  CHECK(nlohmann::json::parse(shown.out).size() == 1);
}
