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

double median(std::vector<double> values) {
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double microseconds(pqxx::connection& db, call const& work) {
  auto const began = std::chrono::steady_clock::now();
  work(db);
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began)
      .count();
}

// The contestants take turns, so that what else the machine does meets all of them alike.
struct course {
  workplace& here;
  std::size_t local;    // rounds
  std::size_t distant;  // rounds

  std::vector<measured> run(std::vector<call> const& contestants) const {
    std::vector<measured> results(contestants.size());
    {
      pqxx::connection db{here.db.url()};
      std::vector<std::vector<double>> times(contestants.size());
      for (std::size_t round = 0; round <= local; ++round) {
        for (std::size_t i = 0; i < contestants.size(); ++i) {
          double const took = microseconds(db, contestants[i]);
          if (round > 0) times[i].push_back(took);  // the first one fills the caches
        }
      }
      for (std::size_t i = 0; i < contestants.size(); ++i) results[i].local_us = median(times[i]);
    }
    test_servers::relay relay{test_postgres::shared_server().port()};
    pqxx::connection db{here.db.url_through(relay.port())};
    for (call const& contestant : contestants) contestant(db);
    relay.delay(1ms);
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      std::vector<double> times;
      relay.reset_counters();
      for (std::size_t round = 0; round < distant; ++round) {
        times.push_back(microseconds(db, contestants[i]));
      }
      results[i].distant_us = median(times);
      results[i].round_trips =
          static_cast<double>(relay.round_trips()) / static_cast<double>(distant);
    }
    return results;
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

void one_transaction(workplace& here, std::size_t count) {
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
  call const once =
      ([&](pqxx::connection& db) { postgres::execute_once(db, held, next_key(), update, 1, 1); });
  call const guarded = [&](pqxx::connection& db) {
    postgres::transaction tx{db, held, next_key()};
    auto const rows = tx.exec(update, 1, 1);
    tx.commit(json{{"balance", rows[0][0].as<long>()}});
  };
  call const by_hand = [&](pqxx::connection& db) {
    std::string const key = "h" + std::to_string(++number);
    pqxx::work tx{db};
    tx.exec_params("SELECT pg_advisory_xact_lock(hashtext($1))", key);
    if (!tx.exec_params("SELECT answer FROM answered WHERE key = $1", key).empty()) std::abort();
    tx.exec_params("SELECT balance FROM account WHERE id = $1 FOR UPDATE", 1);
    auto const rows = tx.exec_params(update, 1, 1);
    tx.exec_params("INSERT INTO answered VALUES ($1, $2, $3)", key, R"({"amount": 1})",
                   json{{"balance", rows[0][0].as<long>()}}.dump());
    tx.commit();
  };
  auto const results =
      course{here, count, std::max<std::size_t>(10, count / 10)}.run({once, guarded, by_hand});
  print_heading("execute_once: one idempotent write under a lease");
  print("execute_once", results[0], results[0]);
  print("postgres::transaction", results[1], results[0]);
  print("by hand (lock, look up, FOR UPDATE, store)", results[2], results[0]);
}

void many_rows(workplace& here) {
  here.db.run(
      "CREATE TABLE bank.item (id int PRIMARY KEY, state text NOT NULL) WITH (fillfactor = 50);"
      "INSERT INTO bank.item SELECT n, 'new' FROM generate_series(1, 1000) n;"
      "SELECT fenceguard.add_row_fence('bank.item'); GRANT ALL ON bank.item TO ledger_owner");
  here.db.run("VACUUM ANALYZE bank.item");
  postgres::row_fence const items{"item", {"id"}};
  auto const require = [](postgres::write_result const& result) {
    if (result.verdict != postgres::verdict::applied) std::abort();
  };
  call const at_once = [&](pqxx::connection& db) {
    fencing_token const token = here.tokens.reserve(1);
    std::vector<postgres::row_fence::row_update> rows;
    for (int id = 1; id <= many; ++id) rows.push_back({postgres::key(id), token, {"paid"}});
    pqxx::nontransaction tx{db};
    for (auto const& result : items.update_many(tx, {"state"}, rows)) require(result);
  };
  call const in_one = [&](pqxx::connection& db) {
    fencing_token const token = here.tokens.reserve(1);
    pqxx::work tx{db};
    for (int id = 1; id <= many; ++id) {
      require(items.update(tx, token, postgres::key(id), "state = $1", "paid"));
    }
    tx.commit();
  };
  call const each = [&](pqxx::connection& db) {
    fencing_token const token = here.tokens.reserve(1);
    pqxx::nontransaction tx{db};
    for (int id = 1; id <= many; ++id) {
      require(items.update(tx, token, postgres::key(id), "state = $1", "paid"));
    }
  };
  auto const results = course{here, 7, 3}.run({at_once, in_one, each});
  print_heading("update_many: 1,000 rows");
  print("update_many", results[0], results[0]);
  print("update, one by one, in one transaction", results[1], results[0]);
  print("update, one by one, each committed", results[2], results[0]);
}

}  // namespace

int main(int count, char** arguments) {
  int const transactions = count > 1 ? std::atoi(arguments[1]) : 500;
  if (transactions < 10) {
    std::fprintf(stderr, "usage: %s [transactions per measurement, at least 10]\n", arguments[0]);
    return 2;
  }
  workplace here;
  one_transaction(here, static_cast<std::size_t>(transactions));
  many_rows(here);
}
