// What fewer round trips are worth: execute_once beside the guarded transaction and beside a
// transaction written by hand, update_many beside one update after the other; over a local socket
// of TCP, and through a relay that counts round trips and adds 1 ms each way.
//
//   bench_fewer_round_trips [transactions per measurement]
//
// Starts a private server of its own. Prints medians, and ratios of times (above 1: faster).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fenceguard/postgres/execute_once.hpp>
#include <fenceguard/postgres/row_fence.hpp>
#include <fenceguard/postgres/transaction.hpp>
#include <functional>
#include <string>
#include <vector>

#include "postgres/database.hpp"
#include "servers/relay.hpp"

namespace {

using namespace std::chrono_literals;
using namespace fenceguard;
using nlohmann::json;
using test_postgres::workplace;
using call = std::function<void(pqxx::connection&)>;

constexpr int many = 1'000;

struct measured {
  double local_us = 0;
  double distant_us = 0;
  double round_trips = 0;
};

double median_us(int count, pqxx::connection& db, call const& work) {
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    auto const began = std::chrono::steady_clock::now();
    work(db);
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began)
            .count());
  }
  std::nth_element(times.begin(), times.begin() + count / 2, times.end());
  return times[static_cast<std::size_t>(count / 2)];
}

struct course {
  workplace& here;
  int local;    // calls
  int distant;  // calls

  measured run(call const& work) const {
    measured result;
    {
      pqxx::connection db{here.db.url()};
      work(db);
      result.local_us = median_us(local, db, work);
    }
    test_servers::relay relay{test_postgres::shared_server().port()};
    pqxx::connection db{here.db.url_through(relay.port())};
    work(db);
    relay.delay(1ms);
    relay.reset_counters();
    result.distant_us = median_us(distant, db, work);
    result.round_trips = static_cast<double>(relay.round_trips()) / distant;
    return result;
  }
};

void print(char const* name, measured const& one, measured const& subject) {
  std::printf("  %-44s %7.1f  %10.0f us %10.0f us  %6.2f  %6.2f\n", name, one.round_trips,
              one.local_us, one.distant_us, one.local_us / subject.local_us,
              one.distant_us / subject.distant_us);
}

void print_heading(char const* subject) {
  std::printf("%s\n  %-44s %7s  %13s %13s  %s\n", subject, "", "trips", "local", "1 ms each way",
              "subject is faster by");
}

void one_transaction(workplace& here, int count) {
  here.db.run(
      "CREATE TABLE bank.answered (key text PRIMARY KEY, request jsonb NOT NULL, answer jsonb);"
      "GRANT ALL ON bank.answered TO ledger_owner");
  lease const held = here.acquire("account/1", 5min);
  int number = 0;
  std::string const update =
      "UPDATE account SET balance = balance - $1 WHERE id = $2 RETURNING balance";
  auto const next_key = [&] {
    return postgres::idempotency_key{
        .scope = "bench", .key = "k" + std::to_string(++number), .request = {{"amount", 1}}};
  };
  course const lap{here, count, std::max(10, count / 10)};
  measured const once = lap.run(
      [&](pqxx::connection& db) { postgres::execute_once(db, held, next_key(), update, 1, 1); });
  measured const guarded = lap.run([&](pqxx::connection& db) {
    postgres::transaction tx{db, held, next_key()};
    auto const rows = tx.exec(update, 1, 1);
    tx.commit(json{{"balance", rows[0][0].as<long>()}});
  });
  measured const by_hand = lap.run([&](pqxx::connection& db) {
    std::string const key = "h" + std::to_string(++number);
    pqxx::work tx{db};
    tx.exec_params("SELECT pg_advisory_xact_lock(hashtext($1))", key);
    if (!tx.exec_params("SELECT answer FROM answered WHERE key = $1", key).empty()) std::abort();
    tx.exec_params("SELECT balance FROM account WHERE id = $1 FOR UPDATE", 1);
    auto const rows = tx.exec_params(update, 1, 1);
    tx.exec_params("INSERT INTO answered VALUES ($1, $2, $3)", key, R"({"amount": 1})",
                   json{{"balance", rows[0][0].as<long>()}}.dump());
    tx.commit();
  });
  print_heading("execute_once: one idempotent write under a lease");
  print("execute_once", once, once);
  print("postgres::transaction", guarded, once);
  print("by hand (lock, look up, FOR UPDATE, store)", by_hand, once);
}

void many_rows(workplace& here) {
  here.db.run(
      "CREATE TABLE bank.item (id int PRIMARY KEY, state text NOT NULL) WITH (fillfactor = 50);"
      "INSERT INTO bank.item SELECT n, 'new' FROM generate_series(1, 1000) n;"
      "SELECT fenceguard.add_row_fence('bank.item'); GRANT ALL ON bank.item TO ledger_owner;"
      "VACUUM ANALYZE bank.item");
  postgres::row_fence const items{"item", {"id"}};
  course const lap{here, 7, 3};
  auto const tidy = [&] { here.db.run("VACUUM bank.item"); };
  auto const require = [](postgres::write_result const& result) {
    if (result.verdict != postgres::verdict::applied) std::abort();
  };
  measured const at_once = lap.run([&](pqxx::connection& db) {
    fencing_token const token = here.tokens.reserve(1);
    std::vector<postgres::row_fence::row_update> rows;
    for (int id = 1; id <= many; ++id) rows.push_back({postgres::key(id), token, {"paid"}});
    pqxx::nontransaction tx{db};
    for (auto const& result : items.update_many(tx, {"state"}, rows)) require(result);
  });
  tidy();
  measured const in_one = lap.run([&](pqxx::connection& db) {
    fencing_token const token = here.tokens.reserve(1);
    pqxx::work tx{db};
    for (int id = 1; id <= many; ++id) {
      require(items.update(tx, token, postgres::key(id), "state = $1", "paid"));
    }
    tx.commit();
  });
  tidy();
  measured const each = lap.run([&](pqxx::connection& db) {
    fencing_token const token = here.tokens.reserve(1);
    pqxx::nontransaction tx{db};
    for (int id = 1; id <= many; ++id) {
      require(items.update(tx, token, postgres::key(id), "state = $1", "paid"));
    }
  });
  print_heading("update_many: 1,000 rows");
  print("update_many", at_once, at_once);
  print("update, one by one, in one transaction", in_one, at_once);
  print("update, one by one, each committed", each, at_once);
}

}  // namespace

int main(int count, char** arguments) {
  int const transactions = count > 1 ? std::atoi(arguments[1]) : 500;
  if (transactions < 10) {
    std::fprintf(stderr, "usage: %s [transactions per measurement, at least 10]\n", arguments[0]);
    return 2;
  }
  workplace here;
  one_transaction(here, transactions);
  many_rows(here);
}
