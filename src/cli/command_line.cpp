#include "cli/command_line.hpp"

#include <fenceguard/core/errors.hpp>
#include <ostream>
#include <pqxx/pqxx>

namespace fenceguard::cli {
namespace {

void add_common_options(CLI::App& program, session& with) {
  program
      .add_option("--database-url", with.database_url,
                  "PostgreSQL connection string (default: libpq's own variables)")
      ->envname("FENCEGUARD_DATABASE_URL");
  program.add_option("--redis-url", with.redis_url, "Redis URL")->envname("FENCEGUARD_REDIS_URL");
  program.add_flag("--json", with.json, "Print JSON");
  program.fallthrough();  // so that the options may also follow the command
  program.require_subcommand(1);
  program.set_version_flag("--version", FENCEGUARD_VERSION);
  program.footer(
      "Exit status: 0 done, 1 a finding or a refusal, 2 wrong usage, 3 a server was not reached.");
}

int run_chosen(session const& with, std::ostream& err) try {
  return with.chosen();
} catch (invalid_request const& bad) {
  err << "fenceguard: " << message_of(bad) << '\n';
  return usage;
} catch (lease_store_unavailable const& failed) {
  err << "fenceguard: " << message_of(failed) << '\n';
  return unreachable;
} catch (token_source_unavailable const& failed) {
  err << "fenceguard: " << message_of(failed) << '\n';
  return unreachable;
} catch (pqxx::broken_connection const& failed) {
  err << "fenceguard: cannot reach PostgreSQL: " << message_of(failed) << '\n';
  return unreachable;
} catch (std::exception const& failed) {
  err << "fenceguard: " << message_of(failed) << '\n';
  return finding;
}

}  // namespace

std::string message_of(std::exception const& failed) {
  std::string message = failed.what();
  while (!message.empty() && message.back() == '\n') message.pop_back();
  return message;
}

int run(int argc, char const* const* argv, std::ostream& out, std::ostream& err) {
  CLI::App program{"fenceguard: PostgreSQL refuses writes from a stale lock holder", "fenceguard"};
  session with;
  with.text_out = &out;
  with.text_err = &err;
  add_common_options(program, with);
  add_migration_commands(program, with);
  add_database_commands(program, with);
  add_lease_commands(program, with);
  add_doctor(program, with);
  try {
    program.parse(argc, argv);
  } catch (CLI::ParseError const& stop) {
    return program.exit(stop, out, err) == 0 ? done : usage;
  }
  return run_chosen(with, err);
}

}  // namespace fenceguard::cli
