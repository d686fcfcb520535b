#pragma once

#include <fenceguard/postgres/executor.hpp>
#include <pqxx/pqxx>
#include <string>
#include <vector>

#include "cli/command_line.hpp"
#include "postgres/libpqxx.hpp"

namespace fenceguard::cli {

/// The connection of one command. One thread at a time.
class database {
 public:
  /// Connects; throws pqxx::broken_connection where that is not possible.
  explicit database(std::string const& url)
      : connection_{url}, notices_{connection_}, tx_{connection_} {}

  /// Throws std::runtime_error where the schema is missing; the message names the command to run.
  void require_schema();

  /// One statement with its arguments. Each is a transaction of its own.
  pqxx::result exec(std::string const& sql, postgres::parameters const& args = {}) {
    return postgres::executor{tx_}.exec(sql, args);
  }

  pqxx::connection& connection() noexcept { return connection_; }
  pqxx::transaction_base& transaction() noexcept { return tx_; }

  /// What the server has remarked upon so far.
  std::vector<std::string> const& notices() const noexcept { return notices_.messages(); }

 private:
  pqxx::connection connection_;
  postgres::libpqxx::notices notices_;
  pqxx::nontransaction tx_;
};

/// Adds the rows to the report, by the names of their columns.
void add_rows(report& out, pqxx::result const& rows);

}  // namespace fenceguard::cli
