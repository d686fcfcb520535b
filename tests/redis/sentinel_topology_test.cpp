#include "redis/sentinel_topology.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/redis/lease_store.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "redis/byte_server.hpp"
#include "servers/free_port.hpp"
#include "servers/redis_sentinels.hpp"
#include "servers/wait.hpp"

namespace fenceguard::redis_tests {
namespace {

using namespace std::chrono_literals;
using redis::parse_url;
using test_servers::eventually;
using test_servers::redis_sentinels;
using test_servers::redis_server;

time_point in(std::chrono::milliseconds time) { return boottime::now() + time; }

std::shared_ptr<redis::topology> topology_of(std::string const& url) {
  return redis::make_topology(parse_url(url), 1, 1s);
}

std::string at(int port) { return "127.0.0.1:" + std::to_string(port); }

// A sentinel that always names the same server.
byte_server sentinel_that_names(int port) {
  auto const number = std::to_string(port);
  return byte_server{[number](int descriptor) {
    while (!byte_server::hear(descriptor).empty()) {
      byte_server::say(descriptor, "*2\r\n$9\r\n127.0.0.1\r\n$" + std::to_string(number.size()) +
                                       "\r\n" + number + "\r\n");
    }
  }};
}

lease_request request(std::string resource, std::chrono::milliseconds wait = 0ms) {
  lease_request wanted;
  wanted.resource = std::move(resource);
  wanted.ttl = 10s;
  wanted.wait = wait;
  return wanted;
}

}  // namespace

TEST_CASE("sentinel: finds the primary, and asks again only when there is reason to") {
  redis_sentinels system;
  auto const found = topology_of(system.url());
  auto const here = found->locate(0, in(5s));
  REQUIRE_MESSAGE(here.found, here.error);
  CHECK(here.server.port == system.primary().port());
  auto const version = found->version();

  SUBCASE("an ordinary answer changes nothing") {
    redis::result good;
    good.outcome = redis::fate::replied;
    CHECK(found->learn(0, here.server, good).what == redis::topology::next_step::kind::keep);
    CHECK(found->version() == version);
  }
  SUBCASE("a broken connection does, but what was sent is not sent again") {
    redis::result broken;
    broken.outcome = redis::fate::unknown;
    broken.why = redis::failure::disconnected;
    CHECK(found->learn(0, here.server, broken).what == redis::topology::next_step::kind::keep);
    CHECK(found->version() > version);
    CHECK(found->locate(0, in(5s)).server == here.server);
  }
  SUBCASE("what a former primary says is no reason") {
    redis::result gone;
    gone.why = redis::failure::unreachable;
    static_cast<void>(found->learn(0, {"127.0.0.1", 1, {}}, gone));
    CHECK(found->version() == version);
  }
}

TEST_CASE("sentinel: a server whose ROLE denies that it is the primary is not used") {
  redis_server primary;
  redis_server replica;
  replica.replica_of(primary);
  auto const stale = sentinel_that_names(replica.port());
  auto const good = sentinel_that_names(primary.port());

  auto const only_stale = topology_of("redis+sentinel://" + at(stale.port()) + "/orders");
  auto const nowhere = only_stale->locate(0, in(5s));
  CHECK_FALSE(nowhere.found);
  CHECK(nowhere.error.find("no primary") != std::string::npos);

  auto const both =
      topology_of("redis+sentinel://" + at(stale.port()) + ',' + at(good.port()) + "/orders");
  auto const here = both->locate(0, in(5s));
  REQUIRE_MESSAGE(here.found, here.error);
  CHECK(here.server.port == primary.port());
}

TEST_CASE("sentinel: one that hangs and one that is gone leave time for the third") {
  redis_sentinels system;
  std::atomic<bool> over{false};
  byte_server const mute{[&](int descriptor) {
    while (!byte_server::hear(descriptor).empty()) {
    }
  }};
  auto const found =
      topology_of("redis+sentinel://" + at(mute.port()) + ',' + at(test_servers::free_port()) +
                  ',' + at(system.sentinel_ports()[2]) + "/orders");
  auto const before = boottime::now();
  auto const here = found->locate(0, in(2s));
  CHECK_MESSAGE(here.found, here.error);
  CHECK(boottime::now() - before < 2s);
}

TEST_CASE("sentinel: none answers, or none knows the service") {
  auto const gone = topology_of("redis+sentinel://" + at(test_servers::free_port()) + "/orders");
  auto const nowhere = gone->locate(0, in(2s));
  CHECK_FALSE(nowhere.found);
  CHECK(nowhere.error.find("orders") != std::string::npos);

  redis_sentinels system;
  auto const first = at(system.sentinel_ports()[0]);
  auto const unknown = topology_of("redis+sentinel://" + first + "/invoices")->locate(0, in(2s));
  CHECK_FALSE(unknown.found);
  CHECK(unknown.error.find("knows no such service") != std::string::npos);
}

// Four threads with a store each, on a handful of resources, while the primary changes twice.
TEST_CASE("sentinel: tokens keep rising over failovers, and acquisitions go on") {
  redis_sentinels system;
  testing::token_source tokens;
  std::mutex mutex;
  std::map<std::string, std::int64_t> latest;
  std::map<std::string, std::uint64_t> grants;
  std::vector<std::string> disorder;
  std::atomic<bool> over{false};

  auto const work = [&] {
    redis::lease_store leases{{.url = system.url(), .block_size = 100}, tokens};
    for (int n = 0; !over; ++n) {
      auto const resource = "account/" + std::to_string(n % 3);
      try {
        // The lock is held over the call, so that grants are recorded in the order in which the
        // store gave them.
        std::lock_guard const held{mutex};
        auto const given = leases.acquire(request(resource));
        if (!given) continue;
        auto const token = given->token().value();
        if (token <= latest[resource]) {
          disorder.push_back(resource + ": " + std::to_string(token) + " after " +
                             std::to_string(latest[resource]));
        }
        latest[resource] = token;
        ++grants[resource];
      } catch (lease_store_unavailable const&) {  // for a moment, during the failover
        std::this_thread::yield();
      }
    }
  };
  auto const wait_for_grants = [&](std::uint64_t more) {
    auto const count = [&] {
      std::lock_guard const held{mutex};
      return grants["account/0"];
    };
    auto const before = count();
    CHECK(eventually([&] { return count() >= before + more; }));
  };
  std::vector<std::thread> workers;
  for (int i = 0; i < 4; ++i) workers.emplace_back(work);
  wait_for_grants(20);
  system.fail_over();
  wait_for_grants(20);
  system.kill_primary();
  wait_for_grants(20);
  over = true;
  for (auto& worker : workers) worker.join();
  CHECK_MESSAGE(disorder.empty(), disorder.size() << ", the first: " << disorder.front());
}

TEST_CASE("sentinel: NOSCRIPT after failover") {
  redis_sentinels system;
  testing::token_source tokens;
  redis::lease_store leases{{.url = system.url()}, tokens};
  auto const first = leases.acquire(request("account/1", 5s));
  REQUIRE(first.has_value());
  auto const before = first->token();
  for (auto& one : system.servers()) one.command({"SCRIPT", "FLUSH"});
  system.fail_over();
  CHECK(eventually([&] {
    try {
      auto const second = leases.acquire(request("account/2", 5s));
      return second.has_value() && second->token() > before;
    } catch (lease_store_unavailable const&) {
      return false;
    }
  }));
}

}  // namespace fenceguard::redis_tests
