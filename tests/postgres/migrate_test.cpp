#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/migrate.hpp>
#include <future>

#include "postgres/database.hpp"

using namespace fenceguard;
using postgres::migrate;
using postgres::migrate_down;
using postgres::migrations;
using test_postgres::database;

namespace {

database bare() { return database{test_postgres::shared_server(), false}; }

std::string version(database const& db) {
  return db.value("SELECT max(version) FROM fenceguard.schema_version");
}

}  // namespace

TEST_CASE("migrate: numbered without a gap, named, with checksums and a way back") {
  int expected = 0;
  for (auto const& step : migrations()) {
    CHECK(step.version == ++expected);
    CHECK_FALSE(step.name.empty());
    CHECK(step.up.find("COMMIT;") != std::string_view::npos);
    CHECK(step.down.find("COMMIT;") != std::string_view::npos);
    CHECK(step.checksum.size() == 64);
  }
  CHECK(expected >= 5);
}

TEST_CASE("migrate: from nothing, and a second time does nothing") {
  auto const db = bare();
  CHECK(migrate(db.url()) == migrations().size());
  CHECK(migrate(db.url()) == 0);
  CHECK(version(db) == std::to_string(migrations().size()));
  for (auto const& step : migrations()) {
    CHECK(db.value("SELECT checksum FROM fenceguard.schema_version WHERE version = " +
                   std::to_string(step.version)) == step.checksum);
    CHECK(db.value("SELECT name FROM fenceguard.schema_version WHERE version = " +
                   std::to_string(step.version)) == step.name);
  }
}

TEST_CASE("migrate: the checksum is sha256sum's") {
  auto const db = bare();
  auto const& first = migrations().front();
  pqxx::connection connection{db.url()};
  pqxx::work tx{connection};
  CHECK(tx.exec_params("SELECT encode(sha256(convert_to($1, 'UTF8')), 'hex')",
                       std::string{first.up})[0][0]
            .as<std::string>() == first.checksum);
}

TEST_CASE("migrate: up to a version, down, up again") {
  auto const db = bare();
  CHECK(migrate(db.url(), 2) == 2);
  CHECK(version(db) == "2");
  CHECK(migrate(db.url(), 1) == 0);  // there already
  CHECK(migrate(db.url()) == migrations().size() - 2);
  CHECK(migrate_down(db.url(), 3) == migrations().size() - 3);
  CHECK(version(db) == "3");
  CHECK(migrate(db.url()) == migrations().size() - 3);
  CHECK(migrate_down(db.url(), 0) == migrations().size());
  CHECK(db.value("SELECT count(*) FROM pg_namespace WHERE nspname = 'fenceguard'") == "0");
  CHECK(migrate_down(db.url(), 0) == 0);
  CHECK(migrate(db.url()) == migrations().size());
  CHECK(postgres::verify(db.url()).empty());
}

TEST_CASE("migrate: unknown versions change nothing") {
  auto const db = bare();
  CHECK_THROWS_AS(migrate(db.url(), -1), invalid_request);
  CHECK_THROWS_AS(migrate(db.url(), static_cast<int>(migrations().size()) + 1), invalid_request);
  CHECK_THROWS_AS(migrate_down(db.url(), -1), invalid_request);
  CHECK(db.value("SELECT count(*) FROM pg_namespace WHERE nspname = 'fenceguard'") == "0");
}

TEST_CASE("migrate: a database that is newer than the library is left alone") {
  database const db;
  db.run("INSERT INTO fenceguard.schema_version(version, name) VALUES (1000, 'from_the_future')");
  CHECK_THROWS_AS(migrate(db.url()), schema_mismatch);
  CHECK_THROWS_AS(migrate_down(db.url(), 0), schema_mismatch);
  CHECK(version(db) == "1000");
}

TEST_CASE("migrate: several migrators at once") {
  auto const db = bare();
  std::vector<std::future<std::size_t>> migrators;
  for (int i = 0; i < 4; ++i) {
    migrators.push_back(std::async(std::launch::async, [&] { return migrate(db.url()); }));
  }
  std::size_t applied = 0;
  for (auto& one : migrators) applied += one.get();
  CHECK(applied == migrations().size());
  CHECK(postgres::verify(db.url()).empty());
}

TEST_CASE("migrate: a step that fails leaves the steps before it and nothing of its own") {
  auto const db = bare();
  migrate(db.url(), 2);
  db.run("CREATE FUNCTION fenceguard.fence_lock(text) RETURNS int LANGUAGE sql AS 'SELECT 1'");
  CHECK_THROWS_AS(migrate(db.url()), pqxx::sql_error);
  CHECK(version(db) == "2");
  CHECK(db.value("SELECT to_regclass('fenceguard.fence') IS NULL") == "t");
  db.run("DROP FUNCTION fenceguard.fence_lock(text)");
  CHECK(migrate(db.url()) == migrations().size() - 2);
}

TEST_CASE("migrate: needs no right to create schemas where the schema exists") {
  auto& server = test_postgres::shared_server();
  auto const db = bare();
  std::string const name = db.value("SELECT current_database()");
  db.run("CREATE ROLE migrator_" + name + " LOGIN");
  CHECK_THROWS_AS(migrate(server.url(name, "migrator_" + name)), pqxx::insufficient_privilege);
  db.run("CREATE SCHEMA fenceguard AUTHORIZATION migrator_" + name);
  CHECK(migrate(server.url(name, "migrator_" + name)) == migrations().size());
}

TEST_CASE("migrate: a server that cannot be reached") {
  CHECK_THROWS_AS(migrate("host=127.0.0.1 port=1"), pqxx::broken_connection);
  CHECK_THROWS_AS(static_cast<void>(postgres::verify("host=127.0.0.1 port=1")),
                  pqxx::broken_connection);
}
