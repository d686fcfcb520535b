#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <pqxx/pqxx>

#include "cli/database_checks.hpp"
#include "cli/program.hpp"
#include "servers/pgbouncer_server.hpp"
#include "servers/postgres_server.hpp"

namespace fg = fenceguard;
using fg::cli::severity;
using nlohmann::json;
using namespace std::chrono_literals;

namespace {

fg::test_servers::postgres_server& server() {
  static fg::test_servers::postgres_server one{{.durable = true}};
  return one;
}

// A healthy database: the schema belongs to a role without superuser, which also looks, and a
// protected table belongs to another.
struct healthy_database {
  fg::test_servers::test_database db = server().fresh_database();
  std::string url = server().url(db.name, "keeper");

  healthy_database() {
    server().query(
        "DO $$ BEGIN CREATE ROLE keeper LOGIN IN ROLE pg_read_all_stats, pg_signal_backend; "
        "EXCEPTION WHEN duplicate_object THEN END $$");
    server().query("GRANT CREATE ON DATABASE " + db.name + " TO keeper");
    REQUIRE(run_program({"migrate", "--database-url", url}).status == fg::cli::done);
    server().query("CREATE TABLE account (id int PRIMARY KEY, balance int)", db.name);
    server().query("SELECT fenceguard.protect('account', 'account/{id}')", db.name);
  }

  // Each statement by itself and in one session, as psql does.
  void execute(std::string sql) const {
    if (auto const comment = sql.find("  --"); comment != std::string::npos) sql.resize(comment);
    pqxx::connection connection{db.url};
    pqxx::nontransaction session{connection};
    for (std::size_t at = 0; at < sql.size();) {
      auto const end = std::min(sql.find(';', at), sql.size());
      std::string const statement = sql.substr(at, end - at);
      if (statement.find_first_not_of(" \n") != std::string::npos) session.exec(statement);
      at = end + 1;
    }
  }
};

json examine(std::string const& url, std::vector<std::string> more = {}) {
  std::vector<std::string> words{"doctor", "--json", "--notices", "--database-url", url};
  words.insert(words.end(), more.begin(), more.end());
  auto const run = run_program(words);
  INFO(run.err);
  REQUIRE(run.status != fg::cli::usage);
  return json::parse(run.out);
}

json const* find(json const& findings, std::string const& grade, std::string const& subject,
                 std::string const& finding) {
  for (auto const& one : findings) {
    if (one["severity"] == grade &&
        one["subject"].get<std::string>().find(subject) != std::string::npos &&
        one["finding"].get<std::string>().find(finding) != std::string::npos) {
      return &one;
    }
  }
  return nullptr;
}

bool has(std::vector<fg::cli::diagnosis> const& found, severity grade, std::string const& subject,
         std::string const& finding) {
  for (auto const& one : found) {
    if (one.grade == grade && one.subject.find(subject) != std::string::npos &&
        one.finding.find(finding) != std::string::npos) {
      return true;
    }
  }
  return false;
}

struct fault {
  std::string plant;
  std::string grade;
  std::string subject;
  std::string finding;
  std::string mend = {};  // where the remedy is not SQL
  std::vector<std::string> arguments = {};
};

// KEEP: the database's name.
std::vector<fault> const& database_faults() {
  static std::vector<fault> const all{
      {"ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf()", "error", "setting fsync", "is off"},
      {"ALTER SYSTEM SET full_page_writes = off; SELECT pg_reload_conf()", "error",
       "setting full_page_writes", "is off"},
      {"ALTER SYSTEM SET synchronous_commit = off; SELECT pg_reload_conf()", "error",
       "setting synchronous_commit", "is off"},
      {"ALTER DATABASE KEEP SET synchronous_commit = off", "error", "database",
       "synchronous_commit is set to off"},
      {"ALTER ROLE keeper SET synchronous_commit = off", "error", "role keeper",
       "synchronous_commit is set to off"},
      {"ALTER DATABASE KEEP SET session_replication_role = replica", "error", "database",
       "session_replication_role is set to replica"},
      {"GRANT SET ON PARAMETER session_replication_role TO PUBLIC", "error", "PUBLIC",
       "may set session_replication_role"},
      {"ALTER DATABASE KEEP SET lock_timeout = '5ms'", "warning", "setting lock_timeout",
       "is 5 ms"},
      {"ALTER ROLE keeper SET idle_in_transaction_session_timeout = '500ms'", "warning",
       "setting idle_in_transaction_session_timeout", "is 500 ms"},
      {"ALTER ROLE keeper IN DATABASE KEEP SET statement_timeout = '999ms'", "warning",
       "setting statement_timeout", "is 999 ms"},
      {"ALTER SYSTEM SET autovacuum = off; SELECT pg_reload_conf()", "warning",
       "setting autovacuum", "is off"},
      {"ALTER SYSTEM SET deadlock_timeout = '10min'; SELECT pg_reload_conf()", "warning",
       "setting deadlock_timeout", "600000 ms"},
      {"ALTER DATABASE KEEP SET default_transaction_read_only = on", "warning",
       "setting default_transaction_read_only", "is on"},
      {"ALTER DATABASE KEEP SET default_transaction_isolation = 'serializable'", "notice",
       "setting default_transaction_isolation", "is serializable"},
      {"ALTER SYSTEM SET synchronous_standby_names = 'nobody'; SELECT pg_reload_conf()", "warning",
       "setting synchronous_standby_names", "no synchronous standby"},
      {"ALTER TABLE fenceguard.fence SET (autovacuum_enabled = off)", "warning", "fenceguard.fence",
       "autovacuum is switched off"},
      {"ALTER TABLE fenceguard.fence SET UNLOGGED", "error", "fenceguard.fence", "is unlogged"},
      {"UPDATE fenceguard.token_counter SET next = 1000000 * "
       "extract(epoch FROM clock_timestamp() + interval '2 days')",
       "warning", "fenceguard.token_counter", "hours ahead",
       "UPDATE fenceguard.token_counter SET next = 1000000"},
      {"UPDATE fenceguard.token_counter SET next = 9007199254740991", "error",
       "fenceguard.token_counter", "only 1 tokens are left",
       "UPDATE fenceguard.token_counter SET next = 1000000"},
      {"UPDATE fenceguard.server_state SET timeline = '0000000F'", "warning",
       "fenceguard.server_state", "promoted, restored or copied"},
      {"REVOKE pg_signal_backend FROM keeper", "notice", "role keeper", "cannot see or end"},
      {"ALTER FUNCTION fenceguard.raise_floor() SECURITY INVOKER", "error", "raise_floor",
       "not as the migrations made it", "ALTER FUNCTION fenceguard.raise_floor() SECURITY DEFINER"},
      {"DELETE FROM fenceguard.schema_version WHERE version = 9", "error", "9 (audit)",
       "not applied", "INSERT INTO fenceguard.schema_version(version, name) VALUES (9, 'audit')"},
      {"CREATE TABLE fenceguard.scratch (id int)", "warning", "scratch", "no migration made it",
       "DROP TABLE fenceguard.scratch"},
      {"ALTER TABLE account DISABLE TRIGGER fenceguard_update", "error", "account",
       "fenceguard_update is disabled"},
      {"DROP TRIGGER fenceguard_delete ON account", "error", "account",
       "fenceguard_delete is missing"},
      {"ALTER TABLE account ADD fencing_token bigint", "error", "account", "no guard"},
      {"SELECT fenceguard.reserve_tokens(1); BEGIN; SELECT fenceguard.claim('account/1', (SELECT "
       "next - 1 FROM fenceguard.token_counter), 'a'); PREPARE TRANSACTION 'claimed'",
       "warning", "prepared transaction claimed", "holds claims since"},
      {"BEGIN; CREATE TABLE slow (id int); PREPARE TRANSACTION 'slow one'",
       "warning",
       "prepared transaction slow one",
       "has been prepared since",
       "",
       {"--old-transaction", "0"}},
  };
  return all;
}

std::string named(std::string text, std::string const& name) {
  for (auto at = text.find("KEEP"); at != std::string::npos; at = text.find("KEEP")) {
    text.replace(at, 4, name);
  }
  return text;
}

}  // namespace

TEST_CASE("doctor is silent about a healthy database, and exits 0") {
  healthy_database const healthy;
  auto const run = run_program({"doctor", "--database-url", healthy.url});
  CHECK(run.out == "");
  CHECK(run.err == "");
  CHECK(run.status == fg::cli::done);
  CHECK(examine(healthy.url) == json::array());
}

TEST_CASE("doctor finds each planted fault, and its remedy mends it") {
  healthy_database const healthy;
  for (fault const& one : database_faults()) {
    CAPTURE(one.plant);
    healthy.execute(named(one.plant, healthy.db.name));
    auto const findings = examine(healthy.url, one.arguments);
    json const* const found = find(findings, one.grade, one.subject, one.finding);
    CAPTURE(findings.dump(1));
    REQUIRE(found != nullptr);
    CHECK_FALSE((*found)["reason"].get<std::string>().empty());
    std::string const remedy = one.mend.empty() ? (*found)["remedy"].get<std::string>() : one.mend;
    CAPTURE(remedy);
    healthy.execute(remedy);
    CHECK(examine(healthy.url) == json::array());
  }
}

TEST_CASE("doctor exits 1 for an error and for a warning, and 0 for notices alone") {
  healthy_database const healthy;
  auto const status = [&] { return run_program({"doctor", "--database-url", healthy.url}); };
  healthy.execute("ALTER TABLE fenceguard.fence SET UNLOGGED");
  CHECK(status().status == fg::cli::finding);
  CHECK(status().out.find("ALTER TABLE fenceguard.fence SET LOGGED;") != std::string::npos);
  healthy.execute("ALTER TABLE fenceguard.fence SET LOGGED");
  healthy.execute("ALTER DATABASE " + healthy.db.name + " SET lock_timeout = '5ms'");
  CHECK(status().status == fg::cli::finding);
  healthy.execute("ALTER DATABASE " + healthy.db.name + " RESET lock_timeout");
  healthy.execute("ALTER DATABASE " + healthy.db.name +
                  " SET default_transaction_isolation = 'serializable'");
  CHECK(status().status == fg::cli::done);
  CHECK(status().out == "");
  CHECK(run_program({"doctor", "--notices", "--database-url", healthy.url})
            .out.find("default_transaction_isolation") != std::string::npos);
}

TEST_CASE("doctor: a counter that an old snapshot has kept large") {
  healthy_database const healthy;
  server().query(
      "DO $$ BEGIN FOR i IN 1..9000 LOOP UPDATE fenceguard.token_counter SET next = next + 1; END "
      "LOOP; END $$",
      healthy.db.name);
  auto const findings = examine(healthy.url);
  json const* const found = find(findings, "notice", "fenceguard.token_counter", "one row on");
  REQUIRE(found != nullptr);
  healthy.execute((*found)["remedy"].get<std::string>());
  CHECK(examine(healthy.url) == json::array());
}

TEST_CASE("doctor: a claim that has been open for long, and evict as its remedy") {
  healthy_database const healthy;
  auto const token = server().value("SELECT fenceguard.reserve_tokens(1)", healthy.db.name);
  std::string const claim = "SELECT fenceguard.claim('account/42', " + token + ", 'holder-a')";
  server().query(claim, healthy.db.name);  // so that the resource's name is visible

  pqxx::connection connection{server().url(healthy.db.name, "keeper")};
  pqxx::work holder{connection};
  holder.exec(claim);
  CHECK(find(examine(healthy.url), "warning", "account/42", "has claimed it") == nullptr);
  auto const findings = examine(healthy.url, {"--old-transaction", "0"});
  json const* const found =
      find(findings, "warning", "resource account/42", "under token " + token);
  REQUIRE(found != nullptr);
  healthy.execute((*found)["remedy"].get<std::string>());
  CHECK_THROWS_AS(holder.exec("SELECT 1"), pqxx::broken_connection);
}

TEST_CASE("doctor: a database without the schema") {
  auto const db = server().fresh_database();
  auto const url = server().url(db.name, "postgres");
  CHECK(run_program({"doctor", "--database-url", url}).status == fg::cli::finding);
  auto const findings = examine(url);
  json const* const found = find(findings, "error", "1 (schema)", "not applied");
  REQUIRE(found != nullptr);
  CHECK((*found)["remedy"] == "fenceguard migrate");
}

TEST_CASE("doctor: a superuser is warned, a role that may not look is told so") {
  healthy_database const healthy;
  auto const findings = examine(healthy.db.url);
  CHECK(find(findings, "warning", "role postgres", "is a superuser") != nullptr);
  CHECK(findings.size() == 1);

  server().query(
      "DO $$ BEGIN CREATE ROLE stranger LOGIN; EXCEPTION WHEN duplicate_object THEN END $$");
  auto const run =
      run_program({"doctor", "--database-url", server().url(healthy.db.name, "stranger")});
  CHECK(run.status == fg::cli::finding);
  CHECK(run.out.find("fenceguard.audit: could not be checked") != std::string::npos);
}

TEST_CASE("doctor: standbys that nobody waits for; the standby itself is the wrong server") {
  fg::test_servers::postgres_server primary{{.durable = true}};
  auto const db = primary.fresh_database();
  REQUIRE(run_program({"migrate", "--database-url", db.url}).status == fg::cli::done);
  auto standby = fg::test_servers::postgres_server::standby_of(primary);
  CHECK(find(examine(db.url), "notice", "synchronous_standby_names", "1 standby") != nullptr);
  auto const findings = examine(standby.url(db.name));
  CHECK(find(findings, "error", "server", "is a standby") != nullptr);
}

TEST_CASE("doctor: a pooler is told from a direct connection") {
  healthy_database const healthy;
  CHECK(find(examine(healthy.db.url), "notice", "connection", "pooler") == nullptr);
  {
    fg::test_servers::pgbouncer_server const pooler{server()};
    CHECK(find(examine(pooler.url(healthy.db.name)), "notice", "connection", "transaction mode") !=
          nullptr);
  }
  fg::test_servers::pgbouncer_server const pooler{server(), {{"pool_mode", "statement"}}};
  CHECK(find(examine(pooler.url(healthy.db.name)), "error", "connection", "statement mode") !=
        nullptr);
}

TEST_CASE("doctor: clocks that differ by more than the tolerance") {
  healthy_database const healthy;
  for (auto const offset : {-6s, 6s}) {
    fg::cli::examination const how{
        .now = [offset] { return std::chrono::system_clock::now() + offset; }};
    CHECK(has(fg::cli::check_database(healthy.url, how), severity::warning, "clock",
              offset < 0s ? "ahead of this machine" : "behind this machine"));
  }
  CHECK(fg::cli::check_database(healthy.url).empty());
}

TEST_CASE("the time that a reading took counts as tolerance") {
  std::chrono::system_clock::time_point const start{};
  CHECK_FALSE(fg::cli::compare_clocks({}, start, start + 6s, start).empty());
  CHECK(fg::cli::compare_clocks({}, start, start + 8s, start + 4s).empty());
  CHECK_FALSE(fg::cli::compare_clocks({}, start, start + 10s, start + 4s).empty());
}

TEST_CASE("versions of PostgreSQL: 12 is too old, 19 has not been tried") {
  using fg::cli::judge_postgres_version;
  CHECK(has(judge_postgres_version(120022), severity::error, "server", "PostgreSQL 12.22"));
  CHECK(judge_postgres_version(130000).empty());
  CHECK(judge_postgres_version(180004).empty());
  CHECK(has(judge_postgres_version(190000), severity::notice, "server", "PostgreSQL 19.0"));
}

TEST_CASE("doctor: servers that are not there, exit status 3, and the other is looked at") {
  healthy_database const healthy;
  healthy.execute("ALTER TABLE fenceguard.fence SET UNLOGGED");
  auto const half =
      run_program({"doctor", "--database-url", healthy.url, "--redis-url", "redis://127.0.0.1:1"});
  CHECK(half.status == fg::cli::unreachable);
  CHECK(half.err.find("Redis") != std::string::npos);
  CHECK(half.out.find("is unlogged") != std::string::npos);
  CHECK(run_program({"doctor", "--database-url", "postgresql://nobody@127.0.0.1:1/none"}).status ==
        fg::cli::unreachable);
  CHECK(run_program({"doctor", "--database-url", healthy.url, "--redis-url", "http://x"}).status ==
        fg::cli::usage);
}
