#pragma once

#include <pqxx/pqxx>
#include <string>

/// The business of the example: one account and the payments that were made from it. The ledger is
/// right when opening balance = balance + all payments.
namespace ledger {

inline constexpr int opening_balance = 1000;

struct state {
  int balance;
  int paid;
  [[nodiscard]] bool right() const { return balance + paid == opening_balance; }
};

/// Makes the two tables `<prefix>_account` and `<prefix>_payment` anew.
void create(pqxx::connection& db, std::string const& prefix);

[[nodiscard]] state read(pqxx::connection& db, std::string const& prefix);

[[nodiscard]] int read_balance(pqxx::connection& db, std::string const& prefix);

/// The statements of a payment whose new balance was computed from an earlier read.
[[nodiscard]] std::string set_balance(std::string const& prefix);
[[nodiscard]] std::string insert_payment(std::string const& prefix);

}  // namespace ledger
