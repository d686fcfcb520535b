#include <doctest/doctest.h>

#include <fenceguard/postgres/transaction.hpp>
#include <future>

#include "postgres/database.hpp"
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

idempotency_key debit(std::string const& key, int amount) {
  return {.scope = "debit", .key = key, .request = {{"account", 1}, {"amount", amount}}};
}

json apply(pqxx::connection& db, lease const& held, idempotency_key const& key) {
  transaction tx{db, held, key};
  if (auto const& stored = tx.replay()) return *stored;
  auto const rows =
      tx.exec("UPDATE account SET balance = balance - $1 WHERE id = 1 RETURNING balance",
              key.request.at("amount").get<int>());
  json answer{{"balance", rows[0][0].as<long>()}};
  tx.commit(answer);
  return answer;
}

}  // namespace

TEST_CASE("idempotency: a repeat gets the stored answer and writes nothing") {
  workplace here;
  recorder events;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  json const first = apply(db, held, debit("k", 300));
  CHECK(first == json{{"balance", 700}});
  CHECK(apply(db, held, debit("k", 300)) == first);
  CHECK(here.db.balance(1) == 700);

  transaction again{db, held, debit("k", 300), {.observer = &events}};
  CHECK(events.count("replayed") == 1);
  CHECK_THROWS_WITH_AS(again.exec("UPDATE account SET balance = 0"), doctest::Contains("replay()"),
                       invalid_request);
  CHECK_THROWS_AS(again.commit(json{}), invalid_request);
  CHECK_THROWS_AS(again.commit(), invalid_request);
  again.rollback();
  pqxx::work free_connection{db};  // the connection is free already
  CHECK(here.db.balance(1) == 700);
}

TEST_CASE("idempotency: answers come back as they were given") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  int number = 0;
  for (json const& answer :
       {json{}, json{0}, json("ü\u0001\"\\"), json::array(), json{{"b", 1.5}, {"a", nullptr}},
        json(std::int64_t{9007199254740993}), json(std::uint64_t{18446744073709551615u})}) {
    CAPTURE(answer.dump());
    idempotency_key const key{.scope = "s", .key = std::to_string(++number), .request = nullptr};
    { transaction{db, held, key}.commit(answer); }
    transaction again{db, held, key};
    REQUIRE(again.replay().has_value());
    CHECK(*again.replay() == answer);
    CHECK(again.replay()->dump() == answer.dump());
  }
}

TEST_CASE("idempotency: the same request in another spelling is the same request") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  idempotency_key key{.scope = "s", .key = "k", .request = json::parse(R"({"a": 1, "b": [2]})")};
  { transaction{db, held, key}.commit("done"); }
  key.request = json::parse(R"({"b":[2],"a":1})");
  CHECK((transaction{db, held, key}).replay() == json("done"));
}

TEST_CASE("idempotency: a key that stands for another request is refused") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  apply(db, held, debit("k", 300));
  CHECK_THROWS_AS(apply(db, held, debit("k", 301)), key_reused);
  CHECK(here.db.balance(1) == 700);
  auto other_scope = debit("k", 301);
  other_scope.scope = "other";
  apply(db, held, other_scope);
  CHECK(here.db.balance(1) == 399);
}

TEST_CASE("idempotency: a holder that has become stale gets the stored answer") {
  workplace here;
  lease old = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  json const first = apply(db, old, debit("k", 300));
  here.overtake(old);
  CHECK(apply(db, old, debit("k", 300)) == first);
  CHECK_THROWS_AS(apply(db, old, debit("new", 1)), stale_token);
  CHECK(here.db.balance(1) == 700);
}

TEST_CASE("idempotency: eight first tries at once have one effect and one answer") {
  workplace here;
  lease const held = here.acquire("account/1");
  std::vector<std::future<json>> tries;
  for (int i = 0; i < 8; ++i) {
    tries.push_back(std::async(std::launch::async, [&] {
      pqxx::connection db{here.db.url()};
      return apply(db, held, debit("k", 300));
    }));
  }
  for (auto& one : tries) CHECK(one.get() == json{{"balance", 700}});
  CHECK(here.db.balance(1) == 700);
  CHECK(here.db.value("SELECT count(*) FROM fenceguard.idempotency") == "1");
}

TEST_CASE("idempotency: a first try that does not end in time is in progress") {
  workplace here;
  lease const held = here.acquire("account/1");
  lease const other = here.acquire("account/2");
  pqxx::connection slow{here.db.url()};
  transaction open{slow, held, debit("k", 300)};
  pqxx::connection db{here.db.url()};
  try {
    transaction tx{db, other, debit("k", 300), {.patience = 100ms}};
    FAIL("two transactions hold one key");
  } catch (in_progress const& busy) {
    CHECK(busy.advice() == next_step::retry_same_key);
  }
  open.rollback();
  apply(db, other, debit("k", 300));
  CHECK(here.db.balance(1) == 700);
}

TEST_CASE("idempotency: a failed try leaves no answer") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  {
    transaction tx{db, held, debit("k", 300)};
    CHECK_THROWS_AS(tx.exec("SELECT 1/0"), pqxx::sql_error);
    CHECK_THROWS_AS(tx.commit("done"), invalid_request);
  }
  CHECK(apply(db, held, debit("k", 300)) == json{{"balance", 700}});
}

TEST_CASE("idempotency: an answer and a key go together") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  {
    transaction tx{db, held, debit("k", 1)};
    CHECK_THROWS_AS(tx.commit(), invalid_request);
    tx.commit("done");  // nothing was sent, so nothing has latched
  }
  {
    transaction tx{db, held};
    CHECK_THROWS_AS(tx.commit("done"), invalid_request);
    tx.commit();
  }
  CHECK(here.db.value("SELECT count(*) FROM fenceguard.idempotency") == "1");
}

TEST_CASE("idempotency: bad keys change nothing") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  auto const refused = [&](idempotency_key key) {
    CHECK_THROWS_AS((transaction{db, held, std::move(key)}), invalid_request);
  };
  refused({.scope = "", .key = "k"});
  refused({.scope = "s", .key = ""});
  refused({.scope = std::string(129, 's'), .key = "k"});
  refused({.scope = "s", .key = std::string(257, 'k')});
  refused({.scope = "s", .key = std::string("a\0b", 3)});
  refused({.scope = "s", .key = "\xff"});
  refused({.scope = "s", .key = "k", .request = "\xff"});
  refused({.scope = "s", .key = "k", .request = std::string(1, '\0')});
  refused({.scope = "s", .key = "k", .retention = 0h});
  CHECK(here.db.value("SELECT count(*) FROM fenceguard.fence") == "0");
  transaction tx{db, held, {.scope = std::string(128, 's'), .key = std::string(256, 'k')}};
  tx.commit(json{});
}

TEST_CASE("idempotency: retention and token are stored with the answer") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  { transaction{db, held, {.scope = "s", .key = "k", .retention = 48h}}.commit(1); }
  CHECK(here.db.value(
            "SELECT expires_at = created_at + interval '48 hours' FROM fenceguard.idempotency") ==
        "t");
  CHECK(here.db.value("SELECT token FROM fenceguard.idempotency") ==
        std::to_string(held.token().value()));
}

TEST_CASE("idempotency: under a stricter level a first try that was not seen says so") {
  workplace here;
  lease const one = here.acquire("account/1");
  lease const two = here.acquire("account/2");
  // The second has its snapshot, then the first commits, then the second looks the key up.
  pqxx::connection slow{here.db.url()};
  auto first = std::make_unique<transaction>(slow, one, debit("k", 300));
  auto second = std::async(std::launch::async, [&] {
    pqxx::connection db{here.db.url()};
    transaction tx{
        db, two, debit("k", 300), {.level = postgres::isolation::repeatable_read, .patience = 60s}};
    tx.exec("UPDATE account SET balance = balance - 300 WHERE id = 2");
    tx.commit("second");
  });
  ts::wait_until("the second waits for the key", [&] {
    return here.db.value("SELECT count(*) FROM pg_locks WHERE NOT granted") == "1";
  });
  first->commit("first");
  try {
    second.get();
    FAIL("one key took effect twice");
  } catch (already_stored const& stored) {
    CHECK(stored.advice() == next_step::retry_same_key);
  }
  CHECK(here.db.balance(2) == 1000);
  CHECK((transaction{slow, two, debit("k", 300)}).replay() == json("first"));
}

TEST_CASE("idempotency: serialization failures pass as libpqxx's own") {
  workplace here;
  lease const held = here.acquire("account/1");
  pqxx::connection db{here.db.url()};
  transaction tx{db, held, {.level = postgres::isolation::repeatable_read}};
  tx.exec("SELECT 1");
  here.db.run("UPDATE bank.account SET balance = 5 WHERE id = 1");
  CHECK_THROWS_AS(tx.exec("UPDATE account SET balance = 6 WHERE id = 1"),
                  pqxx::serialization_failure);
  CHECK_THROWS_AS(tx.commit(), invalid_request);
  CHECK(here.db.balance(1) == 5);
}
