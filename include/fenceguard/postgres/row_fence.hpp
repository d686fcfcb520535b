#pragma once

#include <fenceguard/core/fencing_token.hpp>
#include <fenceguard/postgres/executor.hpp>
#include <fenceguard/postgres/parameter.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fenceguard::postgres {

/// What became of a conditional write.
enum class verdict {
  applied,      ///< The row was written and carries the token now.
  stale,        ///< The row carries this token already, or a higher one: nothing was written.
  row_missing,  ///< There is no such row (or row-level security hides it): nothing was written.
                ///< With `current` set: it can be read but not written (a policy or a trigger
                ///< forbids it).
  row_exists,   ///< insert() only: the row was there already.
};

[[nodiscard]] char const* to_string(verdict verdict) noexcept;

/// The answer of a conditional write. `current` is the row's token where the verdict is `stale` or
/// `row_exists`. `rows` is the row that claim() has raised; the other writes return none.
struct write_result {
  postgres::verdict verdict;
  std::optional<fencing_token> current{};
  pqxx::result rows{};
};

/// The values of a row's key columns, in the order in which row_fence was given them.
struct row_key {
  parameters values;
};

template <class... Values>
[[nodiscard]] row_key key(Values&&... values) {
  return row_key{parameters{parameter{std::forward<Values>(values)}...}};
}

/// The conditional write of a row that carries its own fencing token:
/// `UPDATE t SET …, fencing_token = $n WHERE <key> AND fencing_token < $n`. The database refuses
/// the older holder in one statement and one round trip.
///
/// Strictly less: one write for each token and row; lease.advance() gives the next token. Prepare a
/// table with fenceguard.add_row_fence('table'), whose trigger also holds off clients that skip
/// this class. It guards each row for as long as the row exists; for reads that lead to writes,
/// begin with claim().
///
/// Immutable after construction: may be used from any thread with transactions of its own. Every
/// member throws invalid_request for the wrong number of key values and for a key that names
/// several rows (roll back then); server_promoted, and stale_token for a token from before a
/// promotion, where the table's triggers found that (an older token is a verdict otherwise);
/// schema_mismatch where a row has no token; and what libpqxx throws.
class row_fence {
 public:
  /// `table` may be qualified ("shop.orders"); names are quoted as they stand. Throws
  /// invalid_request for an empty name or no key column.
  row_fence(std::string const& table, std::vector<std::string> key_columns);

  /// `set` is the caller's SET list with $1, $2, … for `args`: "state = $1, paid_at = now()".
  template <class... Args>
  [[nodiscard]] write_result update(executor tx, fencing_token token, row_key const& which,
                                    std::string const& set, Args&&... args) const {
    return update_with(tx, token, which, set, parameters{parameter{std::forward<Args>(args)}...});
  }
  [[nodiscard]] write_result update_with(executor tx, fencing_token token, row_key const& which,
                                         std::string const& set, parameters args) const;

  /// Inserts the row with its key, the given columns and the token. `row_exists` where the key is
  /// there already; nothing is written then.
  template <class... Args>
  [[nodiscard]] write_result insert(executor tx, fencing_token token, row_key const& which,
                                    std::vector<std::string> const& columns, Args&&... args) const {
    return insert_with(tx, token, which, columns,
                       parameters{parameter{std::forward<Args>(args)}...});
  }
  [[nodiscard]] write_result insert_with(executor tx, fencing_token token, row_key const& which,
                                         std::vector<std::string> const& columns,
                                         parameters args) const;

  /// Deletes the row unless it carries this token or a higher one. A row that is inserted again
  /// afterwards starts anew: protect the table as well where that matters.
  [[nodiscard]] write_result remove(executor tx, fencing_token token, row_key const& which) const;

  /// Raises the row's token and returns the row (`rows`, all columns), so that a read-modify-write
  /// starts fenced: the row stays locked to the end of the transaction, and no older holder can
  /// write it afterwards. Write what follows from it by update() with lease.advance() in the same
  /// transaction (one write for each token and row).
  [[nodiscard]] write_result claim(executor tx, fencing_token token, row_key const& which) const;

  /// One row of update_many(): its key, its token and one value for each column.
  struct row_update {
    row_key which;
    fencing_token token;
    parameters values;
  };

  /// Updates `columns` of many rows in one statement and one round trip, a second one only where
  /// some are refused; one result for each, in the given order. The values take the types of the
  /// columns, which must be readable and of no array type (the server refuses that, 42804). Two
  /// calls over the same rows at once may be found deadlocked by the server, which ends one of
  /// them. Throws invalid_request where two rows name the same key or the number of values differs
  /// from that of the columns.
  [[nodiscard]] std::vector<write_result> update_many(executor tx,
                                                      std::vector<std::string> const& columns,
                                                      std::span<row_update const> rows) const;

 private:
  std::string table_;
  std::vector<std::string> key_columns_;
};

}  // namespace fenceguard::postgres
