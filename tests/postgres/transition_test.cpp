#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/transition.hpp>
#include <future>

#include "postgres/database.hpp"
#include "servers/relay.hpp"
#include "servers/wait.hpp"

using namespace fenceguard;
using postgres::key;
using postgres::transition;
using postgres::transition_step;
using postgres::transition_verdict;

namespace {

struct orders {
  orders() {
    pqxx::connection owner{db.url()};
    pqxx::work tx{owner};
    tx.exec("CREATE TYPE stage AS ENUM ('new', 'held', 'paid', 'sent')");
    tx.exec("CREATE TABLE orders (id int PRIMARY KEY, stage stage, note text)");
    tx.exec("INSERT INTO orders VALUES (1, 'new'), (2, NULL)");
    tx.commit();
  }
  test_postgres::database db;
  transition const orders_stage{"orders", {"id"}, "stage"};
  transition_step const pay{.from = {"new", "held"}, .to = "paid"};
  transition_step const send{.from = {"paid"}, .to = "sent"};
};

}  // namespace

TEST_CASE("transition: applied, already_there, refused and row_missing") {
  orders here;
  test_servers::relay relay{test_postgres::shared_server().port()};
  pqxx::connection db{here.db.url_through(relay.port())};
  pqxx::work tx{db};
  tx.exec("SELECT 1");

  auto const early = here.orders_stage.apply(tx, key(1), here.send);
  CHECK(early.verdict == transition_verdict::refused);
  CHECK(early.current == "new");

  relay.reset_counters();
  auto const paid = here.orders_stage.apply(tx, key(1), here.pay, "note = $1", "by card");
  CHECK(paid.verdict == transition_verdict::applied);
  CHECK(paid.current == "paid");
  CHECK(relay.round_trips() == 1);

  relay.reset_counters();
  auto const again = here.orders_stage.apply(tx, key(1), here.pay, "note = $1", "again");
  CHECK(again.verdict == transition_verdict::already_there);
  CHECK(relay.round_trips() == 2);

  auto const without = here.orders_stage.apply(tx, key(2), here.pay);
  CHECK(without.verdict == transition_verdict::refused);
  CHECK_FALSE(without.current.has_value());
  CHECK(here.orders_stage.apply(tx, key(3), here.pay).verdict == transition_verdict::row_missing);
  CHECK_THROWS_AS((void)here.orders_stage.apply(tx, key(1), {.from = {}, .to = "x"}),
                  invalid_request);
  CHECK_THROWS_AS((void)here.orders_stage.apply(tx, key(1), {.from = {"x"}, .to = "x"}),
                  invalid_request);
  tx.commit();
  CHECK(here.db.value("SELECT note FROM bank.orders WHERE id = 1") == "by card");
}

TEST_CASE("transition: of two at once, one takes the step") {
  orders here;
  pqxx::connection first{here.db.url()};
  pqxx::connection second{here.db.url()};
  pqxx::work tx{first};
  REQUIRE(here.orders_stage.apply(tx, key(1), here.pay).verdict == transition_verdict::applied);
  auto other = std::async(std::launch::async, [&] {
    pqxx::work concurrent{second};
    return here.orders_stage.apply(concurrent, key(1), here.pay).verdict;
  });
  test_servers::wait_until("the second waits", [&] {
    return here.db.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") !=
           "0";
  });
  tx.commit();
  CHECK(other.get() == transition_verdict::already_there);
}
