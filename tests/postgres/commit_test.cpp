#include <doctest/doctest.h>

#include <fenceguard/postgres/transaction.hpp>
#include <future>
#include <optional>

#include "postgres/database.hpp"
#include "servers/relay.hpp"
#include "servers/wait.hpp"

using namespace std::chrono_literals;
using namespace fenceguard;
using nlohmann::json;
using postgres::commit_state;
using postgres::idempotency_key;
using postgres::transaction;
using test_postgres::recorder;
using test_postgres::workplace;
namespace ts = fenceguard::test_servers;

namespace {

// COMMIT itself; "READ COMMITTED" goes to the server before.
constexpr char const* commit_bytes = "; COMMIT";

struct cut_commit {
  explicit cut_commit(workplace& where) : here{where} {}

  // A debit whose COMMIT is cut off. Returns its transaction, which is in doubt.
  std::unique_ptr<transaction> debit(lease const& held, std::optional<idempotency_key> const& key,
                                     ts::reaction what) {
    db.emplace(here.db.url_through(relay.port()));
    postgres::transaction_options const options{.patience = 30s, .observer = &events};
    auto tx = key ? std::make_unique<transaction>(*db, held, *key, options)
                  : std::make_unique<transaction>(*db, held, options);
    tx->exec("UPDATE account SET balance = balance - 300 WHERE id = 1");
    relay.when_seen(ts::direction::to_server, commit_bytes, what);
    try {
      if (key) {
        tx->commit("done");
      } else {
        tx->commit();
      }
      FAIL("the reply came through");
    } catch (commit_unknown const& unknown) {
      CHECK(unknown.advice() == next_step::retry_same_key);
    }
    CHECK_THROWS_AS(tx->exec("SELECT 1"), invalid_request);
    CHECK_THROWS_AS(key ? tx->commit("done") : tx->commit(), invalid_request);
    tx->rollback();  // does nothing
    return tx;
  }

  workplace& here;
  ts::relay relay{test_postgres::shared_server().port()};
  std::optional<pqxx::connection> db{};
  recorder events{};
};

}  // namespace

TEST_CASE("commit: cut before it reached the server, resolve() says not committed") {
  for (bool const claimed_before : {false, true}) {
    CAPTURE(claimed_before);
    workplace here;
    cut_commit cut{here};
    lease const held = here.acquire("account/1");
    pqxx::connection other{here.db.url()};
    if (claimed_before) transaction{other, held}.commit();
    auto const tx = cut.debit(held, std::nullopt, ts::reaction::cut_before);
    CHECK(tx->resolve(other) == commit_state::not_committed);
    CHECK(here.db.balance(1) == 1000);
    CHECK(cut.events.count("commit_unknown") == 1);
  }
}

TEST_CASE("commit: cut before the reply came back, resolve() says committed") {
  for (bool const claimed_before : {false, true}) {
    CAPTURE(claimed_before);
    workplace here;
    cut_commit cut{here};
    lease const held = here.acquire("account/1");
    pqxx::connection other{here.db.url()};
    if (claimed_before) transaction{other, held}.commit();
    auto const tx = cut.debit(held, std::nullopt, ts::reaction::cut_after);
    CHECK(tx->resolve(other) == commit_state::committed);
    CHECK(tx->resolve(other) == commit_state::committed);
    CHECK(here.db.balance(1) == 700);
  }
}

TEST_CASE("commit: with a key, resolve() asks the key and a repeat gets the answer") {
  for (ts::reaction const what : {ts::reaction::cut_before, ts::reaction::cut_after}) {
    bool const arrived = what == ts::reaction::cut_after;
    CAPTURE(arrived);
    workplace here;
    cut_commit cut{here};
    lease const held = here.acquire("account/1");
    idempotency_key const key{.scope = "debit", .key = "k", .request = 300};
    auto const tx = cut.debit(held, key, what);
    pqxx::connection other{here.db.url()};
    CHECK(tx->resolve(other) == (arrived ? commit_state::committed : commit_state::not_committed));
    CHECK(here.db.balance(1) == (arrived ? 700 : 1000));
    transaction again{other, held, key};
    CHECK(again.replay().has_value() == arrived);
  }
}

TEST_CASE("commit: resolve() is right where the next grant has claimed since") {
  for (ts::reaction const what : {ts::reaction::cut_before, ts::reaction::cut_after}) {
    workplace here;
    cut_commit cut{here};
    lease held = here.acquire("account/1");
    pqxx::connection other{here.db.url()};
    transaction{other, held}.commit();
    auto const tx = cut.debit(held, std::nullopt, what);
    here.overtake(held);
    CHECK(tx->resolve(other) == (what == ts::reaction::cut_after ? commit_state::committed
                                                                 : commit_state::not_committed));
    here.overtake(held);
    CHECK(tx->resolve(other) == commit_state::unknown);
  }
}

TEST_CASE("commit: while the transaction is still under way, resolve() does not guess") {
  workplace here;
  here.db.run(
      "CREATE FUNCTION bank.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM "
      "pg_advisory_xact_lock(42); RETURN NULL; END $$; CREATE CONSTRAINT TRIGGER t AFTER UPDATE ON "
      "bank.account DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION bank.slow()");
  pqxx::connection gate{here.db.url()};
  pqxx::nontransaction holding{gate};
  holding.exec("SELECT pg_advisory_lock(42)");  // COMMIT waits for it

  ts::relay relay{test_postgres::shared_server().port()};
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url_through(relay.port())};
  transaction tx{db, held, {.patience = 300ms}};
  tx.exec("UPDATE account SET balance = balance - 300 WHERE id = 1");
  auto committing = std::async(std::launch::async, [&] { tx.commit(); });
  ts::wait_until("COMMIT waits", [&] {
    return here.db.value("SELECT count(*) FROM pg_locks WHERE NOT granted") == "1";
  });
  relay.cut();
  CHECK_THROWS_AS(committing.get(), commit_unknown);

  pqxx::connection other{here.db.url()};
  CHECK(tx.resolve(other) == commit_state::unknown);
  holding.exec("SELECT pg_advisory_unlock(42)");
  ts::wait_until("the outcome is known",
                 [&] { return tx.resolve(other) != commit_state::unknown; });
  CHECK(tx.resolve(other) == commit_state::committed);
  CHECK(here.db.balance(1) == 700);
}

TEST_CASE("commit: resolve() under foreign settings of date and time") {
  workplace here;
  cut_commit cut{here};
  lease const held = here.acquire("account/1");
  {
    pqxx::connection plain{here.db.url()};
    transaction{plain, held}.commit();
  }
  std::string const name = here.db.value("SELECT current_database()");
  here.db.run("ALTER DATABASE " + name + " SET datestyle = 'German'");
  here.db.run("ALTER DATABASE " + name + " SET timezone = 'Asia/Kolkata'");
  auto const tx = cut.debit(held, std::nullopt, ts::reaction::cut_after);
  here.db.run("ALTER DATABASE " + name + " SET datestyle = 'SQL, DMY'");
  here.db.run("ALTER DATABASE " + name + " SET timezone = 'America/New_York'");
  pqxx::connection other{here.db.url()};
  CHECK(tx->resolve(other) == commit_state::committed);
}

TEST_CASE("commit: after an unknown outcome the next claim carries a fresh token") {
  workplace here;
  cut_commit cut{here};
  lease const held = here.acquire("account/1");
  fencing_token const before = held.token();
  auto const tx = cut.debit(held, std::nullopt, ts::reaction::cut_before);
  CHECK(held.token() == before);
  pqxx::connection other{here.db.url()};
  transaction again{other, held};
  CHECK(held.token() > before);
  again.commit();
  // The old request would be refused now, like any stale holder's.
  CHECK_THROWS_AS(here.db.run("SELECT fenceguard.claim('account/1', " +
                              std::to_string(before.value()) + ", '" + held.holder() + "')"),
                  std::runtime_error);
}

TEST_CASE("commit: after an unknown outcome a lease that is lost cannot go on") {
  workplace here;
  cut_commit cut{here};
  lease const held = here.acquire("account/1");
  auto const tx = cut.debit(held, std::nullopt, ts::reaction::cut_before);
  here.leases.expire("account/1");
  pqxx::connection other{here.db.url()};
  CHECK_THROWS_AS((transaction{other, held}), lease_lost);
  CHECK(tx->resolve(other) == commit_state::not_committed);
}

TEST_CASE(
    "commit: after an unknown outcome and the loss of the lease, a repeat is still answered") {
  workplace here;
  cut_commit cut{here};
  lease const held = here.acquire("account/1");
  idempotency_key const key{.scope = "s", .key = "k", .request = {{"amount", 300}}};
  auto const tx = cut.debit(held, key, ts::reaction::cut_after);
  here.leases.expire("account/1");
  pqxx::connection other{here.db.url()};
  CHECK(tx->resolve(other) == commit_state::committed);
  transaction const repeat{other, held, key};
  CHECK(repeat.replay() == nlohmann::json("done"));
  // What was never stored needs a claim, and the lease for it is gone.
  idempotency_key fresh = key;
  fresh.key = "other";
  CHECK_THROWS_AS((transaction{other, held, fresh}), lease_lost);
  fresh = key;
  fresh.request = {{"amount", 999}};
  CHECK_THROWS_AS((transaction{other, held, fresh}), key_reused);
  CHECK(here.db.balance(1) == 700);
}

TEST_CASE("commit: what the server refuses is a definite no") {
  workplace here;
  here.db.run(
      "ALTER TABLE bank.account ADD owner int REFERENCES bank.account DEFERRABLE INITIALLY "
      "DEFERRED");
  lease const held = here.acquire("account/1");
  fencing_token const before = held.token();
  pqxx::connection db{here.db.url()};
  transaction tx{db, held};
  tx.exec("UPDATE account SET owner = 99 WHERE id = 1");
  CHECK_THROWS_AS(tx.commit(), pqxx::foreign_key_violation);
  CHECK_THROWS_AS(static_cast<void>(tx.resolve(db)), invalid_request);
  CHECK_THROWS_AS(tx.commit(), invalid_request);
  transaction again{db, held};
  again.exec("UPDATE account SET owner = 2 WHERE id = 1");
  again.commit();
  CHECK(held.token() == before);
}

TEST_CASE("commit: warnings of the caller's own triggers are not taken for the standby's") {
  workplace here;
  here.db.run(
      "CREATE FUNCTION bank.warn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING "
      "'canceling the order'; RETURN NULL; END $$; CREATE CONSTRAINT TRIGGER t AFTER UPDATE ON "
      "bank.account DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION bank.warn()");
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  transaction tx{db, held};
  tx.exec("UPDATE account SET balance = 5 WHERE id = 1");
  tx.commit();
  CHECK(here.db.balance(1) == 5);
}

TEST_CASE("commit: a cancelled wait for the standby is unknown") {
  ts::postgres_server server{{.configuration = {{"synchronous_commit", "local"}}}};
  test_postgres::create_owner(server);
  workplace here{server};
  // Taken before: tokens wait for the standby as well.
  lease const first = here.acquire("account/1");
  lease const second = here.acquire("account/2");
  server.configure("synchronous_standby_names", "nobody");
  server.reload();
  for (std::string const level : {"notice", "error"}) {
    CAPTURE(level);
    lease const& held = level == "notice" ? first : second;
    pqxx::connection db{here.db.url()};
    {
      pqxx::nontransaction settings{db};
      settings.exec("SET synchronous_commit = on");
      settings.exec("SET client_min_messages = " + level);
    }
    transaction tx{db, held};
    tx.exec("UPDATE account SET balance = balance - 1 WHERE id = 1");
    std::string const pid = std::to_string(db.backendpid());
    auto committing = std::async(std::launch::async, [&] { tx.commit(); });
    ts::wait_until("COMMIT waits for the standby", [&] {
      return here.db.value("SELECT coalesce(wait_event, '') FROM pg_stat_activity WHERE pid = " +
                           pid) == "SyncRep";
    });
    here.db.run("SELECT pg_cancel_backend(" + pid + ")");
    CHECK_THROWS_WITH_AS(committing.get(), doctest::Contains("standby"), commit_unknown);
    {
      pqxx::nontransaction check{db};  // the connection is alive and clean
      CHECK(check.exec("SHOW client_min_messages")[0][0].as<std::string>() == level);
    }
    pqxx::connection other{here.db.url()};
    CHECK(tx.resolve(other) == commit_state::committed);
  }
  CHECK(here.db.balance(1) == 998);
}
