#include <doctest/doctest.h>

#include <fenceguard/postgres/transaction.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <future>
#include <thread>

#include "postgres/database.hpp"
#include "postgres/statement.hpp"
#include "servers/relay.hpp"
#include "servers/wait.hpp"

using namespace std::chrono_literals;
using namespace fenceguard;
using nlohmann::json;
using postgres::idempotency_key;
using postgres::transaction;
using test_postgres::recorder;
using test_postgres::workplace;
namespace ts = fenceguard::test_servers;

namespace {

std::string fence_token(workplace const& here, std::string const& resource) {
  return here.db.value("SELECT coalesce(max(token), 0) FROM fenceguard.fence WHERE resource = '" +
                       resource + "'");
}

// Shows that a connection can be used for something else.
bool is_clean(pqxx::connection& db) {
  pqxx::nontransaction tx{db};
  return tx
      .exec(
          "SELECT pg_current_xact_id_if_assigned() IS NULL AND now() = statement_timestamp()")[0][0]
      .as<bool>();
}

}  // namespace

TEST_CASE("transaction: claim, write and commit") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  transaction tx{db, held};
  CHECK_FALSE(tx.replay().has_value());
  auto const rows =
      tx.exec("UPDATE account SET balance = balance - $1 WHERE id = $2 RETURNING balance", 300, 1);
  CHECK(rows[0][0].as<long>() == 700);
  tx.commit();
  CHECK(is_clean(db));
  CHECK(here.db.balance(1) == 700);
  CHECK(fence_token(here, "account/1") == std::to_string(held.token().value()));
}

TEST_CASE("transaction: destroyed without commit, nothing remains") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  {
    transaction tx{db, held};
    tx.exec("UPDATE account SET balance = 0");
  }
  CHECK(is_clean(db));
  CHECK(here.db.balance(1) == 1000);
  CHECK(fence_token(here, "account/1") == "0");
}

TEST_CASE("transaction: the lease may be released and destroyed before it") {
  workplace here;
  pqxx::connection db{here.db.url()};
  auto held = std::make_unique<lease>(here.acquire("account/1"));
  transaction tx{db, *held};
  held.reset();
  tx.exec("UPDATE account SET balance = 1 WHERE id = 1");
  tx.commit();
  CHECK(here.db.balance(1) == 1);
}

TEST_CASE("transaction: arguments of all types") {
  workplace here;
  lease const held = here.acquire("r");
  pqxx::connection db{here.db.url()};
  transaction tx{db, held};
  auto const row = tx.exec(
      "SELECT $1::text, $2::text, $3::bool, $4::float8, $5::bigint, $6::jsonb ->> 'a', $7::int, "
      "$8::bigint",
      std::string{"it's"}, "a \\ b", true, 0.1, held.token(), json{{"a", "ü"}},
      std::optional<int>{}, nullptr)[0];
  CHECK(row[0].as<std::string>() == "it's");
  CHECK(row[1].as<std::string>() == "a \\ b");
  CHECK(row[2].as<bool>());
  CHECK(row[3].as<double>() == 0.1);
  CHECK(row[4].as<std::int64_t>() == held.token().value());
  CHECK(row[5].as<std::string>() == "ü");
  CHECK(row[6].is_null());
  CHECK(row[7].is_null());
  CHECK_THROWS_AS(tx.exec("SELECT $1::text", std::string("a\0b", 3)), invalid_request);
}

TEST_CASE("transaction: names and requests cannot leave their quotes") {
  workplace here;
  std::string const name = "it's \"odd\" \\ {a,b} $1 ü\n/*";
  lease const held = here.acquire(name);
  pqxx::connection db{here.db.url()};
  for (char const* strings : {"on", "off"}) {
    { pqxx::nontransaction{db}.exec(std::string{"SET standard_conforming_strings = "} + strings); }
    idempotency_key const key{.scope = name, .key = name + strings, .request = {{"q", name}}};
    transaction tx{db, held, key};
    tx.commit(json{{"a", name}});
    transaction again{db, held, key};
    REQUIRE(again.replay().has_value());
    CHECK(*again.replay() == json{{"a", name}});
  }
  CHECK(here.db.value("SELECT resource FROM fenceguard.fence") == name);
}

TEST_CASE("transaction: three round trips with one statement and an answer") {
  workplace here;
  ts::relay relay{test_postgres::shared_server().port()};
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url_through(relay.port())};
  relay.reset_counters();
  idempotency_key const key{.scope = "s", .key = "k", .request = 1};
  {
    transaction tx{db, held, key};
    CHECK(relay.round_trips() == 1);
    tx.exec("UPDATE account SET balance = balance - $1 WHERE id = $2", 1, 1);
    tx.commit("done");
  }
  CHECK(relay.round_trips() == 3);
  relay.reset_counters();
  {
    transaction tx{db, held};
    tx.exec("UPDATE account SET balance = balance - $1 WHERE id = $2", 1, 1);
    tx.commit();
  }
  CHECK(relay.round_trips() == 3);
}

TEST_CASE("transaction: a statement error latches, also where the caller has caught it") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  transaction tx{db, held};
  tx.exec("UPDATE account SET balance = 0 WHERE id = 1");
  CHECK_THROWS_AS(tx.exec("SELECT 1/0"), pqxx::sql_error);
  CHECK_THROWS_WITH_AS(tx.exec("SELECT 1"), doctest::Contains("division by zero"), invalid_request);
  CHECK_THROWS_WITH_AS(tx.commit(), doctest::Contains("division by zero"), invalid_request);
  CHECK_THROWS_AS(tx.commit(), invalid_request);
  CHECK(is_clean(db));
  CHECK(here.db.balance(1) == 1000);
  CHECK(fence_token(here, "account/1") == "0");
}

TEST_CASE("transaction: an error before anything was sent latches too") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  transaction tx{db, held};
  tx.exec("UPDATE account SET balance = 0 WHERE id = 1");
  CHECK_THROWS_AS(tx.exec("UPDATE account SET balance = $1", std::string("\0", 1)),
                  invalid_request);
  CHECK_THROWS_AS(tx.commit(), invalid_request);
  CHECK(here.db.balance(1) == 1000);
}

TEST_CASE("transaction: an unguarded write is its own error") {
  workplace here;
  here.db.run(
      "CREATE FUNCTION bank.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
      "'unguarded write to account/1' USING ERRCODE = 'TF002'; END $$; CREATE TRIGGER t BEFORE "
      "UPDATE ON bank.account FOR EACH ROW EXECUTE FUNCTION bank.refuse()");
  lease const held = here.acquire("account/2");
  pqxx::connection db{here.db.url()};
  transaction tx{db, held};
  CHECK_THROWS_WITH_AS(tx.exec("UPDATE account SET balance = 0 WHERE id = 1"),
                       doctest::Contains("unguarded write to account/1"), unguarded_write);
  CHECK_THROWS_AS(tx.commit(), invalid_request);
}

TEST_CASE("transaction: backend killed before COMMIT") {
  workplace here;
  lease const held = here.acquire("account/1");
  fencing_token const before = held.token();
  pqxx::connection db{here.db.url()};
  transaction tx{db, held};
  tx.exec("UPDATE account SET balance = 0 WHERE id = 1");
  std::string const pid = std::to_string(db.backendpid());
  here.db.run("SELECT pg_terminate_backend(" + pid + ")");
  ts::wait_until("the backend is gone", [&] {
    return here.db.value("SELECT count(*) FROM pg_stat_activity WHERE pid = " + pid) == "0";
  });
  CHECK_THROWS_WITH_AS(tx.commit(), doctest::Contains("terminating connection"),
                       pqxx::broken_connection);
  CHECK_THROWS_AS(tx.commit(), invalid_request);
  CHECK_THROWS_AS(static_cast<void>(tx.resolve(db)), invalid_request);
  CHECK(here.db.balance(1) == 1000);
  CHECK(fence_token(here, "account/1") == "0");

  // What was under way may still land: the next claim carries a fresh token.
  pqxx::connection other{here.db.url()};
  transaction again{other, held};
  again.commit();
  CHECK(held.token() > before);
}

TEST_CASE("transaction: a connection that was replaced is not written to") {
  for (bool const committing : {false, true}) {
    CAPTURE(committing);
    workplace here;
    lease const held = here.acquire("account/1");
    pqxx::connection db{here.db.url()};
    transaction tx{db, held};
    here.db.run("SELECT pg_terminate_backend(" + std::to_string(db.backendpid()) + ")");
    ts::wait_until("libpqxx has noticed", [&] {
      try {
        db.get_notifs();
      } catch (pqxx::broken_connection const&) {
      }
      return !db.is_open();
    });
#if PQXX_VERSION_MAJOR < 7
    // As libpqxx does itself after a failure: the next message would get a new session, unasked.
    db.disconnect();
#endif
    if (committing) {
      CHECK_THROWS_AS(tx.commit(), pqxx::broken_connection);
    } else {
      CHECK_THROWS_AS(tx.exec("UPDATE account SET balance = 0 WHERE id = 1"),
                      pqxx::broken_connection);
    }
    CHECK_THROWS_AS(tx.commit(), invalid_request);
    CHECK(here.db.balance(1) == 1000);
  }
}

TEST_CASE("transaction: connection lost while a statement runs") {
  workplace here;
  ts::relay relay{test_postgres::shared_server().port()};
  lease const held = here.acquire("account/1");
  fencing_token const before = held.token();
  pqxx::connection db{here.db.url_through(relay.port())};
  transaction tx{db, held};
  relay.when_seen(ts::direction::to_server, "balance = 77", ts::reaction::cut_after);
  CHECK_THROWS_WITH_AS(tx.exec("UPDATE account SET balance = 77"),
                       doctest::Contains("nothing of the transaction was committed"),
                       pqxx::broken_connection);
  CHECK_THROWS_AS(tx.commit(), invalid_request);
  CHECK(here.db.balance(1) == 1000);
  pqxx::connection other{here.db.url()};
  transaction again{other, held};
  CHECK(held.token() > before);
}

TEST_CASE("transaction: a stale grant is refused before the caller's first statement") {
  workplace here;
  recorder events;
  lease old = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  { transaction{db, old}.commit(); }
  here.overtake(old);
  std::string const current = fence_token(here, "account/1");
  try {
    transaction tx{db, old, {.observer = &events}};
    FAIL("the claim was accepted");
  } catch (stale_token const& refused) {
    CHECK(refused.resource() == "account/1");
    CHECK(refused.presented() == old.token());
    CHECK(std::to_string(refused.current().value()) == current);
    CHECK(refused.advice() == next_step::reacquire);
  }
  CHECK(events.count("stale_claim") == 1);
  CHECK(is_clean(db));
  CHECK(fence_token(here, "account/1") == current);
}

TEST_CASE("transaction: another's grant in the set is named in the refusal") {
  workplace here;
  pqxx::connection db{here.db.url()};
  auto both = here.leases.acquire_all({.resources = {"a", "b"}, .ttl = 30s});
  REQUIRE(both.has_value());
  { transaction{db, *both}.commit(); }
  here.leases.expire("b");
  lease const newer = here.acquire("b");
  pqxx::connection other{here.db.url()};
  { transaction{other, newer}.commit(); }
  try {
    transaction tx{db, *both};
    FAIL("the claim was accepted");
  } catch (stale_token const& refused) {
    CHECK(refused.resource() == "b");
    CHECK(refused.current() == newer.token());
  }
  CHECK(fence_token(here, "a") == std::to_string(both->at("a").token().value()));
}

TEST_CASE("transaction: a lease that has run out while nobody newer has claimed is accepted") {
  workplace here;
  lease const held = here.acquire("account/1");
  here.leases.expire("account/1");
  pqxx::connection db{here.db.url()};
  transaction tx{db, held};
  tx.exec("UPDATE account SET balance = 5 WHERE id = 1");
  tx.commit();
  CHECK(here.db.balance(1) == 5);
}

TEST_CASE("transaction: a busy fence names its holder, and the patience bounds the wait") {
  workplace here;
  lease const first = here.acquire("account/1");
  here.leases.expire("account/1");
  lease const second = here.acquire("account/1");
  pqxx::connection slow{here.db.url() + (here.db.url().find("://") == std::string::npos
                                             ? " application_name=slow_one"
                                             : "?application_name=slow_one")};
  transaction open{slow, first};
  pqxx::connection db{here.db.url()};
  auto const began = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH_AS((transaction{db, second, {.patience = 200ms}}),
                       doctest::Contains("slow_one"), fence_busy);
  auto const waited = std::chrono::steady_clock::now() - began;
  CHECK(waited >= 200ms);
  CHECK(waited < 5s);
  CHECK(is_clean(db));
  open.commit();
  transaction{db, second}.commit();
}

TEST_CASE("transaction: a holder that sits idle is ended and does not block its successor") {
  workplace here;
  lease const first = here.acquire("account/1");
  here.leases.expire("account/1");
  lease const second = here.acquire("account/1");
  pqxx::connection idle{here.db.url()};
  transaction sleeping{idle, first, {.max_idle = 100ms}};
  pqxx::connection db{here.db.url()};
  transaction tx{db, second};  // waits for the server to end the other one
  tx.exec("UPDATE account SET balance = 2 WHERE id = 1");
  tx.commit();
  CHECK_THROWS_WITH_AS(sleeping.commit(), doctest::Contains("idle-in-transaction timeout"),
                       pqxx::broken_connection);
  CHECK(here.db.balance(1) == 2);
}

TEST_CASE("transaction: the idle bound defaults to the shortest ttl and never loosens") {
  workplace here;
  lease const held = here.acquire("r", 7s);
  pqxx::connection db{here.db.url()};
  auto const idle_timeout = [&] {
    transaction tx{db, held};
    return tx.exec("SHOW idle_in_transaction_session_timeout")[0][0].as<std::string>();
  };
  CHECK(idle_timeout() == "7s");
  { pqxx::nontransaction{db}.exec("SET idle_in_transaction_session_timeout = '3s'"); }
  CHECK(idle_timeout() == "3s");
  { pqxx::nontransaction{db}.exec("SET idle_in_transaction_session_timeout = '1h'"); }
  CHECK(idle_timeout() == "7s");
  auto const after = pqxx::nontransaction{db}.exec("SHOW idle_in_transaction_session_timeout");
  CHECK(after[0][0].as<std::string>() == "1h");
}

TEST_CASE("transaction: statements that begin or end a transaction are refused") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  for (char const* statement :
       {"COMMIT", "commit", " \t\n;; Commit work", "/* a /* nested */ b */ END", "-- x\nROLLBACK",
        "--x\rrollback", "ABORT", "BEGIN", "START TRANSACTION", "PREPARE TRANSACTION 'x'",
        "prepare /**/ transaction 'x'", "ROLLBACK TRANSACTION", "ROLLBACK AND CHAIN"}) {
    CAPTURE(statement);
    transaction tx{db, held};
    tx.exec("UPDATE account SET balance = 0 WHERE id = 1");
    CHECK_THROWS_AS(tx.exec(statement), invalid_request);
    CHECK_THROWS_AS(tx.commit(), invalid_request);
  }
  {
    transaction tx{db, held};
    CHECK_THROWS_AS(tx.exec("SELECT 1; COMMIT"), pqxx::sql_error);  // one statement each
  }
  CHECK(here.db.balance(1) == 1000);
}

TEST_CASE("transaction: what looks like the end of a transaction and is not") {
  for (char const* statement : {"SELECT 'COMMIT'", "ENDLESS", "COMMITTED", "PREPARE p AS SELECT 1",
                                "rollback to savepoint s", "ROLLBACK WORK TO s", "SAVEPOINT begin",
                                "/* COMMIT", "-- COMMIT", "", "END_", "end$", "\"COMMIT\""}) {
    CAPTURE(statement);
    CHECK_FALSE(postgres::transaction_control(statement).has_value());
  }
}

TEST_CASE("transaction: savepoints stay inside") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  transaction tx{db, held};
  tx.exec("SAVEPOINT s");
  tx.exec("UPDATE account SET balance = 0 WHERE id = 1");
  tx.exec("ROLLBACK TO SAVEPOINT s");
  tx.exec("UPDATE account SET balance = 3 WHERE id = 2");
  tx.commit();
  CHECK(here.db.balance(1) == 1000);
  CHECK(here.db.balance(2) == 3);
  CHECK(fence_token(here, "account/1") == std::to_string(held.token().value()));
}

TEST_CASE("transaction: nobody else uses the connection while it is open") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  transaction tx{db, held};
  CHECK_THROWS_AS(pqxx::work{db}, pqxx::usage_error);
  CHECK_THROWS_AS((transaction{db, held}), pqxx::usage_error);
  tx.exec("UPDATE account SET balance = 4 WHERE id = 1");
  tx.commit();
  CHECK(here.db.balance(1) == 4);
}

TEST_CASE("transaction: after its end it refuses work") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  transaction tx{db, held};
  tx.commit();
  CHECK_THROWS_AS(tx.exec("SELECT 1"), invalid_request);
  CHECK_THROWS_AS(tx.commit(), invalid_request);
  CHECK_THROWS_AS(static_cast<void>(tx.resolve(db)), invalid_request);
  tx.rollback();
  transaction given_up{db, held};
  given_up.exec("UPDATE account SET balance = 0");
  given_up.rollback();
  given_up.rollback();
  CHECK_THROWS_AS(given_up.commit(), invalid_request);
  CHECK(here.db.balance(1) == 1000);
}

TEST_CASE("transaction: options out of range") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  CHECK_THROWS_AS((transaction{db, held, {.patience = 0ms}}), invalid_request);
  CHECK_THROWS_AS((transaction{db, held, {.patience = -1ms}}), invalid_request);
  CHECK_THROWS_AS((transaction{db, held, {.patience = 601s}}), invalid_request);
  CHECK_THROWS_AS((transaction{db, held, {.max_idle = -1ms}}), invalid_request);
  lease_set const none{{}};
  CHECK_THROWS_AS((transaction{db, none}), invalid_request);
  CHECK(fence_token(here, "account/1") == "0");
}

TEST_CASE("transaction: a database without the schema names the command to run") {
  test_postgres::database bare{test_postgres::shared_server(), false};
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{bare.url()};
  CHECK_THROWS_WITH_AS((transaction{db, held}), doctest::Contains("`fenceguard migrate`"),
                       schema_mismatch);
  CHECK(is_clean(db));
}

TEST_CASE("transaction: a stranger's missing function is not taken for a missing schema") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  transaction tx{db, held};
  CHECK_THROWS_AS(tx.exec("SELECT no_such_function() /* fenceguard.x */"),
                  pqxx::undefined_function);
}

TEST_CASE("transaction: connection errors at construction are libpqxx's") {
  workplace here;
  ts::relay relay{test_postgres::shared_server().port()};
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url_through(relay.port())};
  relay.sever();
  CHECK_THROWS_AS((transaction{db, held}), pqxx::broken_connection);
  relay.restore();
  CHECK(fence_token(here, "account/1") == "0");
}

TEST_CASE("transaction: a token that nobody was given is refused") {
  workplace here;
  testing::token_source forged{fencing_token::max_value - 100};
  testing::lease_store store{forged};
  auto const held = store.acquire({.resource = "account/1", .ttl = 30s});
  pqxx::connection db{here.db.url()};
  CHECK_THROWS_WITH_AS((transaction{db, *held}), doctest::Contains("was never issued"),
                       invalid_request);
  CHECK(is_clean(db));
  CHECK(fence_token(here, "account/1") == "0");
}

TEST_CASE("transaction: of two grants with the same token the second is refused") {
  workplace here;
  testing::token_source one{1000};
  testing::token_source two{1000};
  testing::lease_store first_store{one};
  testing::lease_store second_store{two};
  auto const first = first_store.acquire({.resource = "account/1", .ttl = 30s});
  auto const second = second_store.acquire({.resource = "account/1", .ttl = 30s});
  REQUIRE(first->token() == second->token());
  pqxx::connection db{here.db.url()};
  { transaction{db, *first}.commit(); }
  second_store.expire("account/1");
  try {
    transaction tx{db, *second};
    FAIL("the claim was accepted");
  } catch (stale_token const& refused) {
    CHECK(refused.presented() == refused.current());
  }
  transaction{db, *first}.commit();  // the same grant may claim again with its token
}

TEST_CASE("transaction: a first claim that is refused heals once, while its store says it holds") {
  workplace here;
  lease const held = here.acquire("account/1");
  // Somebody has claimed with a higher token outside of the store's knowledge.
  std::string const higher = std::to_string(here.tokens.reserve(1).value());
  here.db.run("SELECT fenceguard.claim('account/1', " + higher + ", 'ghost')");
  fencing_token const before = held.token();
  pqxx::connection db{here.db.url()};
  {
    transaction tx{db, held};
    tx.exec("UPDATE account SET balance = 9 WHERE id = 1");
    tx.commit();
  }
  CHECK(held.token() > before);
  CHECK(here.db.balance(1) == 9);

  // Its claim was committed: from now on a refusal is final.
  std::string const highest = std::to_string(here.tokens.reserve(1).value());
  here.db.run("SELECT fenceguard.claim('account/1', " + highest + ", 'ghost')");
  fencing_token const kept = held.token();
  CHECK_THROWS_AS((transaction{db, held}), stale_token);
  CHECK(held.token() == kept);
  CHECK(is_clean(db));
}

TEST_CASE("transaction: overtaken by its own grant's advance, it says retry") {
  workplace here;
  lease held = here.acquire("account/1");
  pqxx::connection blocker{here.db.url()};
  pqxx::nontransaction block{blocker};
  block.exec("BEGIN");
  block.exec("SELECT fenceguard.claim('account/1', 1, 'older')");
  auto waiting = std::async(std::launch::async, [&] {
    pqxx::connection db{here.db.url()};
    try {
      transaction tx{db, held, {.patience = 60s}};
      return next_step::give_up;
    } catch (stale_token const& refused) {
      return refused.advice();
    }
  });
  ts::wait_until("the transaction waits for the fence", [&] {
    return here.db.value("SELECT count(*) FROM pg_locks WHERE NOT granted") == "1";
  });
  std::string const fresh = std::to_string(held.advance().value());
  block.exec("SELECT fenceguard.claim('account/1', " + fresh + ", '" + held.holder() + "')");
  block.exec("COMMIT");
  CHECK(waiting.get() == next_step::retry);
}

TEST_CASE("transaction: read, compute, write under two grants loses no update") {
  workplace here;
  constexpr int rounds = 40;
  auto const work = [&] {
    pqxx::connection db{here.db.url()};
    for (int done = 0; done < rounds;) {
      here.leases.expire("account/1");  // the other one goes on as if it still held
      auto const held = here.leases.acquire({.resource = "account/1", .ttl = 30s});
      if (!held) continue;
      try {
        transaction tx{db, *held};
        auto const balance = tx.exec("SELECT balance FROM account WHERE id = 1")[0][0].as<long>();
        tx.exec("UPDATE account SET balance = $1 WHERE id = 1", balance + 1);
        tx.commit();
        ++done;
      } catch (stale_token const&) {
      }
    }
  };
  std::thread other{work};
  work();
  other.join();
  CHECK(here.db.balance(1) == 1000 + 2 * rounds);
}

TEST_CASE("transaction: transfers in both directions at once") {
  workplace here;
  constexpr int rounds = 30;
  auto const transfer = [&](int from, int to, int amount) {
    pqxx::connection db{here.db.url()};
    for (int done = 0; done < rounds;) {
      // Without waiting for each other's leases: only the database keeps the two apart.
      here.leases.expire("account/1");
      here.leases.expire("account/2");
      auto const both =
          here.leases.acquire_all({.resources = {"account/2", "account/1"}, .ttl = 30s});
      if (!both) continue;
      try {
        transaction tx{db, *both};
        tx.exec("UPDATE account SET balance = balance - $1 WHERE id = $2", amount, from);
        tx.exec("UPDATE account SET balance = balance + $1 WHERE id = $2", amount, to);
        tx.commit();
        ++done;
      } catch (stale_token const&) {
      }
    }
  };
  std::thread there{transfer, 1, 2, 3};
  transfer(2, 1, 1);
  there.join();
  CHECK(here.db.balance(1) == 1000 - 2 * rounds);
  CHECK(here.db.balance(2) == 1000 + 2 * rounds);
}
