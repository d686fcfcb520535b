#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/migrate.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/migration_export.hpp"
#include "cli/program.hpp"
#include "servers/postgres_server.hpp"
#include "servers/temporary_directory.hpp"

namespace fg = fenceguard;
using fg::cli::export_format;

namespace {

fg::test_servers::postgres_server& server() {
  static fg::test_servers::postgres_server one;
  return one;
}

int newest_version() { return fg::postgres::migrations().back().version; }

std::string read_file(std::filesystem::path const& path) {
  std::ifstream file{path};
  return {std::istreambuf_iterator<char>{file}, {}};
}

}  // namespace

TEST_CASE("migrate, verify, migrate again: nothing to do") {
  auto const db = server().fresh_database();
  auto const first = run_program({"migrate", "--json", "--database-url", db.url});
  REQUIRE(first.err == "");
  CHECK(first.status == fg::cli::done);
  CHECK(nlohmann::json::parse(first.out)[0]["steps"] == newest_version());
  CHECK(run_program({"verify", "--database-url", db.url}).status == fg::cli::done);
  auto const second = run_program({"migrate", "--json", "--database-url", db.url});
  CHECK(nlohmann::json::parse(second.out)[0]["steps"] == 0);
}

TEST_CASE("verify: a database without the schema is a finding") {
  auto const db = server().fresh_database();
  auto const checked = run_program({"verify", "--json", "--database-url", db.url});
  CHECK(checked.status == fg::cli::finding);
  CHECK_FALSE(nlohmann::json::parse(checked.out).empty());
}

TEST_CASE("verify: a function altered by hand is named") {
  auto const db = server().fresh_database();
  REQUIRE(run_program({"migrate", "--database-url", db.url}).status == fg::cli::done);
  server().query("ALTER FUNCTION fenceguard.raise_floor() SECURITY INVOKER", db.name);
  auto const checked = run_program({"verify", "--database-url", db.url});
  CHECK(checked.status == fg::cli::finding);
  CHECK(checked.out.find("raise_floor") != std::string::npos);
}

TEST_CASE("migrate --down needs --to, and 0 removes the schema") {
  auto const db = server().fresh_database();
  REQUIRE(run_program({"migrate", "--database-url", db.url}).status == fg::cli::done);
  CHECK(run_program({"migrate", "--down", "--database-url", db.url}).status == fg::cli::usage);
  CHECK(run_program({"migrate", "--down", "--to", "0", "--database-url", db.url}).status ==
        fg::cli::done);
  CHECK(server().value("SELECT count(*) FROM pg_tables WHERE schemaname = 'fenceguard'", db.name) ==
        "0");
}

TEST_CASE("a server that is not there: exit status 3") {
  auto const run =
      run_program({"migrate", "--database-url", "postgresql://nobody@127.0.0.1:1/none"});
  CHECK(run.status == fg::cli::unreachable);
  CHECK(run.err.find("PostgreSQL") != std::string::npos);
}

TEST_CASE("wrong usage: exit status 2; help and version: 0") {
  CHECK(run_program({}).status == fg::cli::usage);
  CHECK(run_program({"dance"}).status == fg::cli::usage);
  CHECK(run_program({"migrate", "--to", "-1"}).status == fg::cli::usage);
  CHECK(run_program({"--help"}).status == fg::cli::done);
  CHECK(run_program({"--version"}).status == fg::cli::done);
}

TEST_CASE("migrations list: every version with its checksum") {
  auto const run = run_program({"migrations", "list", "--json"});
  auto const rows = nlohmann::json::parse(run.out);
  REQUIRE(rows.size() == fg::postgres::migrations().size());
  for (auto const& row : rows) CHECK(row["sha256"].get<std::string>().size() == 64);
}

TEST_CASE(
    "migrations export: plain files are the migrations, byte for byte; a second run writes "
    "nothing; a changed file is not overwritten") {
  fg::test_servers::temporary_directory const directory;
  auto const target = directory.path() / "out";
  REQUIRE(run_program({"migrations", "export", "--dir", target.string()}).status == fg::cli::done);
  auto const& step = fg::postgres::migrations().front();
  CHECK(read_file(target / "0001_fenceguard_schema.up.sql") == step.up);
  CHECK(read_file(target / "0001_fenceguard_schema.down.sql") == step.down);
  auto const again = run_program({"migrations", "export", "--json", "--dir", target.string()});
  CHECK(nlohmann::json::parse(again.out).empty());
  std::ofstream{target / "0001_fenceguard_schema.up.sql"} << "changed";
  auto const refused = run_program({"migrations", "export", "--dir", target.string()});
  CHECK(refused.status == fg::cli::usage);
  CHECK(read_file(target / "0001_fenceguard_schema.up.sql") == "changed");
}

TEST_CASE("every export format keeps the SQL whole and switches the tool's own transaction off") {
  auto const& step = fg::postgres::migrations().front();
  std::pair<export_format, char const*> const formats[] = {
      {export_format::flyway, "executeInTransaction=false"},
      {export_format::goose, "-- +goose NO TRANSACTION"},
      {export_format::dbmate, "-- migrate:up transaction:false"},
      {export_format::liquibase, "runInTransaction:false"}};
  for (auto const& pair : formats) {
    export_format const format = pair.first;
    char const* const mark = pair.second;
    CAPTURE(mark);
    std::string all;
    for (auto const& file : fg::cli::export_migration(step, format)) all += file.text;
    CHECK(all.find(mark) != std::string::npos);
    CHECK(all.find(step.up) != std::string::npos);
    CHECK(all.find(step.down) != std::string::npos);
  }
}
