#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <pqxx/pqxx>

#include "cli/program.hpp"
#include "servers/postgres_server.hpp"
#include "servers/wait.hpp"

namespace fg = fenceguard;
using nlohmann::json;

namespace {

fg::test_servers::postgres_server& server() {
  static fg::test_servers::postgres_server one{
      {.configuration = {{"max_prepared_transactions", "4"}}}};
  return one;
}

/// A migrated database with a table `account` of one row.
fg::test_servers::test_database account_database() {
  auto db = server().fresh_database();
  REQUIRE(run_program({"migrate", "--database-url", db.url}).status == fg::cli::done);
  server().query("CREATE TABLE account (id int PRIMARY KEY, balance int)", db.name);
  server().query("INSERT INTO account VALUES (42, 1000)", db.name);
  return db;
}

}  // namespace

TEST_CASE("protect, then an unclaimed write is refused; unprotect, then it is not") {
  auto const db = account_database();
  REQUIRE(run_program({"protect", "account", "account/{id}", "--database-url", db.url}).status ==
          fg::cli::done);
  CHECK_THROWS_WITH_AS(server().query("UPDATE account SET balance = 0", db.name),
                       doctest::Contains("account/42"), std::runtime_error);
  REQUIRE(run_program({"unprotect", "account", "--database-url", db.url}).status == fg::cli::done);
  server().query("UPDATE account SET balance = 1", db.name);
  CHECK(server().value("SELECT balance FROM account", db.name) == "1");
}

TEST_CASE("protect --dry-run prints DDL and changes nothing") {
  auto const db = account_database();
  auto const run =
      run_program({"protect", "account", "account/{id}", "--dry-run", "--database-url", db.url});
  CHECK(run.status == fg::cli::done);
  CHECK(run.out.find("CREATE TRIGGER") != std::string::npos);
  server().query("UPDATE account SET balance = 1", db.name);
  CHECK(server().value("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal", db.name) == "0");
}

TEST_CASE("protect: a column that is not there is a refusal, exit status 1") {
  auto const db = account_database();
  auto const run =
      run_program({"protect", "account", "account/{nowhere}", "--database-url", db.url});
  CHECK(run.status == fg::cli::finding);
  CHECK(run.err.find("nowhere") != std::string::npos);
}

TEST_CASE("add-row-fence and remove-row-fence") {
  auto const db = account_database();
  REQUIRE(run_program({"add-row-fence", "account", "--database-url", db.url}).status ==
          fg::cli::done);
  CHECK(server().value("SELECT fencing_token FROM account", db.name) == "0");
  CHECK_THROWS_AS(server().query("UPDATE account SET balance = 0", db.name), std::runtime_error);
  REQUIRE(run_program({"remove-row-fence", "account", "--database-url", db.url}).status ==
          fg::cli::done);
  server().query("UPDATE account SET balance = 0", db.name);
}

TEST_CASE("status of a resource: its fence, or exit status 1 where nobody has claimed it") {
  auto const db = account_database();
  CHECK(run_program({"status", "account/42", "--database-url", db.url}).status == fg::cli::finding);
  auto const token = server().value("SELECT fenceguard.reserve_tokens(1)", db.name);
  server().query("SELECT fenceguard.claim('account/42', " + token + ", 'holder-a')", db.name);
  auto const run = run_program({"status", "account/42", "--json", "--database-url", db.url});
  CHECK(run.status == fg::cli::done);
  auto const rows = json::parse(run.out);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0]["token"] == std::stoll(token));
  CHECK(rows[0]["holder"] == "holder-a");
}

TEST_CASE("status without a resource counts") {
  auto const db = account_database();
  auto const rows = json::parse(run_program({"status", "--json", "--database-url", db.url}).out);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0]["fences"] == 0);
  CHECK(rows[0]["protected_tables"] == 0);
  REQUIRE(run_program({"protect", "account", "account/{id}", "--database-url", db.url}).status ==
          fg::cli::done);
  CHECK(json::parse(run_program({"status", "--json", "--database-url", db.url})
                        .out)[0]["protected_tables"] == 1);
}

TEST_CASE("a database without the schema names the command to run") {
  auto const db = server().fresh_database();
  auto const run = run_program({"status", "--database-url", db.url});
  CHECK(run.status == fg::cli::finding);
  CHECK(run.err.find("fenceguard migrate") != std::string::npos);
}

TEST_CASE("evict: nothing to end is done as well") {
  auto const db = account_database();
  auto const run = run_program({"evict", "account/42", "--database-url", db.url});
  CHECK(run.status == fg::cli::done);
  CHECK(run.out.find("No open claim") != std::string::npos);
}

TEST_CASE("evict ends an open claim and names its process; never one at or above --below") {
  auto const db = account_database();
  auto const token = server().value("SELECT fenceguard.reserve_tokens(1)", db.name);
  pqxx::connection connection{db.url};
  pqxx::work holder{connection};
  holder.exec("SELECT fenceguard.claim('account/42', " + token + ", 'holder-a')");
  holder.exec("UPDATE account SET balance = 7");

  auto const spared = json::parse(
      run_program({"evict", "account/42", "--below", token, "--json", "--database-url", db.url})
          .out);
  CHECK(spared.empty());
  CHECK(server().value("SELECT count(*) FROM fenceguard.in_flight", db.name) == "1");

  auto const run = run_program({"evict", "account/42", "--json", "--database-url", db.url});
  CHECK(run.status == fg::cli::done);
  auto const ended = json::parse(run.out);
  REQUIRE(ended.size() == 1);
  CHECK(ended[0]["pid"] == connection.backendpid());
  CHECK(ended[0]["token"] == std::stoll(token));
  CHECK_THROWS_AS(holder.exec("SELECT 1"), pqxx::broken_connection);
  fg::test_servers::wait_until("claim ended", [&] {
    return server().value("SELECT count(*) FROM fenceguard.in_flight", db.name) == "0";
  });
  CHECK(server().value("SELECT balance FROM account", db.name) == "1000");
}

TEST_CASE("evict: a prepared transaction cannot be ended, is named, and the exit status is 1") {
  auto const db = account_database();
  auto const token = server().value("SELECT fenceguard.reserve_tokens(1)", db.name);
  server().query("BEGIN; SELECT fenceguard.claim('account/42', " + token +
                     ", 'holder-a'); PREPARE TRANSACTION 'left-behind'",
                 db.name);
  auto const run = run_program({"evict", "account/42", "--database-url", db.url});
  CHECK(run.status == fg::cli::finding);
  CHECK(run.err.find("left-behind") != std::string::npos);
  server().query("ROLLBACK PREPARED 'left-behind'", db.name);
}

TEST_CASE("forget deletes old fences, and rows of leases that have ended") {
  auto const db = account_database();
  server().query(
      "INSERT INTO fenceguard.lease (resource, holder, since, expires_at, label) VALUES"
      " ('over', 'h', now() - interval '3 h', now() - interval '2 h', ''),"
      " ('held', 'h', now(), now() + interval '2 h', '')",
      db.name);
  auto const token = server().value("SELECT fenceguard.reserve_tokens(1)", db.name);
  server().query("SELECT fenceguard.claim('account/42', " + token + ", 'holder-a')", db.name);
  auto const kept = json::parse(
      run_program({"forget", "--older-than", "1 day", "--json", "--database-url", db.url}).out);
  CHECK(kept[0]["fences"] == 0);
  CHECK(kept[0]["leases"] == 0);
  auto const gone = json::parse(
      run_program({"forget", "--older-than", "0 s", "--json", "--database-url", db.url}).out);
  CHECK(gone[0]["fences"] == 1);
  CHECK(gone[0]["leases"] == 1);
  CHECK(server().value("SELECT resource FROM fenceguard.lease", db.name) == "held");
}

TEST_CASE("forget: what is no interval is refused and deletes nothing; a batch of none is misuse") {
  auto const db = account_database();
  auto const token = server().value("SELECT fenceguard.reserve_tokens(1)", db.name);
  server().query("SELECT fenceguard.claim('account/42', " + token + ", 'holder-a')", db.name);
  auto const run = run_program({"forget", "--older-than", "a while", "--database-url", db.url});
  CHECK(run.status == fg::cli::finding);
  CHECK(run.err.find("a while") != std::string::npos);
  CHECK(run_program({"forget", "--batch", "0", "--database-url", db.url}).status == fg::cli::usage);
  CHECK(server().value("SELECT count(*) FROM fenceguard.fence", db.name) == "1");
}

TEST_CASE("commands on a server that is not there: exit status 3") {
  for (std::vector<std::string> words : {std::vector<std::string>{"status"},
                                         {"forget"},
                                         {"evict", "account/42"},
                                         {"protect", "account", "account/{id}"}}) {
    CAPTURE(words[0]);
    words.insert(words.end(), {"--database-url", "postgresql://nobody@127.0.0.1:1/none"});
    CHECK(run_program(words).status == fg::cli::unreachable);
  }
}
