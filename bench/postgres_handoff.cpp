// How a lease in PostgreSQL changes hands: the time from release() to the next one's grant, one
// holder and one waiter. One private server, which writes to disk (fsync on): a grant's token must
// survive a crash, and waiting for that is a good part of the time.
//
//   bench_postgres_handoff [handoffs]
//
// By hand is the least that a careful author would write: the holder gives a row up and notifies in
// one transaction, the waiter hears of it, and takes the row with the next number in one statement.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fenceguard/postgres/lease_store.hpp>
#include <fenceguard/postgres/token_source.hpp>
#include <functional>
#include <pqxx/pqxx>
#include <string>
#include <thread>
#include <vector>

#include "postgres/database.hpp"
#include "servers/wait.hpp"

namespace {

using namespace fenceguard;
using namespace std::chrono_literals;
using steady = std::chrono::steady_clock;
using microseconds = std::chrono::duration<double, std::micro>;
using test_postgres::database;
using test_servers::wait_until;

// Microseconds from `release` being called to the end of `take`, which runs on a thread of its own
// and is waiting by the time that `ready` returns.
double handoff(std::function<void()> const& take, std::function<void()> const& ready,
               std::function<void()> const& release) {
  steady::time_point taken_at{};
  std::thread waiter{[&] {
    take();
    taken_at = steady::now();
  }};
  ready();
  auto const begin = steady::now();
  release();
  waiter.join();
  return microseconds{taken_at - begin}.count();
}

double by_store(database const& db, postgres::lease_store& from, postgres::lease_store& to) {
  auto held = from.acquire({.resource = "a", .ttl = 60s});
  if (!held) std::abort();
  return handoff(
      [&] {
        if (!to.acquire({.resource = "a", .ttl = 60s, .wait = 60s})) std::abort();
      },
      [&] {
        wait_until("a waiter in the line", [&] {
          return db.value("SELECT cardinality(waiters) FROM fenceguard.lease") == "1";
        });
        std::this_thread::sleep_for(20ms);  // the question that goes with it is over
      },
      [&] {
        if (held->release() != release_outcome::released) std::abort();
      });
}

class ear final : public pqxx::notification_receiver {
 public:
  explicit ear(pqxx::connection& db) : pqxx::notification_receiver{db, "released"} {}
  void operator()(std::string const& /*text*/, int /*pid*/) override { heard = true; }
  bool heard = false;
};

double by_hand(pqxx::connection& from, pqxx::connection& to, ear& waiting) {
  waiting.heard = false;
  return handoff(
      [&] {
        while (!waiting.heard) to.await_notification();
        pqxx::nontransaction take{to};
        auto const taken = take.exec(
            "UPDATE by_hand SET holder = 'b', token = token + 1 WHERE holder IS NULL "
            "RETURNING token");
        if (taken.empty()) std::abort();
      },
      [] { std::this_thread::sleep_for(20ms); },
      [&] {
        pqxx::work give{from};
        give.exec("UPDATE by_hand SET holder = NULL");
        give.exec("NOTIFY released");
        give.commit();
      });
}

double at(std::vector<double> seen, double part) {
  std::sort(seen.begin(), seen.end());
  return seen[static_cast<std::size_t>(static_cast<double>(seen.size() - 1) * part)];
}

void print(char const* name, std::vector<double> const& seen) {
  std::printf("%-34s %10.0f %10.0f\n", name, at(seen, 0.5), at(seen, 0.99));
}

}  // namespace

int main(int argc, char** argv) {
  int const count = argc > 1 ? std::atoi(argv[1]) : 200;
  if (count <= 0) {
    std::fprintf(stderr, "usage: %s [handoffs]\n", argv[0]);
    return 2;
  }
  test_servers::postgres_server server{{.durable = true}};
  test_postgres::create_owner(server);
  database const db{server};
  db.run("CREATE TABLE by_hand (holder text, token bigint NOT NULL)");
  db.run("INSERT INTO by_hand VALUES ('a', 1)");
  db.run("GRANT SELECT, UPDATE ON by_hand TO PUBLIC");

  postgres::token_source tokens{db.url()};
  postgres::lease_store from{{.url = db.url()}, tokens};
  postgres::lease_store to{{.url = db.url()}, tokens};
  pqxx::connection giving{db.url()};
  pqxx::connection taking{db.url()};
  ear waiting{taking};
  std::vector<double> store;
  std::vector<double> hand;
  std::vector<double> durable;
  for (int i = 0; i < count; ++i) {
    store.push_back(by_store(db, from, to));
    hand.push_back(by_hand(giving, taking, waiting));
    pqxx::nontransaction one{giving};
    auto const begin = steady::now();
    one.exec("UPDATE by_hand SET token = token + 1");
    durable.push_back(microseconds{steady::now() - begin}.count());
  }
  std::printf("%-34s %10s %10s\n", "release to the next grant", "median us", "p99 us");
  print("postgres::lease_store", store);
  print("by hand: NOTIFY, LISTEN, UPDATE", hand);
  print("one UPDATE that waits for the disk", durable);
  std::printf("ratio of the medians, store beside by hand: %.2f\n", at(store, 0.5) / at(hand, 0.5));
}
