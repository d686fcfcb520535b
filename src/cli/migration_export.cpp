#include "cli/migration_export.hpp"

#include <fenceguard/core/errors.hpp>
#include <fstream>
#include <iomanip>
#include <iterator>
#include <sstream>

namespace fenceguard::cli {
namespace {

std::string padded(int version) {
  std::ostringstream text;
  text << std::setw(4) << std::setfill('0') << version;
  return text.str();
}

std::string read_file(std::filesystem::path const& path) {
  std::ifstream file{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}

bool write_if_new(std::filesystem::path const& path, std::string const& text) {
  if (std::filesystem::exists(path)) {
    if (read_file(path) == text) return false;
    throw invalid_request{path.string() + " exists with another content; nothing was overwritten"};
  }
  std::ofstream file{path, std::ios::binary};
  file << text;
  file.close();
  if (!file) throw std::runtime_error{"cannot write " + path.string()};
  return true;
}

}  // namespace

std::vector<exported_file> export_migration(postgres::migration const& step, export_format format) {
  std::string const base = padded(step.version) + "_fenceguard_" + std::string{step.name};
  std::string const up{step.up};
  std::string const down{step.down};
  switch (format) {
    case export_format::plain:
      return {{base + ".up.sql", up}, {base + ".down.sql", down}};
    case export_format::flyway: {
      std::string const rest =
          std::to_string(step.version) + "__fenceguard_" + std::string{step.name};
      // https://documentation.red-gate.com/flyway: script configuration files
      return {{"V" + rest + ".sql", up},
              {"V" + rest + ".sql.conf", "executeInTransaction=false\n"},
              {"U" + rest + ".sql", down},
              {"U" + rest + ".sql.conf", "executeInTransaction=false\n"}};
    }
    case export_format::goose:
      // StatementBegin/End: goose must not split at the semicolons of function bodies.
      return {{base + ".sql",
               "-- +goose NO TRANSACTION\n-- +goose Up\n-- +goose StatementBegin\n" + up +
                   "-- +goose StatementEnd\n\n-- +goose Down\n-- +goose StatementBegin\n" + down +
                   "-- +goose StatementEnd\n"}};
    case export_format::dbmate:
      return {{base + ".sql", "-- migrate:up transaction:false\n" + up +
                                  "\n-- migrate:down transaction:false\n" + down}};
    case export_format::liquibase:
      return {{base + ".sql",
               "--liquibase formatted sql\n--changeset fenceguard:" + std::to_string(step.version) +
                   " splitStatements:false runInTransaction:false\n" + up},
              {base + ".rollback.sql", down}};
  }
  throw invalid_request{"unknown format"};
}

std::vector<std::filesystem::path> export_migrations(std::filesystem::path const& directory,
                                                     export_format format) {
  std::filesystem::create_directories(directory);
  std::vector<std::filesystem::path> written;
  for (auto const& step : postgres::migrations()) {
    for (auto const& file : export_migration(step, format)) {
      auto const path = directory / file.name;
      if (write_if_new(path, file.text)) written.push_back(path);
    }
  }
  return written;
}

}  // namespace fenceguard::cli
