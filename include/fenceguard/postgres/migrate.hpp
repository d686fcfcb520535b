#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fenceguard::postgres {

/// One step of the schema: plain SQL that psql runs as it stands.
struct migration {
  int version;
  std::string_view name;
  std::string_view up;
  std::string_view down;
  std::string checksum;  ///< SHA-256 of `up`, 64 hexadecimal characters.
};

/// All migrations that this library carries, in order.
[[nodiscard]] std::vector<migration> const& migrations();

/// Brings the schema `fenceguard` up to `version` (default: the newest). Does nothing where it is
/// there already; two migrators at once are safe. Each step is one transaction: a failure leaves
/// the steps before it and nothing of its own. Returns how many steps were applied.
///
/// Needs CREATE on the database only while the schema does not exist; never superuser. Throws
/// invalid_request for an unknown version, schema_mismatch where the database is newer than the
/// library, and what libpqxx throws where the server cannot be reached or refuses.
std::size_t migrate(std::string const& database_url, std::optional<int> version = std::nullopt);

/// Takes the schema back down to `version`; 0 removes it with all fences and stored answers. Never
/// called by anything but an explicit wish. Throws as migrate() does.
std::size_t migrate_down(std::string const& database_url, int version);

/// One thing in which a database differs from what its migrations made.
struct difference {
  enum class kind {
    missing_version,
    newer_version,
    changed_migration,
    missing,
    altered,
    unexpected
  };
  kind what;
  std::string subject;  ///< The version or the object.
  std::string detail;
};

[[nodiscard]] char const* to_string(difference::kind kind) noexcept;

/// Says exactly in what the database's schema differs from this library's; empty where it does not.
/// Changes nothing. Throws what libpqxx throws where the server cannot be reached.
[[nodiscard]] std::vector<difference> verify(std::string const& database_url);

}  // namespace fenceguard::postgres
