#include <memory>
#include <ostream>

#include "cli/command_line.hpp"
#include "cli/database.hpp"

namespace fenceguard::cli {
namespace {

int print_rows(session& with, pqxx::result const& rows, std::string const& none) {
  add_rows(with.out, rows);
  with.out.print(*with.text_out, with.json, none);
  return done;
}

int show_all(session& with) {
  database db{with.database_url};
  db.require_schema();
  return print_rows(
      with,
      db.exec("SELECT (SELECT max(version) FROM fenceguard.schema_version) AS schema_version,"
              " (SELECT count(*) FROM fenceguard.fence) AS fences,"
              " (SELECT count(*) FROM fenceguard.idempotency) AS stored_answers,"
              " (SELECT count(*) FROM fenceguard.in_flight) AS open_claims,"
              " (SELECT count(*) FROM fenceguard.protected_tables) AS protected_tables,"
              " (SELECT next FROM fenceguard.token_counter) AS next_token,"
              " (SELECT floor FROM fenceguard.server_state) AS floor"),
      "");
}

int show_resource(session& with, std::string const& resource) {
  database db{with.database_url};
  db.require_schema();
  auto const rows = db.exec(
      "SELECT f.resource, f.token, f.holder, f.claimed_at, i.pid AS open_in, i.state"
      " FROM fenceguard.fence f LEFT JOIN fenceguard.in_flight i ON i.resource = f.resource"
      " WHERE f.resource = $1",
      {resource});
  print_rows(with, rows, "No grant has claimed " + resource + " yet.");
  return rows.empty() ? finding : done;
}

/// Functions that change a table give back the statements that they run, or would run.
int change_table(session& with, pqxx::result const& statements) {
  if (with.json) return print_rows(with, statements, "");
  for (auto const& row : statements) *with.text_out << row[0].as<std::string>() << '\n';
  return done;
}

int evict(session& with, std::string const& resource, std::int64_t below) {
  constexpr std::int64_t above_all = 9007199254740992;  // 2^53, one past the last token
  database db{with.database_url};
  db.require_schema();
  auto const ended = db.exec("SELECT pid, token FROM fenceguard.evict($1, $2)",
                             {resource, below > 0 ? below : above_all});
  print_rows(with, ended, "No open claim of " + resource + " was ended.");
  // A claim that must not be ended is left alone, and the server says so.
  for (auto const& warning : db.notices()) *with.text_err << warning;
  return db.notices().empty() ? done : finding;
}

int forget(session& with, std::string const& age, int batch) {
  database db{with.database_url};
  db.require_schema();
  return print_rows(with,
                    db.exec("SELECT fenceguard.forget_fences($1::interval, $2) AS fences,"
                            " fenceguard.forget_keys($1::interval, $2) AS stored_answers,"
                            " fenceguard.forget_leases($1::interval, $2) AS leases",
                            {age, batch}),
                    "");
}

void add_status(CLI::App& program, session& with) {
  auto* const command = program.add_subcommand("status", "Show the fences, or one resource's");
  auto const resource = std::make_shared<std::string>();
  command->add_option("resource", *resource, "For example account/42");
  command->callback([&with, resource] {
    with.chosen = [&with, resource] {
      return resource->empty() ? show_all(with) : show_resource(with, *resource);
    };
  });
}

/// One command that calls one function of the schema with a table's name.
void add_table_command(CLI::App& program, session& with, std::string const& name,
                       std::string const& help, std::string const& function, bool takes_template) {
  auto* const command = program.add_subcommand(name, help);
  auto const table = std::make_shared<std::string>();
  auto const pattern = std::make_shared<std::string>();
  auto const dry_run = std::make_shared<bool>(false);
  command->add_option("table", *table, "As in SQL, for example shop.orders")->required();
  if (takes_template) {
    command->add_option("template", *pattern, "For example order/{shop}/{number}")->required();
  }
  command->add_flag("--dry-run", *dry_run, "Print the statements and change nothing");
  command->callback([&with, table, pattern, dry_run, function, takes_template] {
    with.chosen = [&with, table, pattern, dry_run, function, takes_template] {
      database db{with.database_url};
      db.require_schema();
      std::string const call = "SELECT * FROM fenceguard." + function + "($1::text::regclass, ";
      return change_table(with,
                          takes_template
                              ? db.exec(call + "$2, $3) AS statement", {*table, *pattern, *dry_run})
                              : db.exec(call + "$2) AS statement", {*table, *dry_run}));
    };
  });
}

void add_operations(CLI::App& program, session& with) {
  auto* const ending = program.add_subcommand("evict", "End older open claims of a resource");
  auto const resource = std::make_shared<std::string>();
  auto const below = std::make_shared<std::int64_t>(0);
  ending->add_option("resource", *resource)->required();
  ending->add_option("--below", *below, "Only claims with a lower token than this (default: all)")
      ->check(CLI::PositiveNumber);
  ending->callback([&with, resource, below] {
    with.chosen = [&with, resource, below] { return evict(with, *resource, *below); };
  });

  auto* const forgetting = program.add_subcommand(
      "forget", "Delete old fences, stored answers and rows of ended leases");
  auto const age = std::make_shared<std::string>("30 days");
  auto const batch = std::make_shared<int>(10'000);
  forgetting->add_option("--older-than", *age, "A PostgreSQL interval")->capture_default_str();
  forgetting->add_option("--batch", *batch, "At most this many of each")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  forgetting->callback([&with, age, batch] {
    with.chosen = [&with, age, batch] { return forget(with, *age, *batch); };
  });
}

}  // namespace

void add_database_commands(CLI::App& program, session& with) {
  add_status(program, with);
  add_table_command(program, with, "protect", "Refuse unclaimed writes to a table", "protect",
                    true);
  add_table_command(program, with, "unprotect", "Take the protection off", "unprotect", false);
  add_table_command(program, with, "add-row-fence", "Give a table a fencing_token column and guard",
                    "add_row_fence", false);
  add_table_command(program, with, "remove-row-fence", "Take the column and its guard off",
                    "remove_row_fence", false);
  add_operations(program, with);
}

}  // namespace fenceguard::cli
