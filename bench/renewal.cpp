// What it costs to keep many leases alive: this process's and the server's processor time, and the
// memory of each lease. One private server.
//
//   bench_renewal [leases [seconds per measurement [rounds]]]
//
// By hand is what a careful author would write: one thread and one connection that go through all
// leases at the same intervals, a round trip of a script (is it mine? then a new ttl) for each. Its
// memory is that of the usual heartbeat: a thread and a connection for each lease.
#include <hiredis/hiredis.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fenceguard/redis/lease_store.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <fstream>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "bench/throughput.hpp"
#include "servers/redis_server.hpp"

namespace {

using namespace fenceguard;
using namespace std::chrono_literals;
using bench::processor_seconds;
using steady = std::chrono::steady_clock;
using test_servers::redis_server;

constexpr auto ttl = 10s;

std::string resource(std::size_t i) { return "account/" + std::to_string(1'000'000 + i); }

double server_seconds(redis_server const& server) {
  auto const user = server.info("cpu", "used_cpu_user");
  auto const system = server.info("cpu", "used_cpu_sys");
  if (!user || !system) std::abort();
  return std::stod(*user) + std::stod(*system);
}

double resident_bytes() {
  std::ifstream statm{"/proc/self/statm"};
  double all = 0;
  double resident = 0;
  if (!(statm >> all >> resident)) std::abort();
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

struct cost {
  double processor;  // of this process, in parts of one core
  double server;     // of the server, the same
  double renewals;   // per second
};

// Measures from now on for so long; `renewed` counts.
template <class Count>
cost measure(redis_server const& server, std::chrono::duration<double> time, Count const& renewed) {
  auto const start = steady::now();
  auto const processor = processor_seconds();
  auto const at_server = server_seconds(server);
  auto const count = renewed();
  std::this_thread::sleep_for(time);
  std::chrono::duration<double> const took = steady::now() - start;
  return {(processor_seconds() - processor) / took.count(),
          (server_seconds(server) - at_server) / took.count(),
          static_cast<double>(renewed() - count) / took.count()};
}

// Leases of a store, from the time when all of them are held.
class held_leases {
 public:
  held_leases(redis_server const& server, std::size_t count)
      : store_{{.url = server.url()}, tokens_} {
    leases_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      auto got = store_.acquire({.resource = resource(i), .ttl = ttl});
      if (!got) std::abort();
      leases_.push_back(std::move(*got));
    }
  }

  std::uint64_t renewed() const { return store_.counters().renewed; }
  // How many have been lost, or do not stand in the server.
  std::size_t lost(redis_server const& server) const {
    auto const gone = std::count_if(leases_.begin(), leases_.end(),
                                    [](auto const& one) { return one.lost().stop_requested(); });
    auto const keys = server.command(
        {"EVAL", "return #redis.call('KEYS', ARGV[1])", "0", "fenceguard:{0}:lease:*"});
    auto const stand = static_cast<std::size_t>(keys.integer);
    return std::max(static_cast<std::size_t>(gone),
                    leases_.size() - std::min(leases_.size(), stand));
  }

 private:
  testing::token_source tokens_;
  redis::lease_store store_;
  std::vector<lease> leases_;
};

using connection = std::unique_ptr<redisContext, decltype(&redisFree)>;

connection connect(redis_server const& server) {
  connection made{redisConnect("127.0.0.1", server.port()), redisFree};
  if (made == nullptr || made->err != 0) std::abort();
  return made;
}

using reply = std::unique_ptr<redisReply, decltype(&freeReplyObject)>;

template <class... Words>
reply ask(connection const& to, Words... words) {
  reply answer{static_cast<redisReply*>(redisCommand(to.get(), words...)), freeReplyObject};
  if (answer == nullptr || answer->type == REDIS_REPLY_ERROR) std::abort();
  return answer;
}

// The heartbeat by hand, at the store's intervals: a third of the ttl.
class heartbeat {
 public:
  heartbeat(redis_server const& server, std::size_t count) : redis_{connect(server)} {
    auto const script = ask(redis_, "SCRIPT LOAD %s",
                            "if redis.call('GET', KEYS[1]) == ARGV[1] then "
                            "return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0");
    script_ = script->str;
    for (std::size_t i = 0; i < count; ++i) {
      keys_.push_back("by_hand:" + resource(i));
      ask(redis_, "SET %s %s PX 10000", keys_.back().c_str(), holder);
    }
    thread_ = std::jthread{[this](std::stop_token const& stop) { run(stop); }};
  }

  std::uint64_t renewed() const { return renewed_; }

 private:
  static constexpr char const* holder = "0123456789abcdef0123456789abcdef";

  void run(std::stop_token const& stop) {
    for (auto next = steady::now();; next += ttl / 3) {
      while (steady::now() < next) {
        if (stop.stop_requested()) return;
        std::this_thread::sleep_for(std::min<steady::duration>(100ms, next - steady::now()));
      }
      for (auto const& key : keys_) {
        auto const said =
            ask(redis_, "EVALSHA %s 1 %s %s 10000", script_.c_str(), key.c_str(), holder);
        if (said->integer != 1) std::abort();
        ++renewed_;
        if (stop.stop_requested()) return;
      }
    }
  }

  connection redis_;
  std::string script_;
  std::vector<std::string> keys_;
  std::atomic<std::uint64_t> renewed_{0};
  std::jthread thread_;
};

// Bytes that the process grows by for each of `count` heartbeats that have a thread and a
// connection each.
double memory_by_hand(redis_server const& server, std::size_t count) {
  auto const before = resident_bytes();
  std::atomic<std::size_t> ready{0};
  std::vector<std::jthread> all;
  for (std::size_t i = 0; i < count; ++i) {
    all.emplace_back([&, i](std::stop_token const& stop) {
      auto const redis = connect(server);
      ask(redis, "SET %s x PX 10000", ("memory:" + resource(i)).c_str());
      ++ready;
      while (!stop.stop_requested()) std::this_thread::sleep_for(10ms);
    });
  }
  while (ready < count) std::this_thread::sleep_for(10ms);
  return (resident_bytes() - before) / static_cast<double>(count);
}

void print(char const* name, std::vector<cost> const& seen) {
  std::printf("%-24s %12.0f %12.2f %% %12.2f %%\n", name,
              bench::median(seen, [](auto const& c) { return c.renewals; }),
              100 * bench::median(seen, [](auto const& c) { return c.processor; }),
              100 * bench::median(seen, [](auto const& c) { return c.server; }));
}

}  // namespace

int main(int argc, char** argv) {
  int const leases = argc > 1 ? std::atoi(argv[1]) : 10'000;
  double const seconds = argc > 2 ? std::atof(argv[2]) : 10;
  int const rounds = argc > 3 ? std::atoi(argv[3]) : 3;
  if (leases <= 0 || seconds <= 0 || rounds <= 0) {
    std::fprintf(stderr, "usage: %s [leases [seconds per measurement [rounds]]]\n", argv[0]);
    return 2;
  }
  auto const count = static_cast<std::size_t>(leases);
  std::chrono::duration<double> const time{seconds};
  redis_server const server;

  auto const before = resident_bytes();
  auto const heap_before = ::mallinfo2().uordblks;
  double resident = 0;
  double heap = 0;
  std::vector<cost> store;
  std::vector<cost> by_hand;
  std::size_t lost = 0;
  for (int round = 0; round < rounds; ++round) {
    {
      held_leases const held{server, count};
      if (round == 0) {
        resident = (resident_bytes() - before) / static_cast<double>(count);
        heap =
            static_cast<double>(::mallinfo2().uordblks - heap_before) / static_cast<double>(count);
      }
      store.push_back(measure(server, time, [&] { return held.renewed(); }));
      lost += held.lost(server);
    }
    heartbeat const beating{server, count};
    by_hand.push_back(measure(server, time, [&] { return beating.renewed(); }));
  }

  std::printf("%d leases of %lld s, %.0f s each, median of %d\n", leases,
              static_cast<long long>(ttl / 1s), seconds, rounds);
  std::printf("%-24s %12s %14s %14s\n", "", "renewals/s", "of one core", "server's");
  print("one store", store);
  print("by hand, one thread", by_hand);
  std::vector<double> ratios;
  for (std::size_t i = 0; i < store.size(); ++i) {
    ratios.push_back((store[i].processor / store[i].renewals) /
                     (by_hand[i].processor / by_hand[i].renewals));
  }
  auto const [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  std::printf("processor time per renewal, store beside by hand: %.2f (%.2f to %.2f)\n",
              bench::median(ratios, [](double one) { return one; }), *least, *most);
  std::printf("leases lost: %zu\n\n", lost);

  std::printf("%-24s %12s %14s\n", "bytes for each lease", "resident", "of the heap");
  std::printf("%-24s %12.0f %14.0f\n", "one store", resident, heap);
  std::printf("%-24s %12.0f\n", "by hand, a thread each",
              memory_by_hand(server, std::min<std::size_t>(count, 500)));
  return lost == 0 ? 0 : 1;
}
