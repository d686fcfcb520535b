#include <algorithm>
#include <charconv>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/migrate.hpp>
#include <stdexcept>

#include "migration_checksums.hpp"
#include "migration_files.hpp"
#include "postgres/libpqxx.hpp"
#include "postgres/schema_version.hpp"
#include "postgres/server_errors.hpp"

namespace fenceguard::postgres {
namespace {

std::string_view embedded(std::string const& name) {
  for (auto const& file : sql::embedded_files()) {
    if (file.name == name) return file.text;
  }
  throw std::logic_error{"the library was built without " + name};
}

std::vector<migration> read_migrations() {
  std::vector<migration> all;
  for (auto const& [full_name, sha256] : sql::migration_checksums) {
    std::string_view const name = full_name.substr(full_name.find('_') + 1);
    int version = 0;
    std::from_chars(full_name.data(), full_name.data() + full_name.find('_'), version);
    if (version != static_cast<int>(all.size()) + 1) {
      throw std::logic_error{"migrations are not numbered without a gap: " +
                             std::string{full_name}};
    }
    all.push_back({.version = version,
                   .name = name,
                   .up = embedded(std::string{full_name} + ".up.sql"),
                   .down = embedded(std::string{full_name} + ".down.sql"),
                   .checksum = std::string{sha256}});
  }
  return all;
}

// The file without its last COMMIT, so that the checksum is stored in the same transaction.
std::string without_commit(migration const& step) {
  constexpr std::string_view commit = "COMMIT;";
  std::size_t const at = step.up.rfind(commit);
  if (at == std::string_view::npos) {
    throw std::logic_error{"migration " + std::string{step.name} + " does not end with COMMIT"};
  }
  return std::string{step.up.substr(0, at)};
}

constexpr char const* already_applied = "42710";
constexpr char const* not_the_newest = "55000";

// Runs one step. False where another migrator was quicker.
bool run_step(pqxx::transaction_base& with, std::string const& message, char const* overtaken) {
  try {
    libpqxx::send_message(with, message);
    return true;
  } catch (std::exception const& failed) {
    std::string const sqlstate = libpqxx::sqlstate_of(failed);
    if (libpqxx::connection_of(with).is_open()) libpqxx::send_message(with, "ROLLBACK");
    if (sqlstate == overtaken) return false;
    throw;
  }
}

std::string up_message(pqxx::transaction_base& with, migration const& step) {
  return without_commit(step) + "UPDATE fenceguard.schema_version SET checksum = " +
         libpqxx::quoted(libpqxx::connection_of(with), step.checksum) +
         " WHERE version = " + std::to_string(step.version) + ";\nCOMMIT;";
}

int newest_version() { return static_cast<int>(migrations().size()); }

void require_known(int version) {
  if (version < 0 || version > newest_version()) {
    throw invalid_request{"there is no schema version " + std::to_string(version) +
                          ": this library knows 0 to " + std::to_string(newest_version())};
  }
}

}  // namespace

std::vector<migration> const& migrations() {
  static std::vector<migration> const all = read_migrations();
  return all;
}

std::optional<int> schema_version(pqxx::transaction_base& with) {
  auto const there = libpqxx::send_message(
      with, "SELECT pg_catalog.to_regclass('fenceguard.schema_version') IS NOT NULL");
  if (!there[0][0].as<bool>()) return std::nullopt;
  auto const rows = libpqxx::send_message(
      with, "SELECT coalesce(max(version), 0) FROM fenceguard.schema_version");
  return rows[0][0].as<int>();
}

std::size_t migrate(std::string const& database_url, std::optional<int> version) {
  int const target = version.value_or(newest_version());
  require_known(target);
  pqxx::connection db{database_url};
  pqxx::nontransaction with{db, "fenceguard"};
  std::size_t applied = 0;
  for (int refused_at = -1;;) {
    int const current = schema_version(with).value_or(0);
    if (current > newest_version()) {
      throw schema_mismatch{"the database has schema version " + std::to_string(current) +
                            ", this library knows " + std::to_string(newest_version()) +
                            " at most: use a newer fenceguard"};
    }
    if (current >= target) return applied;
    migration const& step = migrations().at(static_cast<std::size_t>(current));
    if (run_step(with, up_message(with, step), already_applied)) {
      ++applied;
    } else if (std::exchange(refused_at, current) == current) {
      throw schema_mismatch{"migration " + std::to_string(step.version) +
                            " is refused as already applied, but the schema does not list it"};
    }
  }
}

std::size_t migrate_down(std::string const& database_url, int version) {
  require_known(version);
  pqxx::connection db{database_url};
  pqxx::nontransaction with{db, "fenceguard"};
  std::size_t undone = 0;
  for (int refused_at = -1;;) {
    int const current = schema_version(with).value_or(0);
    if (current <= version) return undone;
    if (current > newest_version()) {
      throw schema_mismatch{"the database has schema version " + std::to_string(current) +
                            ", which this library does not know: use a newer fenceguard"};
    }
    migration const& step = migrations().at(static_cast<std::size_t>(current) - 1);
    if (run_step(with, std::string{step.down}, not_the_newest)) {
      ++undone;
    } else if (std::exchange(refused_at, current) == current) {
      throw schema_mismatch{"migration " + std::to_string(step.version) +
                            " cannot be taken back: the server says it is not the newest"};
    }
  }
}

}  // namespace fenceguard::postgres
