#include <memory>
#include <ostream>
#include <pqxx/pqxx>

#include "cli/command_line.hpp"

namespace fenceguard::cli {
namespace {

/// Opens a connection and says what to do where the schema is missing.
class database {
 public:
  explicit database(session const& with) : connection_{with.database_url}, tx_{connection_} {
    auto const found = tx_.exec("SELECT to_regnamespace('fenceguard') IS NOT NULL");
    if (!found[0][0].as<bool>()) {
      throw std::runtime_error{"the database has no schema fenceguard; run: fenceguard migrate"};
    }
  }

  template <class... Args>
  pqxx::result exec(std::string const& sql, Args&&... args) {
    return tx_.exec_params(sql, std::forward<Args>(args)...);
  }

 private:
  pqxx::connection connection_;
  pqxx::nontransaction tx_;
};

nlohmann::ordered_json value_of(pqxx::field const& field) {
  constexpr pqxx::oid bool_type = 16;
  constexpr pqxx::oid int8_type = 20;
  constexpr pqxx::oid int4_type = 23;
  if (field.is_null()) return nullptr;
  if (field.type() == bool_type) return field.as<bool>();
  if (field.type() == int8_type || field.type() == int4_type) return field.as<std::int64_t>();
  return field.as<std::string>();
}

void add_rows(report& out, pqxx::result const& rows) {
  for (auto const& row : rows) {
    std::vector<std::pair<std::string, nlohmann::ordered_json>> line;
    for (auto const& field : row) line.emplace_back(field.name(), value_of(field));
    out.add(line);
  }
}

int print_rows(session& with, pqxx::result const& rows, std::string const& none) {
  add_rows(with.out, rows);
  with.out.print(*with.text_out, with.json, none);
  return done;
}

int show_all(session& with) {
  database db{with};
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
  database db{with};
  auto const rows = db.exec(
      "SELECT f.resource, f.token, f.holder, f.claimed_at, i.pid AS open_in, i.state"
      " FROM fenceguard.fence f LEFT JOIN fenceguard.in_flight i ON i.resource = f.resource"
      " WHERE f.resource = $1",
      resource);
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
  database db{with};
  auto const ended =
      below > 0 ? db.exec("SELECT * FROM fenceguard.evict($1, $2)", resource, below)
                : db.exec("SELECT * FROM fenceguard.evict($1, 9007199254740991)", resource);
  return print_rows(with, ended, "No open claim of " + resource + " had to be ended.");
}

int forget(session& with, std::string const& age, int batch) {
  database db{with};
  return print_rows(with,
                    db.exec("SELECT fenceguard.forget_fences($1::interval, $2) AS fences,"
                            " fenceguard.forget_keys($1::interval, $2) AS stored_answers",
                            age, batch),
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
      database db{with};
      std::string const call = "SELECT * FROM fenceguard." + function + "($1::text::regclass, ";
      return change_table(
          with, takes_template ? db.exec(call + "$2, $3) AS statement", *table, *pattern, *dry_run)
                               : db.exec(call + "$2) AS statement", *table, *dry_run));
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

  auto* const forgetting = program.add_subcommand("forget", "Delete old fences and stored answers");
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
