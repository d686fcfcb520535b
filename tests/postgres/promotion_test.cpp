#include <doctest/doctest.h>

#include <fenceguard/postgres/transaction.hpp>
#include <fenceguard/testing/token_source.hpp>

#include "postgres/database.hpp"
#include "servers/relay.hpp"
#include "servers/wait.hpp"

using namespace std::chrono_literals;
using namespace fenceguard;
using postgres::transaction;
using test_postgres::workplace;
namespace ts = fenceguard::test_servers;

namespace {

std::string on(ts::postgres_server const& server, workplace const& here) {
  return server.url(here.db.value("SELECT current_database()"), test_postgres::owner);
}

void wait_for_replay(ts::postgres_server const& primary, ts::postgres_server const& standby) {
  std::string const written = primary.value("SELECT pg_current_wal_lsn()");
  ts::wait_until("the standby has caught up", [&] {
    return standby.value("SELECT pg_last_wal_replay_lsn() >= '" + written + "'") == "t";
  });
}

}  // namespace

TEST_CASE("promotion: grants from before are refused, new ones accepted") {
  ts::postgres_server primary;
  test_postgres::create_owner(primary);
  workplace here{primary};
  // A default that neither reservations nor claims can have.
  here.db.run("ALTER DATABASE " + here.db.value("SELECT current_database()") +
              " SET default_transaction_isolation = serializable");
  lease const used = here.acquire("account/1");
  lease const unused = here.acquire("account/2");
  {
    pqxx::connection db{here.db.url()};
    transaction{db, used}.commit();
  }
  ts::postgres_server standby = ts::postgres_server::standby_of(primary);
  wait_for_replay(primary, standby);
  std::string const url = on(standby, here);
  primary.stop(ts::postgres_server::stop_mode::crash);
  standby.promote();

  pqxx::connection db{url};
  {
    // The first to come finds that the server is another one, has the database told, and tries
    // again; then the floor refuses it.
    transaction* opened = nullptr;
    try {
      transaction tx{db, used};
      opened = &tx;
    } catch (stale_token const& refused) {
      CHECK(refused.presented() == used.token());
      CHECK(refused.current() > used.token());
    }
    CHECK(opened == nullptr);
  }
  CHECK_THROWS_AS((transaction{db, used}), stale_token);

  postgres::token_source tokens{url};
  testing::lease_store leases{tokens};
  auto const fresh = leases.acquire({.resource = "account/1", .ttl = 30s});
  CHECK(fresh->token() > used.token());
  {
    transaction tx{db, *fresh};
    tx.exec("UPDATE account SET balance = 7 WHERE id = 1");
    tx.commit();
  }
  // A grant that has not claimed yet and cannot ask for another token is refused as well.
  CHECK_THROWS_AS((transaction{db, unused}), stale_token);
}

TEST_CASE("promotion: a grant that still holds and has not claimed yet goes on") {
  ts::postgres_server primary;
  test_postgres::create_owner(primary);
  workplace here{primary};
  ts::postgres_server standby = ts::postgres_server::standby_of(primary);
  // Tokens come through a relay's port, as from an address that moves to the new primary.
  pqxx::connection unused{here.db.url()};
  wait_for_replay(primary, standby);
  std::string const url = on(standby, here);
  primary.stop(ts::postgres_server::stop_mode::crash);

  testing::token_source before_promotion{1'000'000};
  struct moving final : token_source {
    token_source* now = nullptr;
    fencing_token reserve(std::int64_t count) override { return now->reserve(count); }
  } moving_source;
  moving_source.now = &before_promotion;
  testing::lease_store leases{moving_source};
  auto const held = leases.acquire({.resource = "account/1", .ttl = 30s});
  fencing_token const before = held->token();

  standby.promote();
  postgres::token_source tokens{url};
  moving_source.now = &tokens;
  pqxx::connection db{url};
  transaction tx{db, *held};
  tx.exec("UPDATE account SET balance = 8 WHERE id = 1");
  tx.commit();
  CHECK(held->token() > before);
  CHECK(standby.value(
            "SELECT token FROM fenceguard.fence",
            pqxx::nontransaction{db}.exec("SELECT current_database()")[0][0].as<std::string>()) ==
        std::to_string(held->token().value()));
}
