#include <doctest/doctest.h>

#include <algorithm>
#include <fenceguard/postgres/migrate.hpp>

#include "postgres/database.hpp"

using fenceguard::postgres::difference;
using fenceguard::postgres::migrations;
using fenceguard::postgres::verify;
using fenceguard::test_postgres::database;
using kind = difference::kind;

namespace {

// Whether exactly one difference is found, and it is this one.
bool finds_only(database const& db, kind what, std::string const& subject) {
  auto const found = verify(db.url());
  for (auto const& one : found) {
    INFO(to_string(one.what) << ": " << one.subject << ": " << one.detail);
    CHECK(one.subject.find(subject) != std::string::npos);
  }
  return found.size() == 1 && found[0].what == what && !found[0].detail.empty();
}

}  // namespace

TEST_CASE("verify: a fresh schema does not differ") {
  database const db;
  CHECK(verify(db.url()).empty());
}

TEST_CASE("verify: an empty database misses every version") {
  database const db{fenceguard::test_postgres::shared_server(), false};
  auto const found = verify(db.url());
  CHECK(found.size() == migrations().size());
  for (auto const& one : found) CHECK(one.what == kind::missing_version);
}

TEST_CASE("verify: a version that was not applied") {
  database const db{fenceguard::test_postgres::shared_server(), false};
  fenceguard::postgres::migrate(db.url(), static_cast<int>(migrations().size()) - 1);
  CHECK(finds_only(db, kind::missing_version, std::to_string(migrations().size())));
}

TEST_CASE("verify: a version that this library does not know") {
  database const db;
  db.run("INSERT INTO fenceguard.schema_version(version, name) VALUES (1000, 'x')");
  CHECK(finds_only(db, kind::newer_version, "1000"));
}

TEST_CASE("verify: a migration that was changed after it was applied") {
  database const db;
  db.run("UPDATE fenceguard.schema_version SET checksum = repeat('0', 64) WHERE version = 2");
  CHECK(finds_only(db, kind::changed_migration, "2 (tokens)"));
}

TEST_CASE("verify: a migration that psql applied has no checksum, which is no difference") {
  database const db;
  db.run("UPDATE fenceguard.schema_version SET checksum = NULL");
  CHECK(verify(db.url()).empty());
}

TEST_CASE("verify: what was altered, dropped or added by hand") {
  {
    database const db;
    db.run("ALTER FUNCTION fenceguard.reserve_tokens(bigint) SECURITY INVOKER");
    CHECK(finds_only(db, kind::altered, "function fenceguard.reserve_tokens"));
  }
  {
    database const db;
    db.run("DROP FUNCTION fenceguard.raise_floor()");
    CHECK(finds_only(db, kind::missing, "function fenceguard.raise_floor()"));
  }
  {
    database const db;
    db.run("ALTER TABLE fenceguard.fence DROP CONSTRAINT fence_token_range");
    CHECK(finds_only(db, kind::missing, "constraint fenceguard.fence.fence_token_range"));
  }
  {
    database const db;
    db.run("CREATE INDEX fence_token ON fenceguard.fence(token)");
    CHECK(finds_only(db, kind::unexpected, "index fenceguard.fence_token"));
  }
  {
    database const db;
    db.run("DROP FUNCTION fenceguard.altered_objects()");
    CHECK(finds_only(db, kind::missing, "altered_objects"));
  }
}

TEST_CASE("verify: changes nothing") {
  database const db;
  db.run("DROP FUNCTION fenceguard.raise_floor()");
  auto const count = [&] { return verify(db.url()).size(); };
  CHECK(count() == 1);
  CHECK(count() == 1);
}
