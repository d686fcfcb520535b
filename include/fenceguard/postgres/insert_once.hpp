#pragma once

#include <fenceguard/postgres/executor.hpp>
#include <fenceguard/postgres/parameter.hpp>
#include <fenceguard/postgres/row_fence.hpp>
#include <pqxx/pqxx>
#include <string>
#include <vector>

namespace fenceguard::postgres {

/// The row of an insert_once: inserted by this call, or found there. `row` has one row with all
/// columns of the table, as it is now.
struct insert_once_result {
  bool replayed;  ///< The row was there before, inserted for the same request.
  pqxx::result row{};
};

/// A unique key in the row itself as the request's idempotency key, for those who need no lease:
/// the first try inserts the row, a repeat gets it back. `INSERT … ON CONFLICT (<key>) DO NOTHING
/// RETURNING *`: one round trip when it inserts, a second one when the row is there.
///
/// Use it where the whole effect of a request is one new row (an order, a payment), perhaps with
/// others that are written in the same transaction when `replayed` is false. Nothing of fenceguard
/// is needed in the database, only a unique index on exactly the key columns that is not
/// deferrable.
///
/// Waits for a concurrent first try to end. Immutable after construction: may be used from any
/// thread with transactions of its own.
class insert_once {
 public:
  /// `request_columns`, of those that are inserted, say what was asked for and must not change
  /// afterwards: a repeat whose values differ from the row's there is another request. Empty: all
  /// inserted columns. Their types must have an equality (json has none, jsonb has).
  ///
  /// `table` may be qualified ("shop.orders"); names are quoted as they stand. Throws
  /// invalid_request for an empty name or no key column.
  insert_once(std::string const& table, std::vector<std::string> const& key_columns,
              std::vector<std::string> request_columns = {});

  /// Throws key_reused where the row was inserted for another request; already_stored where it is
  /// there but cannot be read (row-level security); invalid_request where the number of values is
  /// wrong or a request column is not among `columns`; and what libpqxx throws. Nothing was written
  /// then.
  template <class... Args>
  [[nodiscard]] insert_once_result insert(executor tx, row_key const& which,
                                          std::vector<std::string> const& columns,
                                          Args&&... args) const {
    return insert_with(tx, which, columns, parameters{parameter{std::forward<Args>(args)}...});
  }
  [[nodiscard]] insert_once_result insert_with(executor tx, row_key const& which,
                                               std::vector<std::string> const& columns,
                                               parameters const& args) const;

 private:
  std::string table_;
  std::vector<std::string> key_columns_;
  std::vector<std::string> request_columns_;
};

}  // namespace fenceguard::postgres
