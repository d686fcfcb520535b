// The store as users see it, with tokens from a real PostgreSQL.

#include <doctest/doctest.h>

#include <chrono>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/migrate.hpp>
#include <fenceguard/postgres/token_source.hpp>
#include <fenceguard/redis/lease_store.hpp>
#include <optional>
#include <string>

#include "servers/postgres_server.hpp"
#include "servers/redis_server.hpp"
#include "servers/wait.hpp"

namespace fenceguard {
namespace {

using namespace std::chrono_literals;
using test_servers::eventually;

lease_request request(std::string resource) {
  lease_request wanted;
  wanted.resource = std::move(resource);
  wanted.ttl = 10s;
  return wanted;
}

fencing_token token_of(std::optional<lease> const& held) {
  REQUIRE(held.has_value());
  return held->token();
}

}  // namespace

TEST_CASE("tokens from PostgreSQL: FLUSHALL, restart, and the database down") {
  test_servers::postgres_server database;
  auto const url = database.fresh_database().url;
  postgres::migrate(url);
  test_servers::redis_server server;
  postgres::token_source tokens{{.url = url, .timeout = 2s}};
  redis::lease_store leases{{.url = server.url(), .block_size = 1'000}, tokens};

  auto const first = token_of(leases.acquire(request("account/1")));
  CHECK(first.value() > 1'700'000'000'000'000);  // microseconds since 1970
  CHECK(token_of(leases.acquire(request("account/1"))) > first);

  server.command({"FLUSHALL"});
  auto const after_flush = token_of(leases.acquire(request("account/1")));
  CHECK(after_flush.value() >= first.value() + 1'000);
  server.restart();
  auto const after_restart = token_of(leases.acquire(request("account/1")));
  CHECK(after_restart > after_flush);

  database.stop();
  auto const while_down = token_of(leases.acquire(request("account/1")));
  CHECK(while_down > after_restart);
  server.command({"FLUSHALL"});
  CHECK_THROWS_AS(static_cast<void>(leases.acquire(request("account/1"))),
                  token_source_unavailable);
  database.start();
  fencing_token latest = while_down;
  CHECK(eventually([&] {
    try {
      latest = token_of(leases.acquire(request("account/1")));
      return true;
    } catch (token_source_unavailable const&) {
      return false;
    }
  }));
  CHECK(latest > while_down);
}

TEST_CASE("a database without the schema is said when a block is needed") {
  test_servers::postgres_server database;
  test_servers::redis_server server;
  postgres::token_source tokens{{.url = database.fresh_database().url, .timeout = 2s}};
  redis::lease_store leases{{.url = server.url()}, tokens};
  CHECK_THROWS_AS(static_cast<void>(leases.acquire(request("account/1"))), schema_mismatch);
  CHECK(server.command({"EXISTS", "fenceguard:{0}:lease:account/1"}).integer == 0);
}

TEST_CASE("options that are not valid") {
  class no_tokens final : public token_source {
    fencing_token reserve(std::int64_t) override { throw token_source_unavailable{"none"}; }
  } tokens;
  auto const refuses = [&](redis::lease_store_options const& options) {
    CHECK_THROWS_AS((redis::lease_store{options, tokens}), invalid_request);
  };
  refuses({.url = "http://127.0.0.1"});
  refuses({.url = ""});
  refuses({.prefix = ""});
  refuses({.prefix = "a{b}"});
  refuses({.prefix = std::string(65, 'a')});
  refuses({.block_size = 0});
  refuses({.block_size = token_source::max_count + 1});
  refuses({.settings = {.clock = nullptr}});
}

}  // namespace fenceguard
