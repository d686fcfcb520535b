// The guarded transaction beside transactions written by hand, in one run on a private server:
//
//   plain       BEGIN; SELECT … FOR UPDATE; UPDATE; COMMIT
//   idempotent  BEGIN; look the key up; SELECT … FOR UPDATE; UPDATE; INSERT the key and answer;
//   COMMIT
//
// over a local Unix socket, and over TCP through a relay that adds 0.5 ms each way and counts round
// trips. Prints medians and ratios of throughput (1.0: as fast as by hand). The contestants take
// turns, each with a connection of its own.
//
//   bench_guarded_transaction [transactions per measurement] [rounds]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fenceguard/postgres/transaction.hpp>
#include <functional>
#include <string>
#include <vector>

#include "bench/throughput.hpp"
#include "postgres/database.hpp"
#include "servers/relay.hpp"

namespace {

using namespace fenceguard;
using namespace std::chrono_literals;
using nlohmann::json;
using transaction_fn = std::function<void(pqxx::connection&)>;

char const* const update = "UPDATE account SET balance = balance - $1 WHERE id = $2";

struct contestants {
  transaction_fn by_hand;
  transaction_fn guarded;
};

contestants plain(lease const& held) {
  return {[](pqxx::connection& db) {
            pqxx::work tx{db};
            tx.exec_params("SELECT balance FROM account WHERE id = $1 FOR UPDATE", 1);
            tx.exec_params(update, 1, 1);
            tx.commit();
          },
          [&held](pqxx::connection& db) {
            postgres::transaction tx{db, held};
            tx.exec(update, 1, 1);
            tx.commit();
          }};
}

contestants idempotent(lease const& held) {
  static int number = 0;
  return {[](pqxx::connection& db) {
            std::string const key = "h" + std::to_string(++number);
            pqxx::work tx{db};
            if (!tx.exec_params("SELECT answer FROM answered WHERE key = $1", key).empty()) {
              std::abort();
            }
            tx.exec_params("SELECT balance FROM account WHERE id = $1 FOR UPDATE", 1);
            tx.exec_params(update, 1, 1);
            tx.exec_params("INSERT INTO answered VALUES ($1, $2, $3)", key, R"({"cents": 1})",
                           R"({"paid": 1})");
            tx.commit();
          },
          [&held](pqxx::connection& db) {
            postgres::transaction tx{
                db, held,
                postgres::idempotency_key{.scope = "bench",
                                          .key = "k" + std::to_string(++number),
                                          .request = {{"cents", 1}}}};
            tx.exec(update, 1, 1);
            tx.commit(json{{"paid", 1}});
          }};
}

double seconds_for(pqxx::connection& db, transaction_fn const& one, int count) {
  auto const began = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) one(db);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

struct round_times {
  double by_hand;
  double guarded;
};

void compare(char const* name, contestants const& who, std::string const& url, int count,
             int rounds) {
  pqxx::connection hand_db{url};
  pqxx::connection guarded_db{url};
  seconds_for(hand_db, who.by_hand, 10);  // caches
  seconds_for(guarded_db, who.guarded, 10);
  std::vector<round_times> seen;
  for (int round = 0; round < rounds; ++round) {
    double const by_hand = seconds_for(hand_db, who.by_hand, count);
    seen.push_back({by_hand, seconds_for(guarded_db, who.guarded, count)});
  }
  std::printf("  %-26s %9.0f us %9.0f us  %6.2f\n", name,
              bench::median(seen, [](auto& one) { return one.by_hand; }) * 1e6 / count,
              bench::median(seen, [](auto& one) { return one.guarded; }) * 1e6 / count,
              bench::median(seen, [](auto& one) { return one.by_hand / one.guarded; }));
  std::fflush(stdout);
}

double round_trips(transaction_fn const& one, test_servers::relay& relay, std::string const& url) {
  pqxx::connection db{url};
  one(db);
  relay.reset_counters();
  for (int i = 0; i < 10; ++i) one(db);
  return static_cast<double>(relay.round_trips()) / 10;
}

}  // namespace

int main(int argc, char** argv) {
  int const count = argc > 1 ? std::atoi(argv[1]) : 500;
  int const rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  if (count <= 0 || rounds <= 0) {
    std::fprintf(stderr, "usage: %s [transactions per measurement] [rounds]\n", argv[0]);
    return 2;
  }
  test_postgres::workplace here;
  here.db.run(
      "CREATE TABLE bank.answered (key text PRIMARY KEY, request jsonb NOT NULL, answer json);"
      "GRANT ALL ON bank.answered TO ledger_owner");
  lease const held = here.acquire("account/1", 60min);
  test_servers::relay relay{test_postgres::shared_server().port()};
  std::string const relayed = here.db.url_through(relay.port());
  auto const simple = plain(held);
  auto const keyed = idempotent(held);

  std::printf(
      "round trips: plain %.0f by hand, %.0f guarded; idempotent %.0f by hand, %.0f guarded\n",
      round_trips(simple.by_hand, relay, relayed), round_trips(simple.guarded, relay, relayed),
      round_trips(keyed.by_hand, relay, relayed), round_trips(keyed.guarded, relay, relayed));
  std::printf("%-28s %12s %12s  %6s\n", "", "by hand", "guarded", "ratio");
  std::printf("local Unix socket\n");
  compare("plain", simple, here.db.url_unix(), count, rounds);
  compare("idempotent", keyed, here.db.url_unix(), count, rounds);
  relay.delay(500us);
  std::printf("relay, 0.5 ms each way\n");
  int const fewer = std::max(1, count / 10);
  compare("plain", simple, relayed, fewer, rounds);
  compare("idempotent", keyed, relayed, fewer, rounds);
}
