#include <doctest/doctest.h>

#include <atomic>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/insert_once.hpp>
#include <thread>

#include "postgres/database.hpp"
#include "servers/relay.hpp"

using namespace fenceguard;
using postgres::insert_once;
using postgres::key;

namespace {

struct payments {
  payments() {
    pqxx::connection owner{db.url()};
    pqxx::work tx{owner};
    tx.exec(
        "CREATE TABLE payment (request text PRIMARY KEY, amount numeric NOT NULL, state text, at "
        "timestamptz DEFAULT now())");
    tx.commit();
  }
  test_postgres::database db;
  insert_once const once{"payment", {"request"}, {"amount"}};
};

}  // namespace

TEST_CASE("insert_once: the first inserts, a repeat gets the row, another request is refused") {
  payments here;
  test_servers::relay relay{test_postgres::shared_server().port()};
  pqxx::connection db{here.db.url_through(relay.port())};
  pqxx::work tx{db};
  tx.exec("SELECT 1");

  relay.reset_counters();
  auto const first = here.once.insert(tx, key("r-1"), {"amount", "state"}, 10, "new");
  CHECK_FALSE(first.replayed);
  CHECK(first.row[0]["amount"].as<std::string>() == "10");
  CHECK(relay.round_trips() == 1);
  tx.exec("UPDATE payment SET state = 'sent'");

  relay.reset_counters();
  auto const again = here.once.insert(tx, key("r-1"), {"amount", "state"}, "10.0", "new");
  CHECK(again.replayed);
  REQUIRE(again.row.size() == 1);
  CHECK(again.row[0]["state"].as<std::string>() == "sent");
  CHECK(again.row[0]["at"].as<std::string>() == first.row[0]["at"].as<std::string>());
  CHECK(relay.round_trips() == 2);

  CHECK_THROWS_AS((void)here.once.insert(tx, key("r-1"), {"amount", "state"}, 11, "new"),
                  key_reused);
  insert_once const strict{"payment", {"request"}};
  CHECK_THROWS_AS((void)strict.insert(tx, key("r-1"), {"amount", "state"}, 10, "new"), key_reused);
  CHECK_THROWS_AS((void)here.once.insert(tx, key("r-2"), {"state"}, "new"), invalid_request);
  CHECK_THROWS_AS((void)here.once.insert(tx, key("r-2"), {"amount"}), invalid_request);
  tx.commit();
  CHECK(here.db.value("SELECT count(*) FROM bank.payment") == "1");
}

TEST_CASE("insert_once: eight at once insert one row and all get it") {
  payments here;
  std::atomic<int> inserted{0};
  std::atomic<int> same{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] {
      pqxx::connection db{here.db.url()};
      pqxx::work tx{db};
      auto const result = here.once.insert(tx, key("r-1"), {"amount"}, 10);
      tx.commit();
      if (!result.replayed) ++inserted;
      if (result.row[0]["request"].as<std::string>() == "r-1") ++same;
    });
  }
  for (auto& caller : callers) caller.join();
  CHECK(inserted == 1);
  CHECK(same == 8);
}

namespace {

// With one row, which the policy for reading hides where `hidden` is true of it.
struct secured_payments : payments {
  explicit secured_payments(std::string const& hidden) {
    db.run(
        "INSERT INTO bank.payment VALUES ('r-1', 10);"
        "ALTER TABLE bank.payment ENABLE ROW LEVEL SECURITY;"
        "ALTER TABLE bank.payment FORCE ROW LEVEL SECURITY;"
        "CREATE POLICY w ON bank.payment FOR INSERT WITH CHECK (true);"
        "CREATE POLICY r ON bank.payment FOR SELECT USING (NOT (" +
        hidden + "))");
  }
};

}  // namespace

TEST_CASE("insert_once: a row that cannot be read is not taken for another request") {
  secured_payments here{"amount = 10"};
  pqxx::connection db{here.db.url()};
  pqxx::work tx{db};
  CHECK_THROWS_AS((void)here.once.insert(tx, key("r-1"), {"amount"}, 11), already_stored);
}

TEST_CASE("insert_once: a row that its writer may not see is refused by the server") {
  secured_payments here{"request = 'r-1'"};
  pqxx::connection db{here.db.url()};
  pqxx::work tx{db};
  CHECK_THROWS_AS((void)here.once.insert(tx, key("r-1"), {"amount"}, 10),
                  pqxx::insufficient_privilege);
}
