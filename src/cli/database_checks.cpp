#include "cli/database_checks.hpp"

#include <fenceguard/postgres/migrate.hpp>
#include <stdexcept>

#include "cli/database.hpp"
#include "database_check_files.hpp"
#include "postgres/libpqxx.hpp"

namespace fenceguard::cli {
namespace {

using findings = std::vector<diagnosis>;
using postgres::difference;

void append(findings& to, findings more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

std::string check_file(std::string_view name) {
  for (auto const& file : embedded_checks::embedded_files()) {
    if (file.name == name) return std::string{file.text};
  }
  throw std::logic_error{"check " + std::string{name} + " is not embedded"};
}

severity severity_of(std::string const& word) {
  if (word == "error") return severity::error;
  return word == "warning" ? severity::warning : severity::notice;
}

/// Runs a look; where the server denies it, that is the finding.
template <class Look>
findings or_denied(std::string const& subject, Look&& look) try {
  return look();
} catch (pqxx::sql_error const& failed) {
  constexpr char const* insufficient_privilege = "42501";
  if (postgres::libpqxx::sqlstate_of(failed) != insufficient_privilege) throw;
  return {{severity::warning, subject, "could not be checked", message_of(failed),
           "run doctor as a role that has been given sql/roles/operator.sql", true}};
}

findings ask(database& db, std::string const& subject, std::string const& sql,
             postgres::parameters const& args = {}) {
  return or_denied(subject, [&] {
    findings found;
    for (auto const& row : db.exec(sql, args)) {
      found.push_back({severity_of(row[0].as<std::string>()), row[1].as<std::string>(),
                       row[2].as<std::string>(), row[3].as<std::string>(),
                       row[4].as<std::string>()});
    }
    return found;
  });
}

diagnosis schema_diagnosis(difference const& from) {
  diagnosis found{severity::error, "schema: " + from.subject, from.detail,
                  "the guarantees hold for the schema that the migrations make",
                  "take the statement that made it from `fenceguard migrations export`"};
  switch (from.what) {
    case difference::kind::missing_version:
      found.remedy = "fenceguard migrate";
      break;
    case difference::kind::newer_version:
      found.grade = severity::warning;
      found.remedy = "bring fenceguard up to the version that migrated the database";
      break;
    case difference::kind::changed_migration:
      found.grade = severity::warning;
      found.remedy = "find out which file was applied; `fenceguard migrations list` has the sums";
      break;
    case difference::kind::unexpected:
      found.grade = severity::warning;
      found.remedy = "drop it, or move it to a schema of its own";
      break;
    case difference::kind::missing:
    case difference::kind::altered:
      break;
  }
  return found;
}

findings check_schema(std::string const& url) {
  return or_denied("schema", [&] {
    findings found;
    for (auto const& one : postgres::verify(url)) found.push_back(schema_diagnosis(one));
    return found;
  });
}

findings check_clock(database& db, examination const& how) {
  using std::chrono::duration_cast;
  using std::chrono::system_clock;
  auto const before = how.now();
  auto const microseconds =
      db.exec("SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint")[0][0]
          .as<std::int64_t>();
  auto const after = how.now();
  system_clock::time_point const server{
      duration_cast<system_clock::duration>(std::chrono::microseconds{microseconds})};
  return compare_clocks(how, before, server, after);
}

int serving_process(database& db) {
  return db.exec("SELECT pg_catalog.pg_backend_pid()")[0][0].as<int>();
}

bool is_transaction_refused(database& db) try {
  // In two messages: a block that ends within one passes in statement mode too.
  postgres::libpqxx::send_message(db.transaction(), "BEGIN");
  postgres::libpqxx::send_message(db.transaction(), "ROLLBACK");
  return false;
} catch (pqxx::broken_connection const&) {
  return true;  // PgBouncer closes the connection of a client that tries in statement mode
} catch (pqxx::sql_error const&) {
  return true;
}

/// A pooler gives its clients process numbers of its own. Two clients that are served by one
/// process, while both are connected, share it by the transaction or by the statement.
findings check_pooler(database& db, std::string const& url) {
  if (serving_process(db) == db.connection().backendpid()) return {};
  database other{url};
  if (serving_process(db) != serving_process(other)) {
    return {{severity::notice, "connection", "goes through a pooler",
             "two connections had two sessions of the server: as in session mode, or by chance",
             ""}};
  }
  if (is_transaction_refused(other)) {
    return {{severity::error, "connection", "goes through a pooler in statement mode",
             "a guarded transaction has several statements and cannot be opened there",
             "pool_mode = transaction or session"}};
  }
  return {{severity::notice, "connection", "goes through a pooler in transaction mode",
           "guarded transactions work; LISTEN does not, SET and session advisory locks leak to the "
           "next client, and named prepared statements need PgBouncer 1.21",
           "keep to transaction-local settings (SET LOCAL)"}};
}

/// A relation that is missing is among the differences of the schema already. Asked of the
/// catalogue, which answers those who may not use the schema too.
bool is_there(database& db, std::string const& relation) {
  return db
      .exec(
          "SELECT EXISTS (SELECT FROM pg_catalog.pg_class"
          " WHERE relnamespace = pg_catalog.to_regnamespace('fenceguard') AND relname = $1)",
          {relation})[0][0]
      .as<bool>();
}

findings check_relations(database& db, examination const& how) {
  struct look {
    char const* relation;
    std::string sql;
    postgres::parameters args{};
  };
  std::vector<look> const looks{
      {"fence", check_file("tables.sql")},
      {"token_counter", check_file("counter.sql")},
      {"server_state", check_file("server_state.sql")},
      {"in_flight", check_file("open_claims.sql"), {how.old_transaction.count()}},
      {"audit", "SELECT severity, subject, finding, reason, remedy FROM fenceguard.audit"}};
  findings found;
  for (look const& one : looks) {
    if (!is_there(db, one.relation)) continue;
    append(found, ask(db, std::string{"fenceguard."} + one.relation, one.sql, one.args));
  }
  return found;
}

}  // namespace

findings judge_postgres_version(int number) {
  constexpr int oldest = 130000;
  constexpr int beyond_newest = 190000;
  std::string const text = std::to_string(number / 10000) + "." + std::to_string(number % 10000);
  if (number < oldest) {
    return {{severity::error, "server", "is PostgreSQL " + text,
             "fenceguard needs 13 or later: 64-bit transaction numbers in SQL",
             "upgrade to a version that is maintained"}};
  }
  if (number >= beyond_newest) {
    return {{severity::notice, "server", "is PostgreSQL " + text,
             "fenceguard has been tried on 13 to 18", "run its tests on this version first"}};
  }
  return {};
}

findings check_database(std::string const& url, examination const& how) {
  database db{url};
  findings found = judge_postgres_version(
      db.exec("SELECT current_setting('server_version_num')::int")[0][0].as<int>());
  append(found, ask(db, "settings", check_file("settings.sql")));
  append(found, ask(db, "replication", check_file("replication.sql")));
  append(found,
         ask(db, "transactions", check_file("transactions.sql"), {how.old_transaction.count()}));
  append(found, ask(db, "roles", check_file("roles.sql")));
  append(found, check_clock(db, how));
  append(found, check_pooler(db, url));
  append(found, check_schema(url));

  append(found, check_relations(db, how));
  return found;
}

}  // namespace fenceguard::cli
