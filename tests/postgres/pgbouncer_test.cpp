#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/execute_once.hpp>
#include <fenceguard/postgres/migrate.hpp>
#include <fenceguard/postgres/row_fence.hpp>
#include <fenceguard/postgres/token_source.hpp>
#include <fenceguard/postgres/transaction.hpp>

#include "postgres/database.hpp"
#include "servers/pgbouncer_server.hpp"

using namespace std::chrono_literals;
using namespace fenceguard;
using nlohmann::json;
using postgres::idempotency_key;
using postgres::transaction;
using postgres::verdict;
using test_postgres::workplace;
namespace ts = fenceguard::test_servers;

namespace {

std::string name_of(test_postgres::database const& db) {
  return db.value("SELECT current_database()");
}

std::string ask(pqxx::connection& db, std::string const& sql) {
  pqxx::nontransaction tx{db};
  return tx.exec(sql)[0][0].as<std::string>();
}

// All that a client could leave behind in a server session: settings, locks, statements, tables.
// (PgBouncer sets application_name; those of plpgsql appear with its first use.)
std::string session_of(pqxx::connection& db) {
  return ask(db,
             "SELECT pg_backend_pid() || ' ' || "
             "(SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings "
             "WHERE name <> 'application_name' AND name NOT LIKE 'plpgsql.%') "
             "|| ' locks: ' || (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() "
             "AND locktype = 'advisory') "
             "|| ' statements: ' || (SELECT count(*) FROM pg_prepared_statements) "
             "|| ' tables: ' || (SELECT count(*) FROM pg_class WHERE relpersistence = 't')");
}

// PgBouncer in transaction mode with a single server session, which every client therefore shares.
struct pooled {
  workplace here;
  ts::pgbouncer_server pool{test_postgres::shared_server(),
                            {{"default_pool_size", "1"}, {"min_pool_size", "1"}}};
  std::string url = pool.url(name_of(here.db));
  pqxx::connection db{url};
  pqxx::connection next{url};

  // Runs `use` and checks that the next client finds the session as it was.
  template <class Use>
  void leaves_nothing(Use use) {
    std::string const before = session_of(next);
    use();
    CHECK(session_of(next) == before);
  }
};

idempotency_key key_of(std::string const& name) {
  return {.scope = "test", .key = name, .request = {{"amount", 100}}};
}

}  // namespace

TEST_CASE("pgbouncer: clients share a session, and a setting that is not undone would be seen") {
  pooled through;
  std::string const before = session_of(through.next);
  ask(through.db, "SELECT set_config('lock_timeout', '123', false)");
  CHECK(session_of(through.next) != before);
  CHECK(ask(through.next, "SHOW lock_timeout") == "123ms");
}

TEST_CASE(
    "pgbouncer: a guarded transaction sets its timeouts, and leaves none to the next client") {
  pooled through;
  lease const held = through.here.acquire("account/1");
  through.leaves_nothing([&] {
    transaction tx{through.db, held, {.patience = 700ms, .max_idle = 900ms}};
    CHECK(tx.exec("SHOW idle_in_transaction_session_timeout")[0][0].as<std::string>() == "900ms");
    tx.exec("UPDATE account SET balance = balance - 100 WHERE id = 1");
    tx.commit();
  });
  CHECK(through.here.db.balance(1) == 900);

  through.leaves_nothing([&] {
    transaction tx{through.db, held};
    tx.exec("UPDATE account SET balance = 0");
  });
  CHECK(through.here.db.balance(1) == 900);
}

TEST_CASE("pgbouncer: a refused claim leaves nothing") {
  pooled through;
  lease held = through.here.acquire("account/1");
  through.here.overtake(held);
  through.leaves_nothing([&] { CHECK_THROWS_AS(transaction(through.db, held), stale_token); });
}

TEST_CASE("pgbouncer: waiting for a resource in vain leaves nothing") {
  pooled through;
  lease const held = through.here.acquire("account/1");
  pqxx::connection direct{through.here.db.url()};
  transaction holder{direct, held};
  through.leaves_nothing([&] {
    CHECK_THROWS_AS(transaction(through.db, held, {.patience = 50ms}), fence_busy);
    CHECK_THROWS_AS(postgres::execute_once_with(through.db, held, key_of("k"), "SELECT 1", {},
                                                {.patience = 50ms}),
                    fence_busy);
  });
}

TEST_CASE("pgbouncer: a key that was answered is replayed, through another client as well") {
  pooled through;
  lease const held = through.here.acquire("account/1");
  through.leaves_nothing([&] {
    transaction tx{through.db, held, key_of("k")};
    REQUIRE_FALSE(tx.replay().has_value());
    tx.exec("UPDATE account SET balance = balance - $1 WHERE id = $2", 100, 1);
    tx.commit(json{{"left", 900}});
  });
  through.leaves_nothing([&] {
    transaction again{through.next, held, key_of("k")};
    CHECK(again.replay() == json{{"left", 900}});
  });
  CHECK(through.here.db.balance(1) == 900);
}

TEST_CASE("pgbouncer: execute_once") {
  pooled through;
  lease const held = through.here.acquire("account/1");
  auto const withdraw = [&](pqxx::connection& db) {
    return postgres::execute_once(
        db, held, key_of("k"), "UPDATE account SET balance = balance - $1 WHERE id = $2", 100, 1);
  };
  through.leaves_nothing([&] { CHECK_FALSE(withdraw(through.db).replayed); });
  through.leaves_nothing([&] { CHECK(withdraw(through.next).replayed); });
  CHECK(through.here.db.balance(1) == 900);
}

TEST_CASE("pgbouncer: row_fence tells applied from stale") {
  pooled through;
  through.here.db.run(
      "CREATE TABLE bank.item (id int PRIMARY KEY, state text);"
      "INSERT INTO bank.item VALUES (1, 'new'); SELECT fenceguard.add_row_fence('bank.item')");
  postgres::row_fence const items{"item", {"id"}};
  fencing_token const older = through.here.tokens.reserve(1);
  fencing_token const newer = through.here.tokens.reserve(1);
  auto const pay = [&](pqxx::connection& db, fencing_token token) {
    pqxx::work tx{db};
    auto const result = items.update(tx, token, postgres::key(1), "state = $1", "paid");
    tx.commit();
    return result.verdict;
  };
  through.leaves_nothing([&] { CHECK(pay(through.db, newer) == verdict::applied); });
  through.leaves_nothing([&] { CHECK(pay(through.next, older) == verdict::stale); });
}

TEST_CASE("pgbouncer: token_source") {
  pooled through;
  postgres::token_source tokens{{.url = through.url, .timeout = 4'321ms}};
  through.leaves_nothing([&] {
    fencing_token const first = tokens.reserve(10);
    CHECK(tokens.reserve(1).value() >= first.value() + 10);
  });
}

TEST_CASE("pgbouncer: migrate, up, again and down") {
  test_postgres::database const empty{test_postgres::shared_server(), false};
  ts::pgbouncer_server pool{test_postgres::shared_server(), {{"default_pool_size", "1"}}};
  std::string const url = pool.url(name_of(empty));
  pqxx::connection next{url};
  std::string const before = session_of(next);
  CHECK(postgres::migrate(url) == postgres::migrations().size());
  CHECK(postgres::migrate(url) == 0);
  CHECK(empty.value("SELECT count(*) FROM fenceguard.altered_objects()") == "0");
  CHECK(postgres::migrate_down(url, 0) == postgres::migrations().size());
  CHECK(session_of(next) == before);
}
