// A lease store's acquire() and release() beside threads that each own a blocking hiredis
// connection and run the same scripts, on one private server, in one run. The store has one
// connection for all its threads. Prints pairs per second, their ratio, and this process's
// processor time per pair; medians over the rounds, the two taking turns.
//
//   bench_acquire_release [seconds per measurement] [rounds]
#include <hiredis/hiredis.h>

#include <cstdio>
#include <fenceguard/redis/lease_store.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <memory>
#include <string>
#include <utility>

#include "bench/throughput.hpp"
#include "redis/lease_scripts.hpp"
#include "servers/redis_server.hpp"

namespace {

using namespace fenceguard;
using namespace std::chrono_literals;
using bench::call_fn;
using bench::rate;

class blocking_client {
 public:
  blocking_client(int port, std::string resource)
      : redis_{redisConnect("127.0.0.1", port), redisFree},
        lease_{"fenceguard:{0}:lease:" + resource},
        channel_{"fenceguard:{0}:released:" + std::move(resource)} {
    if (redis_ == nullptr || redis_->err != 0) std::abort();
    acquire_ = load(redis::lease_scripts::get().acquire.text());
    release_ = load(redis::lease_scripts::get().release.text());
  }

  bool pair() {
    char const* const acquire[] = {
        "EVALSHA", acquire_.c_str(), "2",      lease_.c_str(),     "fenceguard:{0}:tokens",
        holder,    "10000",          "ticket", "9000000000000000", "1",
        ""};
    char const* const release[] = {"EVALSHA",      release_.c_str(), "1",
                                   lease_.c_str(), holder,           channel_.c_str()};
    return first_word(acquire, 11) == "GRANTED" && first_word(release, 6) == "RELEASED";
  }

 private:
  static constexpr char const* holder = "0123456789abcdef0123456789abcdef";

  std::string load(std::string const& text) {
    std::unique_ptr<redisReply, decltype(&freeReplyObject)> const answer{
        static_cast<redisReply*>(redisCommand(redis_.get(), "SCRIPT LOAD %s", text.c_str())),
        freeReplyObject};
    if (!answer || answer->type != REDIS_REPLY_STRING) std::abort();
    return answer->str;
  }

  std::string first_word(char const* const* words, int count) {
    std::unique_ptr<redisReply, decltype(&freeReplyObject)> const answer{
        static_cast<redisReply*>(
            redisCommandArgv(redis_.get(), count, const_cast<char const**>(words), nullptr)),
        freeReplyObject};
    if (!answer || answer->type != REDIS_REPLY_ARRAY) return {};
    return answer->element[0]->str;
  }

  std::unique_ptr<redisContext, decltype(&redisFree)> redis_;
  std::string lease_;
  std::string channel_;
  std::string acquire_;
  std::string release_;
};

rate blocking(int port, int threads, double seconds) {
  return bench::measure(threads, seconds, [=](int i) -> call_fn {
    auto const own = std::make_shared<blocking_client>(port, "hand/" + std::to_string(i));
    return [own] { return own->pair(); };
  });
}

rate with_store(lease_store& leases, int threads, double seconds) {
  return bench::measure(threads, seconds, [&](int i) -> call_fn {
    lease_request const wanted{.resource = "store/" + std::to_string(i), .ttl = 10s};
    return [&leases, wanted] {
      auto lease = leases.acquire(wanted);
      return lease && lease->release() == release_outcome::released;
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
  test_servers::redis_server const server;
  testing::token_source tokens;
  redis::lease_store leases{{.url = server.url(), .block_size = 100'000'000}, tokens};
  (void)leases.acquire({.resource = "first", .ttl = 10s});  // brings the first block
  std::printf("%7s %12s %12s %6s %12s %12s\n", "threads", "by hand/s", "store/s", "ratio",
              "us by hand", "us store");
  for (int threads : {1, 8, 32, 128}) {
    std::vector<std::pair<rate, rate>> seen;
    for (int round = 0; round < rounds; ++round) {
      auto const base = blocking(server.port(), threads, seconds);
      auto const ours = with_store(leases, threads, seconds);
      seen.emplace_back(base, ours);
    }
    std::printf("%7d %12.0f %12.0f %6.2f %12.2f %12.2f\n", threads,
                bench::median(seen, [](auto& one) { return one.first.calls; }),
                bench::median(seen, [](auto& one) { return one.second.calls; }),
                bench::median(seen, [](auto& one) { return one.second.calls / one.first.calls; }),
                bench::median(seen, [](auto& one) { return one.first.microseconds; }),
                bench::median(seen, [](auto& one) { return one.second.microseconds; }));
    std::fflush(stdout);
  }
}
