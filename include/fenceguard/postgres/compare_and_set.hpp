#pragma once

#include <compare>
#include <cstdint>
#include <fenceguard/postgres/executor.hpp>
#include <fenceguard/postgres/parameter.hpp>
#include <fenceguard/postgres/row_fence.hpp>
#include <optional>
#include <string>
#include <vector>

namespace fenceguard::postgres {

/// How often a row has been written, as its version column counts it.
struct row_version {
  std::int64_t value;
  friend auto operator<=>(row_version, row_version) noexcept = default;
};

/// What became of a compare-and-set.
enum class compare_and_set_verdict {
  applied,      ///< The row had the expected version; it was written and has the next one.
  conflict,     ///< The row has another version: somebody wrote it since it was read.
  row_missing,  ///< There is no such row (or row-level security hides it).
};

[[nodiscard]] char const* to_string(compare_and_set_verdict verdict) noexcept;

/// The answer of a compare-and-set. `version` is the row's: the new one where it was applied, the
/// one that was found where it was not; nothing where the row is missing.
struct compare_and_set_result {
  compare_and_set_verdict verdict;
  std::optional<row_version> version{};
};

/// Optimistic locking by a version column, for those who need no lease: nobody waits for anybody,
/// and the later of two writers that have read the same row learns that it has to read again.
/// `UPDATE t SET …, version = version + 1 WHERE <key> AND version = $n`: one round trip when it is
/// applied, a second one only when it is not.
///
/// Use it where conflicts are rare and what follows from the read is quick to compute again. Where
/// every writer goes through it, it needs nothing of fenceguard in the database: any integer column
/// that is NOT NULL serves. It does not make a retry after a lost COMMIT harmless; where that
/// matters, use insert_once or execute_once.
///
/// Immutable after construction: may be used from any thread with transactions of its own. Throws
/// invalid_request for the wrong number of key values and for a key that names several rows (roll
/// back then), and what libpqxx throws.
class compare_and_set {
 public:
  /// `table` may be qualified ("shop.orders"); names are quoted as they stand. Throws
  /// invalid_request for an empty name or no key column.
  compare_and_set(std::string const& table, std::vector<std::string> const& key_columns,
                  std::string const& version_column = "version");

  /// `set` is the caller's SET list, without the version, with $1, $2, … for `args`.
  template <class... Args>
  [[nodiscard]] compare_and_set_result update(executor tx, row_key const& which,
                                              row_version expected, std::string const& set,
                                              Args&&... args) const {
    return update_with(tx, which, expected, set,
                       parameters{parameter{std::forward<Args>(args)}...});
  }
  [[nodiscard]] compare_and_set_result update_with(executor tx, row_key const& which,
                                                   row_version expected, std::string const& set,
                                                   parameters args) const;

 private:
  std::string table_;
  std::vector<std::string> key_columns_;
  std::string version_column_;
};

}  // namespace fenceguard::postgres
