#include "ledger.hpp"

namespace ledger {

void create(pqxx::connection& db, std::string const& prefix) {
  pqxx::work tx{db};
  tx.exec("DROP TABLE IF EXISTS " + prefix + "_account, " + prefix + "_payment");
  tx.exec("CREATE TABLE " + prefix + "_account (id int PRIMARY KEY, balance int NOT NULL)");
  tx.exec("CREATE TABLE " + prefix + "_payment (payer text PRIMARY KEY, amount int NOT NULL)");
  tx.exec("INSERT INTO " + prefix + "_account VALUES (42, " + std::to_string(opening_balance) +
          ")");
  tx.commit();
}

state read(pqxx::connection& db, std::string const& prefix) {
  pqxx::work tx{db};
  auto const row = tx.exec("SELECT (SELECT balance FROM " + prefix + "_account WHERE id = 42)," +
                           " (SELECT coalesce(sum(amount), 0) FROM " + prefix + "_payment)");
  return {row[0][0].as<int>(), row[0][1].as<int>()};
}

int read_balance(pqxx::connection& db, std::string const& prefix) {
  pqxx::work tx{db};
  return tx.exec("SELECT balance FROM " + prefix + "_account WHERE id = 42")[0][0].as<int>();
}

std::string set_balance(std::string const& prefix) {
  return "UPDATE " + prefix + "_account SET balance = $1 WHERE id = 42";
}

std::string insert_payment(std::string const& prefix) {
  return "INSERT INTO " + prefix + "_payment (payer, amount) VALUES ($1, $2)";
}

}  // namespace ledger
