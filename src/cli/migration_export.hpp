#pragma once

#include <fenceguard/postgres/migrate.hpp>
#include <filesystem>
#include <string>
#include <vector>

namespace fenceguard::cli {

/// The migration tools whose file layout `fenceguard migrations export` can write.
enum class export_format { plain, flyway, goose, dbmate, liquibase };

struct exported_file {
  std::string name;
  std::string text;
};

/// The files that the tool wants for one migration. Every migration brings its own BEGIN and
/// COMMIT, and each format is told not to add a transaction of its own.
[[nodiscard]] std::vector<exported_file> export_migration(postgres::migration const& step,
                                                          export_format format);

/// Writes all migrations into `directory`, which is made where it does not exist. Throws
/// invalid_request where a file exists with another content, std::filesystem::filesystem_error or
/// std::runtime_error where it cannot be written. Returns the files written; those that stand
/// already as they should are left alone.
std::vector<std::filesystem::path> export_migrations(std::filesystem::path const& directory,
                                                     export_format format);

}  // namespace fenceguard::cli
