// How a lease changes hands: the time from release() to the next one's grant, what the server is
// asked for it, and how quickly a wait is cancelled. One private server.
//
//   bench_handoff [handoffs per measurement]
#include <hiredis/hiredis.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fenceguard/redis/lease_store.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "redis/lease_backend.hpp"
#include "servers/redis_server.hpp"
#include "servers/wait.hpp"

namespace {

using namespace fenceguard;
using namespace std::chrono_literals;
using steady = std::chrono::steady_clock;
using microseconds = std::chrono::duration<double, std::micro>;
using test_servers::redis_server;
using test_servers::wait_until;

constexpr char const* channel = "fenceguard:{0}:released:a";

double at(std::vector<double> seen, double part) {
  std::sort(seen.begin(), seen.end());
  return seen[static_cast<std::size_t>(static_cast<double>(seen.size() - 1) * part)];
}

long long subscribers(redis_server const& server) {
  return server.command({"PUBSUB", "NUMSUB", channel}).elements.at(1).integer;
}

// A store that is told of no release by others.
class polling_store final : public lease_store {
 public:
  polling_store(int port, token_source& tokens) : lease_store{backend(port, tokens), {}} {}

 private:
  class deaf_backend final : public lease_backend {
   public:
    explicit deaf_backend(std::unique_ptr<lease_backend> real) : real_{std::move(real)} {}
    acquire_answer try_acquire(attempt const& what) override { return real_->try_acquire(what); }
    void renew(std::span<renew_item> batch, time_point deadline) noexcept override {
      real_->renew(batch, deadline);
    }
    release_outcome release(std::string_view resource, std::string_view holder,
                            time_point deadline) noexcept override {
      return real_->release(resource, holder, deadline);
    }
    advance_answer advance(std::string_view resource, std::string_view holder,
                           std::optional<fencing_token> above, time_point deadline) override {
      return real_->advance(resource, holder, above, deadline);
    }
    std::optional<holder_info> inspect(std::string_view resource, time_point deadline) override {
      return real_->inspect(resource, deadline);
    }
    void close() noexcept override { real_->close(); }

   private:
    std::unique_ptr<lease_backend> const real_;
  };

  static std::unique_ptr<lease_backend> backend(int port, token_source& tokens) {
    redis::connection_options to;
    to.server.host = "127.0.0.1";
    to.server.port = static_cast<std::uint16_t>(port);
    return std::make_unique<deaf_backend>(std::make_unique<redis::lease_backend>(
        redis::lease_backend::settings{.servers = std::make_shared<redis::standalone_topology>(to),
                                       .keys = redis::key_space{"fenceguard"},
                                       .block_size = 1'000'000},
        tokens));
  }
};

// Microseconds from release() being called to the grant, one holder and one waiter.
std::vector<double> handoffs(lease_store& from, lease_store& to, int count,
                             std::function<void()> const& wait_for_waiter) {
  std::vector<double> seen;
  for (int i = 0; i < count; ++i) {
    auto held = from.acquire({.resource = "a", .ttl = 60s});
    if (!held) std::abort();
    steady::time_point granted_at{};
    std::thread waiter{[&] {
      auto const got = to.acquire({.resource = "a", .ttl = 60s, .wait = 60s});
      granted_at = steady::now();
      if (!got) std::abort();
    }};
    wait_for_waiter();
    auto const begin = steady::now();
    if (held->release() != release_outcome::released) std::abort();
    waiter.join();
    seen.push_back(microseconds{granted_at - begin}.count());
  }
  return seen;
}

// The same by hand: RPUSH by one, BLPOP by the other.
std::vector<double> by_hand(int port, int count) {
  std::unique_ptr<redisContext, decltype(&redisFree)> from{redisConnect("127.0.0.1", port),
                                                           redisFree};
  std::unique_ptr<redisContext, decltype(&redisFree)> to{redisConnect("127.0.0.1", port),
                                                         redisFree};
  std::vector<double> seen;
  for (int i = 0; i < count; ++i) {
    steady::time_point granted_at{};
    std::thread waiter{[&] {
      auto* const answer = static_cast<redisReply*>(redisCommand(to.get(), "BLPOP by_hand 60"));
      granted_at = steady::now();
      if (answer == nullptr || answer->type != REDIS_REPLY_ARRAY) std::abort();
      freeReplyObject(answer);
    }};
    std::this_thread::sleep_for(3ms);
    auto const begin = steady::now();
    auto* const answer = static_cast<redisReply*>(redisCommand(from.get(), "RPUSH by_hand x"));
    if (answer == nullptr || answer->type != REDIS_REPLY_INTEGER) std::abort();
    freeReplyObject(answer);
    waiter.join();
    seen.push_back(microseconds{granted_at - begin}.count());
  }
  return seen;
}

void print_times(char const* name, std::vector<double> const& seen) {
  std::printf("%-34s %10.0f %10.0f\n", name, at(seen, 0.5), at(seen, 0.99));
  std::fflush(stdout);
}

// What clients have sent: commands inside scripts do not count, nor does what this program asks.
long long commands_sent(redis_server const& server) {
  auto const text = server.command({"INFO", "commandstats"}).text;
  long long sum = 0;
  for (std::string name : {"evalsha", "eval", "subscribe", "unsubscribe", "ping"}) {
    auto const found = text.find("cmdstat_" + name + ":calls=");
    if (found == std::string::npos) continue;
    sum += std::atoll(text.c_str() + text.find('=', found) + 1);
  }
  return sum;
}

enum class hearing { of_releases, nothing };

// Commands for each grant while `waiters` callers, shared out over the stores, get the lease one
// after another, each once, and keep it for `hold`.
std::vector<double> commands_per_grant(redis_server const& server, std::size_t stores,
                                       std::size_t waiters, std::chrono::microseconds hold,
                                       hearing of) {
  testing::token_source tokens;
  redis::lease_store first{{.url = server.url(), .prefix = "fenceguard"}, tokens};
  auto held = first.acquire({.resource = "a", .ttl = 60s});
  std::vector<std::unique_ptr<lease_store>> all;
  for (std::size_t i = 0; i < stores; ++i) {
    if (of == hearing::nothing) {
      all.push_back(std::make_unique<polling_store>(server.port(), tokens));
    } else {
      all.push_back(std::make_unique<redis::lease_store>(
          redis::lease_store_options{.url = server.url()}, tokens));
    }
  }
  std::vector<double> seen;  // guarded by the lease
  long long last = 0;
  std::atomic<std::size_t> begun{0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < waiters; ++i) {
    threads.emplace_back([&, i] {
      ++begun;
      auto const got = all[i % stores]->acquire({.resource = "a", .ttl = 60s, .wait = 300s});
      if (!got) std::abort();
      auto const now = commands_sent(server);
      seen.push_back(static_cast<double>(now - last));
      last = now;
      std::this_thread::sleep_for(hold);
    });
  }
  wait_until("subscriptions", [&] {
    auto const expected = of == hearing::nothing ? 0 : static_cast<long long>(stores);
    return begun == waiters && subscribers(server) == expected;
  });
  std::this_thread::sleep_for(300ms);  // the first questions are over
  last = commands_sent(server);
  held.reset();
  for (auto& one : threads) one.join();
  return seen;
}

void print_commands(redis_server const& server, std::size_t stores, std::size_t waiters,
                    std::chrono::microseconds hold, hearing of = hearing::of_releases) {
  auto const seen = commands_per_grant(server, stores, waiters, hold, of);
  double sum = 0;
  for (auto const one : seen) sum += one;
  std::printf("%4zu waiters in %3zu stores, held %3lld ms%s %10.0f %10.1f %10.0f\n", waiters,
              stores, static_cast<long long>(hold / 1ms),
              of == hearing::nothing ? ", polling only" : "              ", at(seen, 0.5),
              sum / static_cast<double>(seen.size()), at(seen, 0.99));
  std::fflush(stdout);
}

void print_cancelling(redis_server const& server, int count) {
  testing::token_source tokens;
  redis::lease_store from{{.url = server.url()}, tokens};
  redis::lease_store to{{.url = server.url()}, tokens};
  auto const held = from.acquire({.resource = "a", .ttl = 60s});
  std::vector<double> seen;
  for (int i = 0; i < count; ++i) {
    std::stop_source stop;
    steady::time_point ended_at{};
    std::thread waiter{[&] {
      auto const got =
          to.acquire({.resource = "a", .ttl = 60s, .wait = 60s, .stop = stop.get_token()});
      ended_at = steady::now();
      if (got) std::abort();
    }};
    wait_until("a waiter", [&] { return subscribers(server) == 1; });
    auto const begin = steady::now();
    stop.request_stop();
    waiter.join();
    seen.push_back(microseconds{ended_at - begin}.count());
    wait_until("nothing left behind", [&] { return subscribers(server) == 0; });
  }
  auto const info = to.inspect("a");
  bool const clean = info && info->holder == held->holder() && to.counters().held == 0;
  print_times("stop_token to the end of the wait", seen);
  std::printf("left behind: %s\n", clean ? "nothing" : "SOMETHING");
}

}  // namespace

int main(int argc, char** argv) {
  int const count = argc > 1 ? std::atoi(argv[1]) : 300;
  if (count <= 0) {
    std::fprintf(stderr, "usage: %s [handoffs per measurement]\n", argv[0]);
    return 2;
  }
  redis_server const server;
  {
    testing::token_source tokens;
    redis::lease_store from{{.url = server.url()}, tokens};
    redis::lease_store to{{.url = server.url()}, tokens};
    polling_store polling_from{server.port(), tokens};
    polling_store polling_to{server.port(), tokens};
    std::printf("%-34s %10s %10s\n", "release() to the grant", "median us", "p99 us");
    print_times("told of the release", handoffs(from, to, count, [&] {
                  wait_until("a waiter", [&] { return subscribers(server) == 1; });
                  // The question that follows the subscription is over; the next poll is far.
                  std::this_thread::sleep_for(10ms);
                }));
    print_times("polling only, after 100 ms",
                handoffs(polling_from, polling_to, std::min(count, 50),
                         [] { std::this_thread::sleep_for(100ms); }));
    print_times("by hand: RPUSH, BLPOP", by_hand(server.port(), count));
  }
  std::printf("\n%-55s %10s %10s %10s\n", "commands sent for each grant", "median", "mean", "p99");
  for (auto const hold : {0ms, 10ms, 100ms}) {
    print_commands(server, 1, 100, hold);
    print_commands(server, 100, 100, hold);
    print_commands(server, 100, 100, hold, hearing::nothing);
  }
  std::printf("\n");
  print_cancelling(server, std::min(count, 100));
}
