#include "servers/relay.hpp"

#include <doctest/doctest.h>
#include <libpq-fe.h>

#include <memory>
#include <string>

#include "servers/postgres_server.hpp"
#include "servers/redis_server.hpp"
#include "servers/wait.hpp"

using namespace std::chrono_literals;
namespace ts = fenceguard::test_servers;
using ts::direction;
using ts::reaction;

namespace {

class session {
 public:
  explicit session(int port)
      : db_(::PQconnectdb(
                ("host=127.0.0.1 user=postgres dbname=postgres port=" + std::to_string(port))
                    .c_str()),
            &::PQfinish) {}

  bool open() const { return ::PQstatus(db_.get()) == CONNECTION_OK; }
  bool exec(std::string const& sql) {
    std::unique_ptr<PGresult, decltype(&::PQclear)> const result{::PQexec(db_.get(), sql.c_str()),
                                                                 &::PQclear};
    auto const status = ::PQresultStatus(result.get());
    return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
  }
  bool send(std::string const& sql) { return ::PQsendQuery(db_.get(), sql.c_str()) == 1; }
  bool answered(std::chrono::milliseconds bound) {
    return ts::eventually(
        [&] { return ::PQconsumeInput(db_.get()) == 1 && ::PQisBusy(db_.get()) == 0; }, bound);
  }

 private:
  std::unique_ptr<PGconn, decltype(&::PQfinish)> db_;
};

struct fixture {
  ts::postgres_server server;
  ts::relay link{server.port()};
  fixture() { server.query("CREATE TABLE t (a int)"); }
  std::string count() { return server.value("SELECT count(*) FROM t"); }
  void settle() {
    ts::wait_until("all connections ended", [&] { return link.open_connections() == 0; });
  }
};

}  // namespace

TEST_CASE_FIXTURE(fixture, "relay counts round trips and adds its delay to each") {
  session db{link.port()};
  REQUIRE(db.open());
  link.reset_counters();
  auto const start = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) REQUIRE(db.exec("SELECT 1; SELECT 2"));
  auto const direct = std::chrono::steady_clock::now() - start;
  CHECK(link.round_trips() == 10);
  CHECK(link.bytes(direction::to_server) == 10 * (1 + 4 + 19));

  link.delay(20ms);
  auto const again = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) REQUIRE(db.exec("SELECT 1"));
  auto const delayed = std::chrono::steady_clock::now() - again;
  CHECK(delayed >= 400ms);
  CHECK(direct < delayed);
  CHECK(link.round_trips() == 20);
}

TEST_CASE_FIXTURE(fixture, "relay cuts before or after COMMIT") {
  for (auto what : {reaction::cut_before, reaction::cut_after}) {
    session db{link.port()};
    REQUIRE(db.exec("BEGIN"));
    REQUIRE(db.exec("INSERT INTO t VALUES (1)"));
    link.when_seen(direction::to_server, "COMMIT", what);
    CHECK_FALSE(db.exec("COMMIT"));
    settle();
    CHECK(count() == (what == reaction::cut_before ? "0" : "1"));
  }
  CHECK(link.fired() == 2);
  session db{link.port()};
  CHECK(db.exec("BEGIN; COMMIT"));  // once only
}

TEST_CASE_FIXTURE(fixture, "relay holds a request back that its client has given up") {
  auto db = std::make_unique<session>(link.port());
  link.when_seen(direction::to_server, "INSERT", reaction::stall);
  REQUIRE(db->send("INSERT INTO t VALUES (1)"));
  CHECK_FALSE(db->answered(100ms));
  db.reset();
  CHECK(count() == "0");
  link.flow();
  settle();
  CHECK(count() == "1");
}

TEST_CASE_FIXTURE(fixture, "relay swallows: half-open either way") {
  session db{link.port()};
  link.swallow(direction::to_client);
  REQUIRE(db.send("INSERT INTO t VALUES (1)"));
  CHECK(ts::eventually([&] { return count() == "1"; }));
  CHECK_FALSE(db.answered(100ms));
  link.flow();
  session other{link.port()};
  REQUIRE(other.open());
  link.swallow(direction::to_server);
  REQUIRE(other.send("INSERT INTO t VALUES (2)"));
  CHECK_FALSE(other.answered(100ms));
  CHECK(count() == "1");
}

TEST_CASE_FIXTURE(fixture, "relay cuts in the middle of a message") {
  session db{link.port()};
  REQUIRE(db.open());
  link.cut_after_bytes(direction::to_server, 10);
  CHECK_FALSE(db.exec("INSERT INTO t VALUES (1)"));
  settle();
  CHECK(count() == "0");
}

TEST_CASE_FIXTURE(fixture, "relay severs and restores") {
  session db{link.port()};
  REQUIRE(db.open());
  link.sever();
  CHECK_FALSE(db.exec("SELECT 1"));
  CHECK_FALSE(session{link.port()}.open());
  link.restore();
  CHECK(session{link.port()}.open());
}

TEST_CASE("relay to a server that is down, and to a Unix socket") {
  ts::redis_server redis;
  ts::relay link{redis.socket_path()};
  ts::redis_server replica;
  replica.replica_of(redis, link.port());
  CHECK(link.accepted() >= 1);

  ts::postgres_server postgres;
  ts::relay other{postgres.port()};
  postgres.stop();
  CHECK_FALSE(session{other.port()}.open());
  postgres.start();
  CHECK(session{other.port()}.open());
}
