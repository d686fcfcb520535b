#include <charconv>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/migrate.hpp>
#include <stdexcept>

#include "migration_checksums.hpp"
#include "migration_files.hpp"
#include "postgres/libpqxx.hpp"
#include "postgres/schema_version.hpp"

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

// Runs one step. False where it failed because another migrator was quicker, by whatever error: the
// schema has moved on then.
bool run_step(pqxx::transaction_base& with, std::string const& message, int current) {
  try {
    libpqxx::send_message(with, message);
    return true;
  } catch (std::exception const&) {
    if (!libpqxx::connection_of(with).is_open()) throw;
    libpqxx::send_message(with, "ROLLBACK");
    if (schema_version(with).value_or(0) == current) throw;
    return false;
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

// The database's version, where this library knows it.
int known_version(pqxx::transaction_base& with) {
  int const current = schema_version(with).value_or(0);
  if (current > newest_version()) {
    throw schema_mismatch{"the database has schema version " + std::to_string(current) +
                          ", this library knows " + std::to_string(newest_version()) +
                          " at most: use a newer fenceguard"};
  }
  return current;
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
  for (std::size_t applied = 0;;) {
    int const current = known_version(with);
    if (current >= target) return applied;
    migration const& step = migrations().at(static_cast<std::size_t>(current));
    if (run_step(with, up_message(with, step), current)) ++applied;
  }
}

std::size_t migrate_down(std::string const& database_url, int version) {
  require_known(version);
  pqxx::connection db{database_url};
  pqxx::nontransaction with{db, "fenceguard"};
  for (std::size_t undone = 0;;) {
    int const current = known_version(with);
    if (current <= version) return undone;
    migration const& step = migrations().at(static_cast<std::size_t>(current) - 1);
    if (run_step(with, std::string{step.down}, current)) ++undone;
  }
}

}  // namespace fenceguard::postgres
