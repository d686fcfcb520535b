// The short program of the README. Environment: FENCEGUARD_DATABASE_URL, FENCEGUARD_REDIS_URL.
#include <cstdlib>
#include <fenceguard/fenceguard.hpp>
#include <iostream>

namespace fg = fenceguard;
using namespace std::chrono_literals;

int main() try {
  std::string const database_url = std::getenv("FENCEGUARD_DATABASE_URL");
  std::string const redis_url = std::getenv("FENCEGUARD_REDIS_URL");
  fg::postgres::migrate(database_url);

  pqxx::connection db{database_url};
  {
    pqxx::work setup{db};
    setup.exec("CREATE TABLE IF NOT EXISTS account (id int PRIMARY KEY, balance bigint NOT NULL)");
    setup.exec("INSERT INTO account VALUES (42, 1000) ON CONFLICT DO NOTHING");
    setup.exec("SELECT fenceguard.protect('account', 'account/{id}')");
    setup.commit();
  }

  fg::postgres::token_source tokens{database_url};
  fg::redis::lease_store leases{{.url = redis_url}, tokens};

  auto lease = leases.acquire({.resource = "account/42", .ttl = 10s, .wait = 2s});
  if (!lease) {
    std::cout << "busy\n";
    return 1;
  }
  fg::postgres::transaction tx{db, *lease};  // claims account/42; throws if a newer holder has
  auto const row =
      tx.exec("UPDATE account SET balance = balance - $1 WHERE id = $2 RETURNING balance", 300, 42);
  tx.commit();  // the claim and the write, or neither

  std::cout << "paid 300 under token " << lease->token().value() << ", balance "
            << row[0][0].as<long>() << '\n';
} catch (std::exception const& failed) {
  std::cerr << "quick_start: " << failed.what() << '\n';
  return 2;
}
