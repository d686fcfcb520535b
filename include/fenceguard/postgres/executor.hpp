#pragma once

#include <fenceguard/postgres/parameter.hpp>
#include <pqxx/pqxx>
#include <string>

namespace fenceguard::postgres {

class transaction;

/// Where a statement is sent: an open pqxx transaction of the caller's, or a guarded transaction.
/// A view for passing as an argument; what it refers to must outlive it.
class executor {
 public:
  executor(pqxx::transaction_base& plain) noexcept : plain_{&plain} {}  // NOLINT(*-explicit-*)
  executor(transaction& guarded) noexcept : guarded_{&guarded} {}       // NOLINT(*-explicit-*)

  /// Runs one statement. Errors of the server with fenceguard's SQLSTATEs are thrown as its error
  /// types, others as libpqxx throws them.
  pqxx::result exec(std::string const& sql, parameters const& args) const;

 private:
  pqxx::transaction_base* plain_ = nullptr;
  transaction* guarded_ = nullptr;
};

}  // namespace fenceguard::postgres
