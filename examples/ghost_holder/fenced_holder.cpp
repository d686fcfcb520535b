#include <fenceguard/fenceguard.hpp>
#include <iostream>

#include "holder.hpp"
#include "ledger.hpp"

namespace fg = fenceguard;
using namespace std::chrono_literals;

namespace {

/// One try: take the lease, read, write under its guard. Throws stale_token when it is a ghost.
void pay_once(holder const& me, pqxx::connection& db, fg::lease_store& leases, bool may_stop) {
  auto lease = leases.acquire({.resource = "account/42", .ttl = lease_ttl, .wait = 10s});
  if (!lease) throw std::runtime_error{"the account stayed busy for 10 s"};
  int const balance = ledger::read_balance(db, "fenced");
  say(me, "has the lease with token " + std::to_string(lease->token().value()) +
              ", reads the balance: " + std::to_string(balance));

  if (may_stop) stop_here(me);

  fg::postgres::transaction tx{db, *lease};
  tx.exec(ledger::set_balance("fenced"), balance - me.amount);
  tx.exec(ledger::insert_payment("fenced"), me.name, me.amount);
  tx.commit();
  say(me, "pays " + std::to_string(me.amount) + ", writes the balance " +
              std::to_string(balance - me.amount));
}

}  // namespace

int run_fenced_holder(holder const& me) {
  pqxx::connection db{me.database_url};
  fg::postgres::token_source tokens{me.database_url};
  fg::redis::lease_store leases{{.url = me.redis_url}, tokens};
  try {
    pay_once(me, db, leases, true);
    return paid;
  } catch (fg::stale_token const& ghost) {
    say(me, "REFUSED by PostgreSQL: token " + std::to_string(ghost.presented().value()) +
                " is older than token " + std::to_string(ghost.current().value()) +
                ", which has claimed " + ghost.resource());
  }
  say(me, "asks for a new lease, reads again, pays then");
  pay_once(me, db, leases, false);
  return refused;
}
