// The store as a role without any right but those of sql/roles/application.sql.

#include <doctest/doctest.h>

#include <fenceguard/postgres/lease_store.hpp>
#include <fenceguard/postgres/migrate.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <memory>
#include <string>

#include "conformance/run_conformance.hpp"
#include "servers/child_process.hpp"
#include "servers/postgres_server.hpp"

using namespace std::chrono_literals;
namespace fg = fenceguard;

TEST_CASE("conformance: PostgreSQL") {
  fg::test_servers::postgres_server server;
  auto const database = server.fresh_database();
  fg::postgres::migrate(database.url);
  server.query("CREATE ROLE worker LOGIN", database.name);
  fg::test_servers::run({.command = {(fg::test_servers::postgres_bin() / "psql").string(), "-qX",
                                     "-v", "application=worker", "-f",
                                     FENCEGUARD_TEST_ROLES "/application.sql", database.url}});
  auto const url = server.url(database.name, "worker");
  fg::testing::token_source tokens;
  fg::tests::run_conformance(
      {.make_store =
           [&](fg::lease_store_settings const& settings) {
             return std::make_unique<fg::postgres::lease_store>(
                 fg::postgres::lease_store_options{.url = url, .settings = settings}, tokens);
           },
       .expire =
           [&](std::string const& resource) {
             server.query(
                 "UPDATE fenceguard.lease SET expires_at = clock_timestamp() WHERE "
                 "resource = '" +
                     resource + "'",
                 database.name);
           },
       .restart = [&] { server.restart(); },
       .pause = [&] { server.pause(); },
       .resume = [&] { server.resume(); }},
      29);
}
