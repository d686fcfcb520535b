#include "servers/postgres_server.hpp"

#include <doctest/doctest.h>
#include <libpq-fe.h>

#include "servers/relay.hpp"
#include "servers/wait.hpp"

using namespace std::chrono_literals;
namespace ts = fenceguard::test_servers;
using stop_mode = ts::postgres_server::stop_mode;

TEST_CASE("postgres_server: own databases, over TCP and the Unix socket") {
  ts::postgres_server server;
  auto const one = server.fresh_database();
  server.query("CREATE TABLE t (a int)", one.name);
  auto const copy = server.fresh_database(one.name);
  CHECK(server.value("SELECT count(*) FROM t", copy.name) == "0");
  CHECK(server.fresh_database().name != one.name);
  CHECK(::PQping(one.url.c_str()) == PQPING_OK);
  CHECK(::PQping(one.url_unix.c_str()) == PQPING_OK);
  CHECK_THROWS_WITH_AS(server.query("SELECT 1/0"), doctest::Contains("division by zero"),
                       std::runtime_error);
}

TEST_CASE("postgres_server keeps port and data over every kind of stop") {
  ts::postgres_server server{{.durable = true}};
  int const port = server.port();
  server.query("CREATE TABLE t (a int)");
  for (auto mode : {stop_mode::fast, stop_mode::immediate, stop_mode::crash}) {
    server.query("INSERT INTO t VALUES (1)");
    server.stop(mode);
    CHECK(::PQping(server.url().c_str()) == PQPING_NO_RESPONSE);
    server.start();
  }
  CHECK(server.port() == port);
  CHECK(server.value("SELECT count(*) FROM t") == "3");
}

TEST_CASE("postgres_server: paused sessions hang and go on") {
  ts::postgres_server server;
  PGconn* const db = ::PQconnectdb(server.url().c_str());
  REQUIRE(::PQstatus(db) == CONNECTION_OK);
  server.pause();
  REQUIRE(::PQsendQuery(db, "SELECT 1") == 1);
  CHECK_FALSE(
      ts::eventually([&] { return ::PQconsumeInput(db) == 1 && ::PQisBusy(db) == 0; }, 200ms));
  server.resume();
  CHECK(ts::eventually([&] { return ::PQconsumeInput(db) == 1 && ::PQisBusy(db) == 0; }));
  ::PQfinish(db);
}

TEST_CASE("postgres_server: settings") {
  ts::postgres_server server{{.configuration = {{"application_name", "it's me"}}}};
  CHECK(server.value("SHOW application_name") == "it's me");
  server.configure("application_name", "other");
  server.reload();
  CHECK(server.value("SHOW application_name") == "other");
  ts::postgres_server::options const wrong{.configuration = {{"no_such_setting", "1"}}};
  CHECK_THROWS_WITH_AS(ts::postgres_server{wrong}, doctest::Contains("no_such_setting"),
                       std::runtime_error);
}

TEST_CASE("postgres_server: own identity") {
  std::string const identity = "SELECT system_identifier FROM pg_control_system()";
  ts::postgres_server one;
  ts::postgres_server two;
  ts::postgres_server other{{.own_identity = true}};
  CHECK(one.value(identity) == two.value(identity));
  CHECK(one.value(identity) != other.value(identity));
}

TEST_CASE("postgres_server: a standby behind a cut link lags, and can be promoted") {
  ts::postgres_server primary;
  ts::relay link{primary.port()};
  primary.query("CREATE TABLE t (a int)");
  auto standby = ts::postgres_server::standby_of(primary, {.port = link.port()});
  primary.query("INSERT INTO t VALUES (1)");
  ts::wait_until("replication", [&] { return standby.value("SELECT count(*) FROM t") == "1"; });

  link.sever();
  primary.query("INSERT INTO t VALUES (2)");
  standby.promote();
  CHECK(standby.value("SELECT count(*) FROM t") == "1");
  standby.query("INSERT INTO t VALUES (3)");
}

TEST_CASE("postgres_server: a synchronous standby") {
  ts::postgres_server primary;
  auto const standby = ts::postgres_server::standby_of(primary, {.application_name = "near"});
  primary.configure("synchronous_standby_names", "near");
  primary.reload();
  ts::wait_until("synchronous", [&] {
    return primary.value("SELECT sync_state FROM pg_stat_replication") == "sync";
  });
  primary.query("CREATE TABLE t (a int)");
  CHECK(standby.value("SELECT pg_is_in_recovery()") == "t");
}

TEST_CASE("postgres_server: a base backup without a signal file starts as a primary") {
  ts::postgres_server primary;
  auto copy = ts::postgres_server::base_backup_of(primary);
  copy.start();
  CHECK(copy.value("SELECT pg_is_in_recovery()") == "f");
  CHECK(copy.port() != primary.port());
}
