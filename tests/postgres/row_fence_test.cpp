#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/promotion.hpp>
#include <fenceguard/postgres/row_fence.hpp>
#include <fenceguard/postgres/token_source.hpp>
#include <future>

#include "postgres/database.hpp"
#include "servers/relay.hpp"
#include "servers/wait.hpp"

using namespace fenceguard;
using postgres::key;
using postgres::row_fence;
using postgres::verdict;
using postgres::write_result;
using test_postgres::database;
namespace ts = fenceguard::test_servers;

namespace {

struct shop {
  shop() {
    pqxx::connection owner{db.url()};
    pqxx::work tx{owner};
    tx.exec("CREATE TABLE item (shop int, number int, state text, PRIMARY KEY (shop, number))");
    tx.exec("INSERT INTO item SELECT 1, n, 'new' FROM generate_series(1, 20) n");
    tx.exec("SELECT fenceguard.add_row_fence('item')");
    tx.commit();
  }

  fencing_token next() { return tokens.reserve(1); }
  std::string state(int number) const {
    return db.value("SELECT coalesce(state, 'NULL') FROM bank.item WHERE number = " +
                    std::to_string(number));
  }

  database db;
  postgres::token_source tokens{db.url()};
  row_fence items{"item", {"shop", "number"}};
};

// Waits until a session of the database waits for a lock.
void await_waiter(database const& db) {
  ts::wait_until("somebody waits for a lock", [&] {
    return db.value(
               "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "
               "wait_event_type = 'Lock'") != "0";
  });
}

}  // namespace

TEST_CASE("row_fence: applied, stale and row_missing are told apart") {
  shop here;
  fencing_token const older = here.next();
  fencing_token const newer = here.next();
  pqxx::connection db{here.db.url()};
  pqxx::work tx{db};

  CHECK(here.items.update(tx, newer, key(1, 7), "state = $1", "paid").verdict == verdict::applied);
  for (fencing_token const late : {older, newer}) {
    write_result const refused = here.items.update(tx, late, key(1, 7), "state = $1", "late");
    CHECK(refused.verdict == verdict::stale);
    CHECK(refused.current == newer);
  }
  write_result const nowhere = here.items.update(tx, newer, key(1, 99), "state = $1", "paid");
  CHECK(nowhere.verdict == verdict::row_missing);
  CHECK_FALSE(nowhere.current.has_value());
  CHECK(here.items.update(tx, here.next(), key(1, 7), "state = $1 -- sent", "sent").verdict ==
        verdict::applied);
  tx.commit();
  CHECK(here.state(7) == "sent");
}

TEST_CASE("row_fence: NULL is a value; bad arguments change nothing") {
  shop here;
  pqxx::connection db{here.db.url()};
  pqxx::work tx{db};
  CHECK(here.items.update(tx, here.next(), key(1, 1), "state = $1", nullptr).verdict ==
        verdict::applied);
  CHECK_THROWS_AS((void)here.items.update(tx, here.next(), key(1), "state = $1", "x"),
                  invalid_request);
  CHECK_THROWS_AS((void)here.items.update(tx, here.next(), key(1, 2), " "), invalid_request);
  CHECK_THROWS_AS((void)here.items.insert(tx, here.next(), key(1, 2), {"state"}), invalid_request);
  CHECK_THROWS_AS((row_fence{"item", {}}), invalid_request);
  CHECK_THROWS_AS((row_fence{"", {"id"}}), invalid_request);
  CHECK_THROWS_AS((row_fence{"a.b.c", {"id"}}), invalid_request);
  CHECK_THROWS_AS((row_fence{"item", {"id", "id"}}), invalid_request);
  tx.commit();
  CHECK(here.state(1) == "NULL");
}

TEST_CASE("row_fence: a key that names several rows is refused") {
  shop here;
  row_fence const by_shop{"item", {"shop"}};
  pqxx::connection db{here.db.url()};
  pqxx::work tx{db};
  CHECK_THROWS_AS((void)by_shop.update(tx, here.next(), key(1), "state = $1", "x"),
                  invalid_request);
}

TEST_CASE("row_fence: insert") {
  shop here;
  pqxx::connection db{here.db.url()};
  pqxx::work tx{db};
  fencing_token const first = here.next();
  CHECK(here.items.insert(tx, first, key(2, 1), {"state"}, "new").verdict == verdict::applied);
  write_result const again = here.items.insert(tx, here.next(), key(2, 1), {"state"}, "again");
  CHECK(again.verdict == verdict::row_exists);
  CHECK(again.current == first);
  write_result const unfenced = here.items.insert(tx, here.next(), key(1, 1), {"state"}, "again");
  CHECK(unfenced.verdict == verdict::row_exists);
  CHECK_FALSE(unfenced.current.has_value());
  tx.commit();
}

TEST_CASE("row_fence: insert waits for another one of the same key and sees it") {
  shop here;
  pqxx::connection first{here.db.url()};
  pqxx::connection second{here.db.url()};
  fencing_token const token = here.next();
  fencing_token const later = here.next();
  for (bool const commits : {true, false}) {
    CAPTURE(commits);
    int const number = commits ? 100 : 101;
    pqxx::work tx{first};
    REQUIRE(here.items.insert(tx, token, key(1, number), {}).verdict == verdict::applied);
    auto other = std::async(std::launch::async, [&] {
      pqxx::work concurrent{second};
      write_result const result = here.items.insert(concurrent, later, key(1, number), {});
      concurrent.commit();
      return result;
    });
    await_waiter(here.db);
    commits ? tx.commit() : tx.abort();
    write_result const result = other.get();
    CHECK(result.verdict == (commits ? verdict::row_exists : verdict::applied));
    if (commits) CHECK(result.current == token);
  }
}

TEST_CASE("row_fence: remove") {
  shop here;
  pqxx::connection db{here.db.url()};
  pqxx::work tx{db};
  fencing_token const older = here.next();
  fencing_token const newer = here.next();
  REQUIRE(here.items.update(tx, newer, key(1, 7), "state = $1", "paid").verdict ==
          verdict::applied);
  CHECK(here.items.remove(tx, older, key(1, 7)).verdict == verdict::stale);
  CHECK(here.items.remove(tx, here.next(), key(1, 7)).verdict == verdict::applied);
  CHECK(here.items.remove(tx, here.next(), key(1, 7)).verdict == verdict::row_missing);
}

TEST_CASE("row_fence: claim returns the row and shuts older holders out") {
  shop here;
  fencing_token const older = here.next();
  fencing_token const newer = here.next();
  pqxx::connection db{here.db.url()};
  pqxx::connection other{here.db.url()};
  pqxx::work tx{db};
  write_result const claimed = here.items.claim(tx, newer, key(1, 3));
  REQUIRE(claimed.verdict == verdict::applied);
  CHECK(claimed.rows[0]["state"].as<std::string>() == "new");

  // An older holder that is under way waits for the row and is refused then.
  auto late = std::async(std::launch::async, [&] {
    pqxx::work concurrent{other};
    return here.items.update(concurrent, older, key(1, 3), "state = $1", "late");
  });
  await_waiter(here.db);
  CHECK(here.items.update(tx, here.next(), key(1, 3), "state = $1", "paid").verdict ==
        verdict::applied);
  tx.commit();
  CHECK(late.get().verdict == verdict::stale);
  CHECK(here.state(3) == "paid");
}

TEST_CASE("row_fence: names in mixed case, with quotes, in other schemas") {
  shop here;
  here.db.run(
      "CREATE SCHEMA \"My Shop\"; CREATE TABLE \"My Shop\".\"Or.der\" (\"The \"\"Id\"\"\" uuid "
      "PRIMARY KEY, \"State\" text); SELECT fenceguard.add_row_fence('\"My Shop\".\"Or.der\"');"
      "INSERT INTO \"My Shop\".\"Or.der\" VALUES ('0a000000-0000-0000-0000-000000000001')");
  row_fence const orders{"My Shop.\"Or.der\"", {"The \"Id\""}};
  pqxx::connection db{here.db.url()};
  here.db.run(
      "GRANT ALL ON SCHEMA \"My Shop\" TO ledger_owner; "
      "GRANT ALL ON \"My Shop\".\"Or.der\" TO ledger_owner");
  pqxx::work tx{db};
  auto const id = key("0a000000-0000-0000-0000-000000000001");
  CHECK(orders.update(tx, here.next(), id, "\"State\" = $1", "x").verdict == verdict::applied);
  std::vector<row_fence::row_update> const one{{id, here.next(), {"y"}}};
  CHECK(orders.update_many(tx, {"State"}, one)[0].verdict == verdict::applied);
}

TEST_CASE("row_fence: a row without a token is not taken for a missing one") {
  shop here;
  here.db.run(
      "CREATE TABLE bank.loose (id int PRIMARY KEY, fencing_token bigint);"
      "INSERT INTO bank.loose VALUES (1); GRANT ALL ON bank.loose TO ledger_owner");
  row_fence const loose{"loose", {"id"}};
  pqxx::connection db{here.db.url()};
  pqxx::work tx{db};
  CHECK_THROWS_AS((void)loose.claim(tx, here.next(), key(1)), schema_mismatch);
}

TEST_CASE("row_fence: row-level security") {
  shop here;
  here.db.run(
      "CREATE TABLE bank.secret (id int PRIMARY KEY, state text, fencing_token bigint NOT NULL "
      "DEFAULT 0);"
      "INSERT INTO bank.secret VALUES (1, 'hidden'), (2, 'read-only');"
      "ALTER TABLE bank.secret ENABLE ROW LEVEL SECURITY; GRANT ALL ON bank.secret TO ledger_owner;"
      "CREATE POLICY seen ON bank.secret FOR SELECT USING (id > 1);"
      "CREATE POLICY made ON bank.secret FOR INSERT WITH CHECK (true);");
  row_fence const secret{"secret", {"id"}};
  pqxx::connection db{here.db.url()};
  pqxx::work tx{db};
  write_result const hidden = secret.update(tx, here.next(), key(1), "state = $1", "x");
  CHECK(hidden.verdict == verdict::row_missing);
  write_result const read_only = secret.update(tx, here.next(), key(2), "state = $1", "x");
  CHECK(read_only.verdict == verdict::row_missing);
  CHECK(read_only.current == std::nullopt);
  CHECK(secret.insert(tx, here.next(), key(2), {}).verdict == verdict::row_exists);
  // The server does not let a conflict tell that a hidden row is there.
  CHECK_THROWS_AS((void)secret.insert(tx, here.next(), key(1), {}), pqxx::sql_error);
}

TEST_CASE("row_fence: one round trip when applied, two when refused") {
  shop here;
  ts::relay relay{test_postgres::shared_server().port()};
  pqxx::connection db{here.db.url_through(relay.port())};
  pqxx::work tx{db};
  tx.exec("SELECT 1");  // libpqxx sends BEGIN with the first statement at the latest
  fencing_token const older = here.next();
  fencing_token const newer = here.next();
  auto const trips = [&](auto const& call, verdict expected) {
    relay.reset_counters();
    write_result const result = call();
    CHECK(result.verdict == expected);
    return relay.round_trips();
  };
  CHECK(trips([&] { return here.items.update(tx, newer, key(1, 1), "state = $1", "a"); },
              verdict::applied) == 1);
  CHECK(trips([&] { return here.items.claim(tx, newer, key(1, 2)); }, verdict::applied) == 1);
  CHECK(trips([&] { return here.items.remove(tx, newer, key(1, 3)); }, verdict::applied) == 1);
  CHECK(trips([&] { return here.items.insert(tx, newer, key(9, 9), {}); }, verdict::applied) == 1);
  CHECK(trips([&] { return here.items.update(tx, older, key(1, 1), "state = $1", "b"); },
              verdict::stale) == 2);
  CHECK(trips([&] { return here.items.insert(tx, newer, key(9, 9), {}); }, verdict::row_exists) ==
        2);
}

TEST_CASE("row_fence: update_many gives a verdict for each row") {
  shop here;
  fencing_token const older = here.next();
  fencing_token const newer = here.next();
  ts::relay relay{test_postgres::shared_server().port()};
  pqxx::connection db{here.db.url_through(relay.port())};
  pqxx::work tx{db};
  REQUIRE(here.items.claim(tx, newer, key(1, 2)).verdict == verdict::applied);
  std::vector<row_fence::row_update> const rows{{key(1, 3), older, {"three"}},
                                                {key(1, 2), older, {"two"}},
                                                {key(7, 7), newer, {"seven"}},
                                                {key(1, 1), newer, {R"(a "quoted", \ {text})"}},
                                                {key(1, 10), newer, {nullptr}}};

  relay.reset_counters();
  std::vector<write_result> const results = here.items.update_many(tx, {"state"}, rows);
  CHECK(relay.round_trips() == 2);
  REQUIRE(results.size() == 5);
  CHECK(results[0].verdict == verdict::applied);
  CHECK(results[1].verdict == verdict::stale);
  CHECK(results[1].current == newer);
  CHECK(results[2].verdict == verdict::row_missing);
  CHECK(results[3].verdict == verdict::applied);
  CHECK(results[4].verdict == verdict::applied);

  relay.reset_counters();
  std::vector<row_fence::row_update> const all{{key(1, 4), newer, {}}, {key(1, 5), newer, {}}};
  for (write_result const& one : here.items.update_many(tx, {}, all)) {
    CHECK(one.verdict == verdict::applied);
  }
  CHECK(relay.round_trips() == 1);
  CHECK(here.items.update_many(tx, {"state"}, {}).empty());
  tx.commit();
  CHECK(here.state(1) == R"(a "quoted", \ {text})");
  CHECK(here.state(2) == "new");
  CHECK(here.state(3) == "three");
  CHECK(here.state(10) == "NULL");
  CHECK(here.db.value("SELECT fencing_token FROM bank.item WHERE number = 3") ==
        std::to_string(older.value()));
}

TEST_CASE("row_fence: update_many refuses what it cannot tell apart") {
  shop here;
  fencing_token const token = here.next();
  pqxx::connection db{here.db.url()};
  pqxx::work tx{db};
  std::vector<row_fence::row_update> const twice{{key(1, 1), token, {"a"}},
                                                 {key(1, 1), token, {"b"}}};
  CHECK_THROWS_AS((void)here.items.update_many(tx, {"state"}, twice), invalid_request);
  std::vector<row_fence::row_update> const short_of{{key(1, 1), token, {}}};
  CHECK_THROWS_AS((void)here.items.update_many(tx, {"state"}, short_of), invalid_request);
  std::vector<row_fence::row_update> const whole_shop{{key(1), token, {"a"}}};
  CHECK_THROWS_AS((void)(row_fence{"item", {"shop"}}.update_many(tx, {"state"}, whole_shop)),
                  invalid_request);
  tx.commit();
}

TEST_CASE("row_fence: update_many takes the columns' own types") {
  shop here;
  here.db.run(
      "CREATE TYPE bank.mood AS ENUM ('sad', 'glad'); CREATE DOMAIN bank.positive AS int NOT NULL "
      "CHECK (value > 0);"
      "CREATE TABLE bank.typed (id uuid PRIMARY KEY, m bank.mood, p bank.positive DEFAULT 1, j "
      "jsonb, k json, "
      "n numeric(6,2), t timestamptz, b bytea, v varchar(3), a int[]);"
      "SELECT fenceguard.add_row_fence('bank.typed'); GRANT ALL ON bank.typed TO ledger_owner;"
      "INSERT INTO bank.typed(id) VALUES ('0a000000-0000-0000-0000-000000000001')");
  row_fence const typed{"bank.typed", {"id"}};
  pqxx::connection db{here.db.url()};
  auto const id = key("0a000000-0000-0000-0000-000000000001");
  {
    pqxx::work tx{db};
    std::vector<row_fence::row_update> const one{
        {id,
         here.next(),
         {"glad", 2, nlohmann::json{{"a", "b"}}, "[1, 2]", 1.5, "2024-01-01 00:00:00+00", "\\x00ff",
          "abc"}}};
    CHECK(typed.update_many(tx, {"m", "p", "j", "k", "n", "t", "b", "v"}, one)[0].verdict ==
          verdict::applied);
    tx.commit();
  }
  CHECK(here.db.value("SELECT ROW(m, p, j, k, n, t, b, v)::text FROM bank.typed") ==
        R"x((glad,2,"{""a"": ""b""}","[1, 2]",1.50,"2024-01-01 00:00:00+00","\\x00ff",abc))x");
  for (auto const& bad : {std::pair{"v", "abcd"}, {"p", "-1"}, {"a", "{1,2}"}}) {
    CAPTURE(bad.first);
    pqxx::work tx{db};
    std::vector<row_fence::row_update> const one{{id, here.next(), {bad.second}}};
    CHECK_THROWS_AS((void)typed.update_many(tx, {bad.first}, one), pqxx::sql_error);
  }
}

TEST_CASE("row_fence: update_many over rows that another transaction writes") {
  shop here;
  fencing_token const older = here.next();
  fencing_token const newer = here.next();
  pqxx::connection first{here.db.url()};
  pqxx::connection second{here.db.url()};
  pqxx::work tx{first};
  REQUIRE(here.items.update(tx, newer, key(1, 2), "state = $1", "first").verdict ==
          verdict::applied);
  auto other = std::async(std::launch::async, [&] {
    pqxx::work concurrent{second};
    std::vector<row_fence::row_update> const rows{{key(1, 1), older, {"second"}},
                                                  {key(1, 2), older, {"second"}}};
    auto results = here.items.update_many(concurrent, {"state"}, rows);
    concurrent.commit();
    return results;
  });
  await_waiter(here.db);
  tx.commit();
  auto const results = other.get();
  CHECK(results[0].verdict == verdict::applied);
  CHECK(results[1].verdict == verdict::stale);
  CHECK(results[1].current == newer);
  CHECK(here.state(2) == "first");
}

TEST_CASE("row_fence: after a promotion the table refuses until it is acknowledged") {
  shop here;
  here.db.run("UPDATE fenceguard.server_state SET timeline = 'FFFFFFFF'");
  fencing_token const before{1};
  pqxx::connection db{here.db.url()};
  {
    pqxx::work tx{db};
    CHECK_THROWS_AS((void)here.items.update(tx, before, key(1, 1), "state = $1", "x"),
                    server_promoted);
    CHECK_THROWS_AS(postgres::acknowledge_promotion(db), invalid_request);
  }
  postgres::acknowledge_promotion(db);
  {
    pqxx::work tx{db};
    CHECK_THROWS_AS((void)here.items.update(tx, before, key(1, 1), "state = $1", "x"), stale_token);
  }
  pqxx::work tx{db};
  CHECK(here.items.update(tx, here.next(), key(1, 1), "state = $1", "x").verdict ==
        verdict::applied);
}
