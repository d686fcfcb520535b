#include "servers/pgbouncer_server.hpp"

#include <doctest/doctest.h>
#include <libpq-fe.h>

#include <string>

namespace ts = fenceguard::test_servers;

namespace {

std::string value(PGconn* db, char const* sql) {
  PGresult* const result = ::PQexec(db, sql);
  REQUIRE(::PQresultStatus(result) == PGRES_TUPLES_OK);
  std::string text = ::PQgetvalue(result, 0, 0);
  ::PQclear(result);
  return text;
}

}  // namespace

TEST_CASE("pgbouncer_server: two clients share one server session, by transaction") {
  ts::postgres_server server;
  auto const database = server.fresh_database();
  ts::pgbouncer_server pool{server, {{"default_pool_size", "1"}}};
  PGconn* const one = ::PQconnectdb(pool.url(database.name).c_str());
  PGconn* const two = ::PQconnectdb(pool.url(database.name).c_str());
  REQUIRE(::PQstatus(one) == CONNECTION_OK);
  REQUIRE(::PQstatus(two) == CONNECTION_OK);
  CHECK(value(one, "SELECT current_database()") == database.name);
  CHECK(value(one, "SELECT pg_backend_pid()") == value(two, "SELECT pg_backend_pid()"));
  ::PQfinish(one);
  ::PQfinish(two);
}
