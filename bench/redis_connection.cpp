// One multiplexed connection beside threads that each own a blocking hiredis connection, running
// the same script on a private server, in one run. Prints calls per second, their ratio, and this
// process's processor time per call; medians over the rounds.
//
//   bench_redis_connection [seconds per measurement] [rounds]
#include <hiredis/hiredis.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/throughput.hpp"
#include "redis/connection.hpp"
#include "redis/script.hpp"
#include "servers/redis_server.hpp"

namespace {

using namespace fenceguard::redis;
using namespace std::chrono_literals;

// Of the size and cost of a lease's acquire and release.
constexpr char const* lua = R"(
local info = redis.pcall('INFO', 'replication')
local id = string.match(info, 'master_replid:(%x+)')
local v = redis.call('GET', KEYS[1])
if v then redis.call('DEL', KEYS[1]) return {'RELEASED', v} end
local n = redis.call('HINCRBY', KEYS[2], 'next', 1)
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. string.format('%.0f', n), 'PX', ARGV[2], 'NX')
return {'GRANTED', string.format('%.0f', n), id}
)";

std::string key_of(int thread) { return "bench:{0}:" + std::to_string(thread); }
constexpr char const* holder = "0123456789abcdef0123456789abcdef";

using fenceguard::bench::call_fn;
using fenceguard::bench::measure;
using fenceguard::bench::median;
using fenceguard::bench::rate;

rate blocking(int port, int threads, double seconds) {
  return measure(threads, seconds, [=](int i) -> call_fn {
    redisContext* const c = redisConnect("127.0.0.1", port);
    if (c == nullptr || c->err != 0) std::abort();
    auto* const loaded = static_cast<redisReply*>(redisCommand(c, "SCRIPT LOAD %s", lua));
    std::string const digest{loaded->str};
    freeReplyObject(loaded);
    std::shared_ptr<redisContext> const own{c, redisFree};
    return [own, digest, key = key_of(i)] {
      char const* words[] = {"EVALSHA",          digest.c_str(), "2",    key.c_str(),
                             "bench:{0}:tokens", holder,         "30000"};
      auto* const r = static_cast<redisReply*>(redisCommandArgv(own.get(), 7, words, nullptr));
      bool const good = r != nullptr && r->type == REDIS_REPLY_ARRAY;
      if (r != nullptr) freeReplyObject(r);
      return good;
    };
  });
}

rate multiplexed(connection& server, script const& what, int threads, double seconds) {
  return measure(threads, seconds, [&](int i) -> call_fn {
    return [&, key = key_of(i)] {
      std::array<std::string_view, 2> const keys{key, "bench:{0}:tokens"};
      std::array<std::string_view, 2> const arguments{holder, "30000"};
      auto const outcome =
          evaluate(server, what, {keys, arguments}, fenceguard::boottime::now() + 2s);
      bool const good = outcome.replied() && outcome.answer.is_array();
      if (!good) {
        std::fprintf(stderr, "%s\n",
                     outcome.replied() ? outcome.answer.describe().c_str() : outcome.error.c_str());
      }
      return good;
    };
  });
}

}  // namespace

int main(int argc, char** argv) {
  double const seconds = argc > 1 ? std::atof(argv[1]) : 0.5;
  int const rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  if (seconds <= 0 || rounds <= 0) {
    std::fprintf(stderr, "usage: %s [seconds per measurement] [rounds]\n", argv[0]);
    return 2;
  }
  fenceguard::test_servers::redis_server const own_server;
  std::printf("%7s %11s %13s %6s %12s %11s %11s\n", "threads", "blocking/s", "multiplexed/s",
              "ratio", "calls/batch", "us blocking", "us multipl.");
  script const what{lua};
  for (int threads : {1, 8, 32, 128}) {
    std::vector<std::pair<rate, rate>> seen;
    connection server{connection_options::from_url(parse_url(own_server.url()))};
    // Side by side, so that both meet the same noise.
    for (int round = 0; round < rounds; ++round) {
      auto const base = blocking(own_server.port(), threads, seconds);
      auto const ours = multiplexed(server, what, threads, seconds);
      seen.emplace_back(base, ours);
    }
    auto const counters = server.counters();
    std::printf("%7d %11.0f %13.0f %6.2f %12.1f %11.2f %11.2f\n", threads,
                median(seen, [](auto& one) { return one.first.calls; }),
                median(seen, [](auto& one) { return one.second.calls; }),
                median(seen, [](auto& one) { return one.second.calls / one.first.calls; }),
                static_cast<double>(counters.commands) / static_cast<double>(counters.batches),
                median(seen, [](auto& one) { return one.first.microseconds; }),
                median(seen, [](auto& one) { return one.second.microseconds; }));
    std::fflush(stdout);
  }
}
