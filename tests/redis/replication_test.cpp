#include "redis/replication.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/redis/lease_store.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "redis/byte_server.hpp"
#include "servers/redis_server.hpp"
#include "servers/relay.hpp"
#include "servers/wait.hpp"

namespace fenceguard {
namespace {

using namespace std::chrono_literals;
using redis_tests::byte_server;
using test_servers::eventually;
using test_servers::redis_server;
using steady = std::chrono::steady_clock;

constexpr char const* lease_a = "fenceguard:{0}:lease:a";

struct primary_with_two_replicas {
  redis_server primary;
  redis_server first;
  redis_server second;

  primary_with_two_replicas() {
    first.replica_of(primary);
    second.replica_of(primary);
    REQUIRE(eventually([&] { return primary.info("replication", "connected_slaves") == "2"; }));
    REQUIRE(eventually([&] { return acknowledging() == 2; }));
    // Up to a second after the first copy a replica has not asked for what comes after it.
    REQUIRE_FALSE(primary.command({"SET", "probe", "1"}).is_error());
    REQUIRE(eventually([&] {
      return first.command({"GET", "probe"}).text == "1" &&
             second.command({"GET", "probe"}).text == "1";
    }));
    REQUIRE(primary.command({"DEL", "probe"}).integer == 1);
  }
  long long acknowledging() const { return primary.command({"WAIT", "2", "100"}).integer; }
};

struct world {
  explicit world(std::string at = {}) : url{std::move(at)} {}
  testing::token_source tokens;
  std::string url;
  std::unique_ptr<redis::lease_store> make(redis::replication_options replication,
                                           redis::token_mode mode = redis::token_mode::automatic) {
    return std::make_unique<redis::lease_store>(
        redis::lease_store_options{.url = url,
                                   .tokens = mode,
                                   .replication = replication,
                                   .settings = {.command_timeout = 8s}},
        tokens);
  }
};

std::string message_of(lease_store& leases, std::string const& resource = "a") {
  try {
    static_cast<void>(leases.acquire({.resource = resource, .ttl = 60s}));
  } catch (lease_store_unavailable const& refused) {
    return refused.what();
  }
  return {};
}

bool holds(std::string const& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a grant that all replicas have is given, and they do have it") {
  primary_with_two_replicas servers;
  world with{servers.primary.url()};
  for (auto const mode : {redis::token_mode::automatic, redis::token_mode::per_grant}) {
    auto const leases = with.make({.replicas_to_wait = 2, .timeout = 4s}, mode);
    auto const held = leases->acquire({.resource = "a", .ttl = 60s});
    REQUIRE(held.has_value());
    auto const value = servers.primary.command({"GET", lease_a}).text;
    CHECK(holds(value, held->holder()));
    CHECK(servers.first.command({"GET", lease_a}).text == value);
    CHECK(servers.second.command({"GET", lease_a}).text == value);
  }
  CHECK(servers.primary.info("commandstats", "cmdstat_wait").has_value());
}

TEST_CASE("a shortfall undoes the grant and says how many acknowledged") {
  primary_with_two_replicas servers;
  world with{servers.primary.url()};
  for (auto const mode : {redis::token_mode::automatic, redis::token_mode::per_grant}) {
    auto const leases = with.make({.replicas_to_wait = 2, .timeout = 150ms}, mode);
    REQUIRE(eventually([&] { return message_of(*leases, "warm").empty(); }));
    servers.second.pause();
    auto const said = message_of(*leases);
    INFO(said);
    CHECK(holds(said, "1 of 2 replicas acknowledged within 150 ms; the grant was undone"));
    CHECK(servers.primary.command({"EXISTS", lease_a}).integer == 0);
    CHECK(leases->counters().held == 0);
    // One replica is enough for whom one is enough.
    auto const content = with.make({.replicas_to_wait = 1, .timeout = 150ms}, mode);
    CHECK(eventually([&] { return message_of(*content).empty(); }));
    servers.second.resume();
    CHECK(eventually([&] { return message_of(*leases).empty(); }));
  }
}

TEST_CASE("a busy lease is said at once, also where a replica is down") {
  primary_with_two_replicas servers;
  world with{servers.primary.url()};
  auto const plain = with.make({});
  auto const held = plain->acquire({.resource = "a", .ttl = 60s});
  servers.second.pause();
  auto const leases = with.make({.replicas_to_wait = 2, .timeout = 500ms});
  auto quickest = steady::duration::max();
  for (int i = 0; i < 5; ++i) {
    auto const begin = steady::now();
    CHECK_FALSE(leases->acquire({.resource = "a"}).has_value());
    quickest = std::min(quickest, steady::now() - begin);
  }
  CHECK(quickest < 250ms);
  servers.second.resume();
}

TEST_CASE("who waits for a replica holds up neither renewals nor other acquisitions") {
  primary_with_two_replicas servers;
  world with{servers.primary.url()};
  auto const leases = with.make({.replicas_to_wait = 2, .timeout = 500ms});
  REQUIRE(eventually([&] { return message_of(*leases, "held").empty(); }));
  auto const held = leases->acquire(
      {.resource = "held", .ttl = 1500ms, .wait = 30s, .renew = renewal::automatic});
  REQUIRE(held.has_value());
  servers.second.pause();
  std::atomic<bool> stop{false};
  std::vector<std::thread> waiting;
  for (int i = 0; i < 6; ++i) {
    waiting.emplace_back([&, i] {
      while (!stop) static_cast<void>(message_of(*leases, "b" + std::to_string(i)));
    });
  }
  // What does not wait itself: answers within a fraction of one WAIT, nearly always.
  std::vector<steady::duration> busy;
  for (int i = 0; i < 20; ++i) {
    auto const begin = steady::now();
    CHECK_FALSE(leases->acquire({.resource = "held"}).has_value());
    busy.push_back(steady::now() - begin);
    CHECK(leases->inspect("held").has_value());
  }
  std::sort(busy.begin(), busy.end());
  CHECK(busy[busy.size() / 2] < 100ms);
  auto const renewed = leases->counters().renewed;
  CHECK(eventually([&] { return leases->counters().renewed >= renewed + 5; }, 20s));
  CHECK_FALSE(held->lost().stop_requested());
  stop = true;
  for (auto& one : waiting) one.join();
  servers.second.resume();
}

TEST_CASE("a connection that was made again in between proves nothing") {
  primary_with_two_replicas servers;
  test_servers::relay between{servers.primary.port()};
  world with{"redis://127.0.0.1:" + std::to_string(between.port())};
  auto const leases = with.make({.replicas_to_wait = 2, .timeout = 4s});
  {
    auto const first = leases->acquire({.resource = "a", .ttl = 60s});
    REQUIRE(first.has_value());
  }
  servers.first.pause();
  servers.second.pause();
  // The reply to the script passes, the connection ends behind it: WAIT on a new connection, which
  // has written nothing, would count both replicas for what they had long before.
  between.when_seen(test_servers::direction::to_client, "GRANTED",
                    test_servers::reaction::cut_after);
  auto const said = message_of(*leases);
  INFO(said);
  CHECK(between.fired() == 1);
  CHECK_FALSE(said.empty());
  CHECK(eventually([&] { return servers.primary.command({"EXISTS", lease_a}).integer == 0; }));
  CHECK(leases->counters().held == 0);
  servers.first.resume();
  servers.second.resume();
}

TEST_CASE("WAIT on a connection that was made for it is not believed") {
  primary_with_two_replicas servers;
  test_servers::relay between{servers.primary.port()};
  redis::connection_options to;
  to.server.host = "127.0.0.1";
  to.server.port = static_cast<std::uint16_t>(between.port());
  to.silence_limit = 8s;
  redis::replication pool{
      std::make_shared<redis::standalone_topology>(to), 1, {.replicas_to_wait = 2, .timeout = 4s}};
  redis::script const write{"return redis.call('SET', KEYS[1], 'x')"};
  std::vector<std::string_view> const keys{"key"};
  auto const run = [&](std::function<void()> const& in_between) {
    return pool.evaluate(write, {keys, {}}, 0, boottime::now() + 8s, [&](redis::result const&) {
      in_between();
      return true;
    });
  };
  CHECK(run([] {}).shortfall.empty());
  auto const cut = run([&] {
    between.cut();
    CHECK(eventually([&] { return between.open_connections() == 0; }));
    std::this_thread::sleep_for(5ms);  // so that it is found out before WAIT is sent
  });
  CHECK(cut.answer.replied());
  CHECK(cut.shortfall == "the connection was lost before the replicas could be asked");
  CHECK(between.accepted() == 2);
}

TEST_CASE("more callers than connections take turns") {
  primary_with_two_replicas servers;
  world with{servers.primary.url()};
  auto const leases = with.make({.replicas_to_wait = 2, .timeout = 4s});
  std::atomic<int> granted{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 40; ++i) {
    callers.emplace_back([&, i] {
      for (int n = 0; n < 5; ++n) {
        if (leases->acquire({.resource = "c" + std::to_string(i), .ttl = 60s, .wait = 30s})) {
          ++granted;
        }
      }
    });
  }
  for (auto& one : callers) one.join();
  CHECK(granted == 200);
  auto const clients = servers.primary.command({"CLIENT", "LIST", "TYPE", "normal"}).text;
  // 16 for acquisitions, and those for all else, and the one that asks.
  CHECK(std::count(clients.begin(), clients.end(), '\n') <= 16 + 5);
}

TEST_CASE("fsync_to_wait on a server before 7.2 is refused at construction") {
  redis_server server;
  world with{server.url()};
  if (server.command({"WAITAOF", "0", "0", "1"}).is_error()) {
    try {
      static_cast<void>(with.make({.fsync_to_wait = 1}));
      FAIL("not refused");
    } catch (invalid_request const& refused) {
      CHECK(holds(refused.what(), "7.2"));
      CHECK(holds(refused.what(), "the server is Redis 7.0"));
    }
  } else {
    // A server that has it but keeps no append-only file.
    CHECK_THROWS_AS(static_cast<void>(with.make({.fsync_to_wait = 1})), invalid_request);
  }
  server.stop();
  CHECK_THROWS_AS(static_cast<void>(with.make({.fsync_to_wait = 1})), lease_store_unavailable);
}

namespace {

// A server that has WAITAOF: passes the rest on to a real one that has not.
class with_waitaof {
 public:
  explicit with_waitaof(std::string answer)
      : answer_{std::move(answer)}, server_{[this](int descriptor) {
          while (true) {
            auto const heard = byte_server::hear(descriptor);
            if (heard.empty()) return;
            reply_to(descriptor, heard);
          }
        }} {}
  std::string url() const { return "redis://127.0.0.1:" + std::to_string(server_.port()); }
  std::string last_waitaof() const {
    std::lock_guard const held{mutex_};
    return last_;
  }

 private:
  void reply_to(int descriptor, std::string const& heard) {
    if (heard.find("WAITAOF") == std::string::npos) {
      byte_server::say(descriptor, "-ERR unexpected\r\n");
      return;
    }
    {
      std::lock_guard const held{mutex_};
      last_ = heard;
    }
    byte_server::say(descriptor, answer_);
  }

  std::string const answer_;
  mutable std::mutex mutex_;
  std::string last_;
  byte_server server_;
};

}  // namespace

TEST_CASE("WAITAOF: what is asked at construction, and which answers are enough") {
  world with;
  with_waitaof has{"*2\r\n:1\r\n:0\r\n"};
  with.url = has.url();
  static_cast<void>(with.make({.fsync_to_wait = 2}));
  CHECK(has.last_waitaof() == "*4\r\n$7\r\nWAITAOF\r\n$1\r\n1\r\n$1\r\n0\r\n$1\r\n1\r\n");
  with_waitaof no_file{
      "-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n"};
  with.url = no_file.url();
  CHECK_THROWS_AS(static_cast<void>(with.make({.fsync_to_wait = 1})), invalid_request);
}

// Needs a server of 7.2 or later: FENCEGUARD_TEST_REDIS_SERVER names its program where the one on
// the path is older.
TEST_CASE("a grant that is on two disks is given, one that is on one is undone") {
  char const* const named = std::getenv("FENCEGUARD_TEST_REDIS_SERVER");
  redis_server::options const how{.persistent = true,
                                  .program = named != nullptr ? named : "redis-server"};
  redis_server primary{how};
  if (primary.command({"WAITAOF", "0", "0", "1"}).is_error()) {
    MESSAGE("skipped: the server has no WAITAOF");
    return;
  }
  redis_server replica{how};
  replica.replica_of(primary);
  world with{primary.url()};
  auto const leases = with.make({.replicas_to_wait = 1, .fsync_to_wait = 2, .timeout = 500ms});
  // The first rewrite of the replica's file may still be under way.
  CHECK(eventually([&] { return message_of(*leases, "first").empty(); }));
  CHECK(leases->acquire({.resource = "a", .ttl = 60s}).has_value());
  replica.pause();
  auto const of_disks = with.make({.fsync_to_wait = 2, .timeout = 150ms});
  auto const said = message_of(*of_disks);
  INFO(said);
  CHECK(holds(said, "1 of 2 servers have it on disk within 150 ms; the grant was undone"));
  CHECK(primary.command({"EXISTS", lease_a}).integer == 0);
  CHECK(with.make({.fsync_to_wait = 1})->acquire({.resource = "a", .ttl = 60s}).has_value());
  replica.resume();
}

TEST_CASE("options that are not valid") {
  world with{"redis://127.0.0.1:1"};
  CHECK_THROWS_AS(static_cast<void>(with.make({.replicas_to_wait = 1, .timeout = 0ms})),
                  invalid_request);
  CHECK_THROWS_AS(static_cast<void>(with.make({.replicas_to_wait = 1, .timeout = 4001ms})),
                  invalid_request);
  CHECK_THROWS_AS(static_cast<void>(with.make({.replicas_to_wait = 1'001})), invalid_request);
  static_cast<void>(with.make({.replicas_to_wait = 1, .timeout = 4s}));
}

}  // namespace fenceguard
