#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/compare_and_set.hpp>
#include <thread>

#include "postgres/database.hpp"
#include "servers/relay.hpp"

using namespace fenceguard;
using postgres::compare_and_set;
using postgres::compare_and_set_verdict;
using postgres::key;
using postgres::row_version;

namespace {

struct documents {
  documents() {
    pqxx::connection owner{db.url()};
    pqxx::work tx{owner};
    tx.exec(
        "CREATE TABLE document (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, version int NOT NULL "
        "DEFAULT 1)");
    tx.exec("INSERT INTO document VALUES (1), (2)");
    tx.commit();
  }
  test_postgres::database db;
  compare_and_set const writer{"document", {"id"}};
};

}  // namespace

TEST_CASE("compare_and_set: applied, conflict and row_missing, in one or two round trips") {
  documents here;
  test_servers::relay relay{test_postgres::shared_server().port()};
  pqxx::connection db{here.db.url_through(relay.port())};
  pqxx::work tx{db};
  tx.exec("SELECT 1");

  relay.reset_counters();
  auto const applied = here.writer.update(tx, key(1), row_version{1}, "n = n + $1", 5);
  CHECK(applied.verdict == compare_and_set_verdict::applied);
  CHECK(applied.version == row_version{2});
  CHECK(relay.round_trips() == 1);

  relay.reset_counters();
  auto const conflict = here.writer.update(tx, key(1), row_version{1}, "n = n + $1", 7);
  CHECK(conflict.verdict == compare_and_set_verdict::conflict);
  CHECK(conflict.version == row_version{2});
  CHECK(relay.round_trips() == 2);

  auto const missing = here.writer.update(tx, key(3), row_version{1}, "n = 1");
  CHECK(missing.verdict == compare_and_set_verdict::row_missing);
  CHECK_FALSE(missing.version.has_value());
  CHECK_THROWS_AS((void)here.writer.update(tx, key(1, 2), row_version{1}, "n = 1"),
                  invalid_request);
  CHECK_THROWS_AS((void)here.writer.update(tx, key(1), row_version{1}, ""), invalid_request);
  tx.commit();
  CHECK(here.db.value("SELECT n FROM bank.document WHERE id = 1") == "5");
}

TEST_CASE("compare_and_set: a read-modify-write loses no update") {
  documents here;
  auto const add_ten = [&] {
    pqxx::connection db{here.db.url()};
    for (int done = 0; done < 10;) {
      pqxx::work tx{db};
      auto const row = tx.exec("SELECT n, version FROM document WHERE id = 1")[0];
      auto const result = here.writer.update(tx, key(1), row_version{row[1].as<int>()}, "n = $1",
                                             row[0].as<int>() + 1);
      tx.commit();
      if (result.verdict == compare_and_set_verdict::applied) ++done;
    }
  };
  std::thread one{add_ten};
  std::thread two{add_ten};
  one.join();
  two.join();
  CHECK(here.db.value("SELECT n || '/' || version FROM bank.document WHERE id = 1") == "20/21");
}
