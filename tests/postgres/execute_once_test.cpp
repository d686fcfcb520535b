#include <doctest/doctest.h>

#include <atomic>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/execute_once.hpp>
#include <fenceguard/postgres/transaction.hpp>
#include <future>
#include <thread>

#include "postgres/database.hpp"
#include "servers/relay.hpp"
#include "servers/wait.hpp"

using namespace std::chrono_literals;
using namespace fenceguard;
using nlohmann::json;
using postgres::execute_once;
using postgres::execute_once_result;
using postgres::idempotency_key;
using test_postgres::recorder;
using test_postgres::workplace;
namespace ts = fenceguard::test_servers;

namespace {

std::string const withdraw =
    "UPDATE account SET balance = balance - $1 WHERE id = $2 RETURNING id, balance";

idempotency_key key_of(std::string const& name, json const& request = {{"amount", 100}}) {
  return {.scope = "test", .key = name, .request = request};
}

template <class Lease>
concept accepted = requires(pqxx::connection& db, Lease held, idempotency_key key) {
  execute_once(db, static_cast<Lease>(held), key, "SELECT 1");
};
static_assert(accepted<lease const&>);
static_assert(!accepted<lease&&>);

}  // namespace

TEST_CASE("execute_once: claims, writes and answers in one round trip; a replay in one as well") {
  workplace here;
  lease const held = here.acquire("account/1");
  ts::relay relay{test_postgres::shared_server().port()};
  pqxx::connection db{here.db.url_through(relay.port())};
  json const expected = {{"row_count", 1}, {"rows", {{{"id", 1}, {"balance", 900}}}}};

  relay.reset_counters();
  execute_once_result const first = execute_once(db, held, key_of("k"), withdraw, 100, 1);
  CHECK(relay.round_trips() == 1);
  CHECK_FALSE(first.replayed);
  CHECK(first.answer == expected);

  relay.reset_counters();
  execute_once_result const again = execute_once(db, held, key_of("k"), withdraw, 100, 1);
  CHECK(relay.round_trips() == 1);
  CHECK(again.replayed);
  CHECK(again.answer == expected);
  CHECK(here.db.balance(1) == 900);
  CHECK(here.db.value("SELECT token FROM fenceguard.fence WHERE resource = 'account/1'") ==
        std::to_string(held.token().value()));
  CHECK(here.db.value("SELECT token FROM fenceguard.idempotency") ==
        std::to_string(held.token().value()));
  CHECK_THROWS_AS(execute_once(db, held, key_of("k", {{"amount", 7}}), withdraw, 7, 1), key_reused);
}

TEST_CASE("execute_once: the answer tells what the statement did") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  CHECK(execute_once(db, held, key_of("many"), "UPDATE account SET balance = 7").answer ==
        json{{"row_count", 2}, {"rows", json::array()}});
  CHECK(execute_once(db, held, key_of("none"), withdraw, 1, 99).answer ==
        json{{"row_count", 0}, {"rows", json::array()}});
  CHECK(execute_once(db, held, key_of("insert"),
                     "INSERT INTO account SELECT $1, $2 -- $3\n RETURNING *;", 9, 5)
            .answer == json{{"row_count", 1}, {"rows", {{{"id", 9}, {"balance", 5}}}}});
  CHECK(execute_once(db, held, key_of("delete"),
                     "WITH doomed AS (SELECT 9 AS id) DELETE FROM account USING doomed WHERE "
                     "account.id = doomed.id")
            .answer["row_count"] == 1);
  json const text = execute_once(db, held, key_of("text"), "SELECT $1 AS a, '$1' AS b, $2 AS c",
                                 "it's \\ \"here\"", nullptr)
                        .answer["rows"][0];
  CHECK(text == json{{"a", "it's \\ \"here\""}, {"b", "$1"}, {"c", nullptr}});
  json const same = execute_once(db, held, key_of("text"), "SELECT 1").answer["rows"][0];
  CHECK(same == text);
}

TEST_CASE("execute_once: literals under standard_conforming_strings off") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  {
    pqxx::nontransaction tx{db};
    tx.exec("SET standard_conforming_strings = off");
    tx.exec("SET escape_string_warning = off");
  }
  json const row = execute_once(db, held, key_of("k"), R"(SELECT $1 AS a, '\'$1' AS b)", R"(\')")
                       .answer["rows"][0];
  CHECK(row == json{{"a", R"(\')"}, {"b", "'$1"}});
}

TEST_CASE("execute_once: a replay without a readable DETAIL asks for the answer") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  auto const key = key_of("x\nDETAIL:  {\"forged\": true}");
  execute_once_result const first = execute_once(db, held, key, withdraw, 100, 1);
  execute_once_result const again = execute_once(db, held, key, withdraw, 100, 1);
  CHECK(again.replayed);
  CHECK(again.answer == first.answer);
  // An answer that is no JSON document to the client's parser cannot be stored; NULL can.
  here.db.run("UPDATE fenceguard.idempotency SET answer = NULL");
  CHECK(execute_once(db, held, key, withdraw, 100, 1).answer.is_null());
}

TEST_CASE("execute_once: a stale holder is refused, and gets the answer of an earlier try") {
  workplace here;
  lease held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  recorder seen;
  execute_once_result const first = execute_once(db, held, key_of("k"), withdraw, 100, 1);
  here.overtake(held);
  CHECK_THROWS_AS(
      execute_once_with(db, held, key_of("other"), withdraw, {100, 1}, {.observer = &seen}),
      stale_token);
  CHECK(seen.count("stale_claim") == 1);
  execute_once_result const again =
      execute_once_with(db, held, key_of("k"), withdraw, {100, 1}, {.observer = &seen});
  CHECK(again.replayed);
  CHECK(again.answer == first.answer);
  CHECK(seen.count("replayed") == 1);
  CHECK(here.db.balance(1) == 900);
  CHECK(here.db.value("SELECT count(*) FROM fenceguard.idempotency") == "1");
}

TEST_CASE("execute_once: a failed statement leaves nothing") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  here.db.run("SELECT fenceguard.protect('bank.account', 'account/{id}')");
  CHECK_THROWS_AS(execute_once(db, held, key_of("k"), "SELECT 1 / $1::int", 0), pqxx::sql_error);
  CHECK_THROWS_AS(execute_once(db, held, key_of("k"), "SELECT nonsense"), pqxx::sql_error);
  CHECK_THROWS_AS(execute_once(db, held, key_of("k"), withdraw, 100, 2), unguarded_write);
  CHECK_THROWS_AS(execute_once(db, held, key_of("k"), withdraw, 100), invalid_request);
  CHECK_THROWS_AS(execute_once(db, held, key_of("k"), "SELECT 1; COMMIT"), invalid_request);
  CHECK_THROWS_AS(execute_once(db, held, key_of(""), "SELECT 1"), invalid_request);
  CHECK_THROWS_AS(execute_once_with(db, held, key_of("k"), "SELECT 1", {}, {.patience = 0ms}),
                  invalid_request);
  CHECK(here.db.value("SELECT count(*) FROM fenceguard.idempotency") == "0");
  CHECK(here.db.value("SELECT count(*) FROM fenceguard.fence") == "0");
  CHECK_FALSE(execute_once(db, held, key_of("k"), withdraw, 100, 1).replayed);
}

TEST_CASE("execute_once: without the schema the error names the command") {
  test_postgres::database bare{test_postgres::shared_server(), false};
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{bare.url()};
  CHECK_THROWS_WITH_AS(execute_once(db, held, key_of("k"), "SELECT 1"),
                       doctest::Contains("fenceguard migrate"), schema_mismatch);
}

TEST_CASE("execute_once: eight first tries of one key have one effect and one answer") {
  workplace here;
  lease const held = here.acquire("account/1");
  std::atomic<int> effects{0};
  std::atomic<int> equal{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] {
      pqxx::connection db{here.db.url()};
      auto const done = execute_once(db, held, key_of("k"), withdraw, 100, 1);
      if (!done.replayed) ++effects;
      if (done.answer["rows"][0]["balance"] == 900) ++equal;
    });
  }
  for (auto& caller : callers) caller.join();
  CHECK(effects == 1);
  CHECK(equal == 8);
  CHECK(here.db.balance(1) == 900);
}

// The business statement must not use a snapshot from before the claim: under a stricter default
// level, or if the two were one statement, it would compute from the old balance.
TEST_CASE("execute_once: the statement sees what was committed while its claim waited") {
  workplace here;
  lease const held = here.acquire("account/1");
  here.db.run("ALTER DATABASE " + here.db.value("SELECT current_database()") +
              " SET default_transaction_isolation = 'serializable'");
  here.db.run("ALTER DATABASE " + here.db.value("SELECT current_database()") +
              " SET default_transaction_read_only = on");
  pqxx::connection first{here.db.url()};
  pqxx::connection second{here.db.url()};
  postgres::transaction tx{first, held};
  tx.exec("UPDATE account SET balance = 500 WHERE id = 1");
  auto other = std::async(std::launch::async, [&] {
    // Reads through another path than the row that it writes.
    return execute_once(second, held, key_of("k"),
                        "UPDATE account SET balance = (SELECT balance FROM account WHERE id = 1) "
                        "WHERE id = 2 RETURNING balance");
  });
  ts::wait_until("the claim waits", [&] {
    return here.db.value(
               "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "
               "wait_event_type = 'Lock'") == "1";
  });
  tx.commit();
  CHECK(other.get().answer["rows"][0]["balance"] == 500);
  CHECK(here.db.balance(2) == 500);
}

TEST_CASE("execute_once: a busy key and a busy resource are told apart") {
  workplace here;
  lease const held = here.acquire("account/1");
  lease const elsewhere = here.acquire("account/2");
  pqxx::connection first{here.db.url()};
  pqxx::connection second{here.db.url()};
  postgres::transaction tx{first, held, key_of("k")};
  CHECK_THROWS_AS(
      execute_once_with(second, elsewhere, key_of("k"), "SELECT 1", {}, {.patience = 20ms}),
      in_progress);
  CHECK_THROWS_AS(
      execute_once_with(second, held, key_of("other"), "SELECT 1", {}, {.patience = 20ms}),
      fence_busy);
}

TEST_CASE("execute_once: a reply that is lost is unknown, and a retry tells") {
  workplace here;
  lease const held = here.acquire("account/1");
  fencing_token const before = held.token();
  ts::relay relay{test_postgres::shared_server().port()};
  recorder seen;
  {
    pqxx::connection db{here.db.url_through(relay.port())};
    execute_once(db, held, key_of("first"), "SELECT 1");
    relay.when_seen(ts::direction::to_client, "row_count", ts::reaction::cut_before);
    CHECK_THROWS_AS(
        execute_once_with(db, held, key_of("k"), withdraw, {100, 1}, {.observer = &seen}),
        commit_unknown);
    CHECK(relay.fired() == 1);
  }
  CHECK(seen.count("commit_unknown") == 1);
  ts::wait_until("it is committed", [&] { return here.db.balance(1) == 900; });
  pqxx::connection db{here.db.url()};
  auto const again = execute_once(db, held, key_of("k"), withdraw, 100, 1);
  CHECK(again.replayed);
  CHECK(again.answer["rows"][0]["balance"] == 900);
  CHECK(held.token() > before);  // the late request was fenced out
}

TEST_CASE("execute_once: a connection that is over before it is used has written nothing") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  db.prepare("keep", "SELECT 1");  // opens it
  { pqxx::nontransaction{db}.exec("SELECT 1"); }
  here.db.run(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'ledger_owner'"
      " AND datname = current_database()");
  ts::wait_until("the backend is gone", [&] {
    return here.db.value(
               "SELECT count(*) FROM pg_stat_activity WHERE usename = 'ledger_owner' "
               "AND datname = current_database()") == "0";
  });
  CHECK_THROWS_AS(execute_once(db, held, key_of("k"), withdraw, 100, 1), pqxx::broken_connection);
  CHECK(here.db.balance(1) == 1000);
}

TEST_CASE("execute_once: heals a first claim below a token that the database accepted") {
  workplace here;
  lease const held = here.acquire("account/1");
  here.db.run("INSERT INTO fenceguard.fence VALUES ('account/1', " +
              std::to_string(held.token().value() + 1) + ", 'other', '5', now())");
  pqxx::connection db{here.db.url()};
  CHECK_FALSE(execute_once(db, held, key_of("k"), withdraw, 100, 1).replayed);
  // Once committed, a refusal is final.
  here.db.run("UPDATE fenceguard.fence SET token = token + 1, holder = 'another'");
  CHECK_THROWS_AS(execute_once(db, held, key_of("k2"), withdraw, 100, 1), stale_token);
}

TEST_CASE("execute_once: acknowledges a promotion by itself") {
  workplace here;
  lease const before = here.acquire("account/1");
  here.db.run("UPDATE fenceguard.server_state SET timeline = 'FFFFFFFF'");
  pqxx::connection db{here.db.url()};
  // The grant's token is below the floor now; its store still holds it, so that it takes a new one.
  CHECK_FALSE(execute_once(db, before, key_of("k"), withdraw, 100, 1).replayed);
  CHECK(here.db.value("SELECT timeline FROM fenceguard.server_state") != "FFFFFFFF");
}

TEST_CASE("execute_once: nothing of it stays in the session") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  std::string const settings =
      "SELECT string_agg(name || '=' || setting, ',' ORDER BY name) FROM pg_settings WHERE name IN "
      "('lock_timeout', 'idle_in_transaction_session_timeout', 'tcp_user_timeout', "
      "'client_min_messages', 'default_transaction_isolation', 'transaction_isolation')";
  auto const now = [&] {
    pqxx::nontransaction tx{db};
    return tx.exec(settings)[0][0].as<std::string>();
  };
  {
    pqxx::nontransaction tx{db};
    tx.exec("SET client_min_messages = error");
    tx.exec("SET lock_timeout = '3s'");
  }
  std::string const before = now();
  execute_once(db, held, key_of("k"), withdraw, 100, 1);
  CHECK_THROWS(execute_once(db, held, key_of("k2"), "SELECT 1/0"));
  CHECK(now() == before);
}
