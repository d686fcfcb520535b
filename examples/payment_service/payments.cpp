#include "payments.hpp"

namespace fg = fenceguard;
using namespace std::chrono_literals;
using nlohmann::json;

namespace {

std::string resource(std::int64_t account) { return "account/" + std::to_string(account); }

/// Runs in a transaction that has claimed both accounts: what it reads stays true to its COMMIT.
json transfer(fg::postgres::transaction& tx, payments::order const& wanted) {
  auto const balances =
      tx.exec("SELECT id, balance_cents FROM account WHERE id IN ($1, $2)", wanted.from, wanted.to);
  if (balances.size() != 2) return {{"status", "refused"}, {"reason", "unknown_account"}};
  for (auto const& row : balances) {
    if (row[0].as<std::int64_t>() == wanted.from && row[1].as<std::int64_t>() < wanted.cents) {
      return {{"status", "refused"}, {"reason", "insufficient_funds"}};
    }
  }
  tx.exec("UPDATE account SET balance_cents = balance_cents - $1 WHERE id = $2", wanted.cents,
          wanted.from);
  tx.exec("UPDATE account SET balance_cents = balance_cents + $1 WHERE id = $2", wanted.cents,
          wanted.to);
  auto const made = tx.exec(
      "INSERT INTO payment (from_account, to_account, cents) VALUES ($1, $2, $3) RETURNING id",
      wanted.from, wanted.to, wanted.cents);
  return {{"status", "paid"}, {"payment", made[0][0].as<std::int64_t>()}};
}

}  // namespace

std::optional<payments::answer> payments::pay(std::string const& key, order const& wanted) {
  constexpr int grants = 3;
  for (int tried = 1;; ++tried) {
    try {
      // The key stays the same over all tries, so a COMMIT whose reply was lost is found again.
      return fg::retry({.attempts = 4, .total = 5s}, [&] { return try_to_pay(key, wanted); });
    } catch (fg::error const& failed) {
      if (failed.advice() != fg::next_step::reacquire || tried == grants) throw;
    }
  }
}

std::optional<payments::answer> payments::try_to_pay(std::string const& key, order const& wanted) {
  auto const held = leases_.acquire_all({.resources = {resource(wanted.from), resource(wanted.to)},
                                         .ttl = 5s,
                                         .wait = 2s,
                                         .label = "payment_service"});
  if (!held) return std::nullopt;
  auto const db = pool_.borrow();
  fg::postgres::transaction tx{
      *db, *held,
      fg::postgres::idempotency_key{
          .scope = "payments",
          .key = key,
          .request = {{"from", wanted.from}, {"to", wanted.to}, {"cents", wanted.cents}},
      }};
  if (auto const& stored = tx.replay()) return answer{*stored, true};
  json const body = transfer(tx, wanted);
  tx.commit(body);
  return answer{body, false};
}

std::optional<std::int64_t> payments::balance(std::int64_t account) {
  auto const db = pool_.borrow();
  pqxx::nontransaction tx{*db};
  auto const rows =
      tx.exec("SELECT balance_cents FROM account WHERE id = " + std::to_string(account));
  if (rows.empty()) return std::nullopt;
  return rows[0][0].as<std::int64_t>();
}

void payments::check_health() {
  auto const db = pool_.borrow();
  pqxx::nontransaction tx{*db};
  tx.exec("SELECT 1");
}
