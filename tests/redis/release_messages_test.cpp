#include "redis/release_messages.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fenceguard/redis/lease_store.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "redis/backend_fixture.hpp"
#include "servers/redis_server.hpp"
#include "servers/relay.hpp"
#include "servers/wait.hpp"

namespace fenceguard {
namespace {

using namespace std::chrono_literals;
using redis_tests::counted_tokens;
using redis_tests::in;
using test_servers::eventually;
using test_servers::redis_server;
using steady = std::chrono::steady_clock;

std::string channel(std::string const& resource) { return "fenceguard:{0}:released:" + resource; }

std::shared_ptr<redis::topology> server_at(int port, redis::credentials login = {}) {
  redis::connection_options server;
  server.server.host = "127.0.0.1";
  server.server.port = static_cast<std::uint16_t>(port);
  server.login = std::move(login);
  return std::make_shared<redis::standalone_topology>(server);
}

// A subscriber, and what it has passed on.
class hearer {
 public:
  explicit hearer(std::shared_ptr<redis::topology> servers)
      : messages{{.servers = std::move(servers),
                  .keys = redis::key_space{"fenceguard"},
                  .command_timeout = 300ms,
                  .on_error = [this](std::string const& text) { add(errors_, text); }},
                 [this](std::string_view name) { add(heard_, std::string{name}); }} {}

  int heard(std::string const& name) const { return count(heard_, name); }
  int errors() const { return count(errors_, {}); }
  std::string last_error() const {
    std::lock_guard const held{mutex_};
    return errors_.empty() ? "" : errors_.back();
  }
  bool listens(std::string const& name) const { return messages.poll_interval(name).has_value(); }

 private:
  void add(std::vector<std::string>& to, std::string text) {
    std::lock_guard const held{mutex_};
    to.push_back(std::move(text));
  }
  int count(std::vector<std::string> const& in, std::optional<std::string> const& what) const {
    std::lock_guard const held{mutex_};
    return static_cast<int>(what && !what->empty() ? std::count(in.begin(), in.end(), *what)
                                                   : static_cast<std::ptrdiff_t>(in.size()));
  }

  mutable std::mutex mutex_;
  std::vector<std::string> heard_;
  std::vector<std::string> errors_;

 public:
  redis::release_messages messages;
};

long long publish(redis_server const& server, std::string const& resource,
                  std::string const& text = "1") {
  return server.command({"PUBLISH", channel(resource), text}).integer;
}

long long subscribers(redis_server const& server, std::string const& resource) {
  return server.command({"PUBSUB", "NUMSUB", channel(resource)}).elements.at(1).integer;
}

}  // namespace

TEST_CASE("what is watched is heard of, and nothing else") {
  redis_server server;
  hearer one{server_at(server.port())};
  CHECK_FALSE(one.listens("a"));
  one.messages.watch("a");
  one.messages.watch("b");
  REQUIRE(eventually([&] { return one.listens("a") && one.listens("b"); }));
  // Each subscription may have come after a release.
  CHECK(eventually([&] { return one.heard("a") == 1 && one.heard("b") == 1; }));
  CHECK(publish(server, "a") == 1);
  CHECK(eventually([&] { return one.heard("a") == 2; }));
  one.messages.unwatch("a");
  CHECK_FALSE(one.listens("a"));
  CHECK(eventually([&] { return subscribers(server, "a") == 0; }));
  CHECK(publish(server, "b") == 1);
  CHECK(eventually([&] { return one.heard("b") == 2; }));
  CHECK(one.heard("a") == 2);
  CHECK(one.errors() == 0);
}

TEST_CASE("watched again at once, it is heard of again") {
  redis_server server;
  hearer one{server_at(server.port())};
  for (int i = 0; i < 50; ++i) {
    one.messages.watch("a");
    REQUIRE(eventually([&] { return one.listens("a"); }));
    one.messages.unwatch("a");
    one.messages.watch("a");
    REQUIRE(eventually([&] { return one.listens("a"); }));
    one.messages.unwatch("a");
  }
  CHECK(eventually([&] { return subscribers(server, "a") == 0; }));
}

TEST_CASE("a lost connection is made again, and counts as a message") {
  redis_server server;
  hearer one{server_at(server.port())};
  one.messages.watch("a");
  REQUIRE(eventually([&] { return one.heard("a") == 1; }));
  server.stop();
  CHECK(eventually([&] { return !one.listens("a"); }));
  CHECK(eventually([&] { return one.errors() >= 1; }));
  server.start();
  CHECK(eventually([&] { return one.listens("a") && one.heard("a") == 2; }));
  CHECK(publish(server, "a") == 1);
  CHECK(eventually([&] { return one.heard("a") == 3; }));
}

TEST_CASE("a server that has fallen silent is not relied upon") {
  redis_server server;
  test_servers::relay between{server.port()};
  hearer one{server_at(between.port())};
  one.messages.watch("a");
  REQUIRE(eventually([&] { return one.listens("a"); }));
  between.swallow(test_servers::direction::to_client);
  CHECK(eventually([&] { return !one.listens("a"); }, 20s));
  between.flow();
  CHECK(eventually([&] { return one.listens("a"); }));
}

TEST_CASE("who may not subscribe is told so once and polls") {
  redis_server server;
  server.command({"ACL", "SETUSER", "deaf", "on", ">secret", "~*", "+@all", "resetchannels"});
  hearer one{server_at(server.port(), {"deaf", "secret"})};
  one.messages.watch("a");
  REQUIRE(eventually([&] { return one.errors() == 1; }));
  CHECK(one.last_error().find("NOPERM") != std::string::npos);
  CHECK_FALSE(one.listens("a"));
  one.messages.watch("b");
  auto const connections = [&] {
    return std::stoll(server.info("stats", "total_connections_received").value());
  };
  auto const before = connections();
  CHECK_FALSE(eventually([&] { return one.errors() > 1 || one.listens("b"); }, 300ms));
  CHECK(connections() == before + 1);  // that of the question
}

TEST_CASE("of many who hear, about two ask") {
  redis_server server;
  hearer one{server_at(server.port())};
  one.messages.watch("a");
  one.messages.watch("end");
  REQUIRE(eventually([&] { return one.heard("a") == 1 && one.heard("end") == 1; }));
  auto const passed_on = [&](std::string const& subscribers) {
    auto const a = one.heard("a");
    auto const ends = one.heard("end");
    std::vector<std::string> script{"EVAL",
                                    "for i = 1, 2000 do redis.call('PUBLISH', ARGV[1], ARGV[2]) "
                                    "end redis.call('PUBLISH', ARGV[3], '1') return 0",
                                    "0",
                                    channel("a"),
                                    subscribers,
                                    channel("end")};
    REQUIRE_FALSE(server.command(script).is_error());
    REQUIRE(eventually([&] { return one.heard("end") == ends + 1; }));
    return one.heard("a") - a;
  };
  CHECK(passed_on("1") == 2'000);
  CHECK(passed_on("2") == 2'000);
  CHECK(passed_on("") == 2'000);
  CHECK(passed_on("3") == 2'000);
  CHECK(one.messages.poll_interval("a") >= 250ms);
  // 2000 draws of 1.6 in 20: 160, and a standard deviation of 13.
  auto const of_twenty = passed_on("20");
  CHECK(of_twenty > 80);
  CHECK(of_twenty < 250);
  auto const of_thousand = passed_on("1000");
  CHECK(of_thousand < 40);
  // The longer a lease is held, the less is asked.
  CHECK(eventually([&] { return one.messages.poll_interval("a") == 20s; }));
}

TEST_CASE("close ends it soon, whatever the server does") {
  redis_server server;
  auto one = std::make_unique<hearer>(server_at(server.port()));
  one->messages.watch("a");
  REQUIRE(eventually([&] { return one->listens("a"); }));
  server.pause();
  auto const begin = steady::now();
  one->messages.close();
  CHECK(steady::now() - begin < 2s);
  one->messages.watch("b");
  CHECK_FALSE(one->listens("b"));
  one.reset();
  server.resume();
  CHECK(eventually([&] { return subscribers(server, "a") == 0; }));
}

namespace {

// Stores of which each could be a process of its own.
struct store_world {
  explicit store_world(redis_server const& server, std::string user = {}) {
    url = user.empty() ? server.url()
                       : "redis://" + user + "@127.0.0.1:" + std::to_string(server.port());
  }
  std::unique_ptr<redis::lease_store> make() {
    return std::make_unique<redis::lease_store>(redis::lease_store_options{.url = url}, tokens);
  }
  std::string url;
  testing::token_source tokens;
};

// The median time from one store's release to the grant of another that waits.
std::chrono::nanoseconds median_handoff(redis_server const& server, lease_store& from,
                                        lease_store& to) {
  std::vector<std::chrono::nanoseconds> all;
  for (int i = 0; i < 7; ++i) {
    auto held = from.acquire({.resource = "a", .ttl = 30s});
    REQUIRE(held.has_value());
    steady::time_point granted_at{};
    std::thread waiter{[&] {
      auto const got = to.acquire({.resource = "a", .ttl = 30s, .wait = 30s});
      granted_at = steady::now();
      CHECK(got.has_value());
    }};
    CHECK(eventually([&] { return subscribers(server, "a") == 1; }));
    // The question that follows the subscription is over by then; the next poll is far.
    std::this_thread::sleep_for(20ms);
    auto const begin = steady::now();
    CHECK(held->release() == release_outcome::released);
    waiter.join();
    all.push_back(granted_at - begin);
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

}  // namespace

TEST_CASE("a release by one store is granted to another at once") {
  redis_server server;
  store_world world{server};
  auto const from = world.make();
  auto const to = world.make();
  // By polling alone it would be more than 100 ms.
  CHECK(median_handoff(server, *from, *to) < 25ms);
  CHECK(eventually([&] { return subscribers(server, "a") == 0; }));
}

TEST_CASE("a user who may not publish releases all the same") {
  redis_server server;
  server.command({"ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "resetchannels"});
  server.command(
      {"ACL", "SETUSER", "silent", "on", ">secret", "~*", "&*", "+@all", "-publish", "-pubsub"});
  for (std::string user : {"mute:secret", "silent:secret"}) {
    store_world world{server, user};
    auto const leases = world.make();
    auto held = leases->acquire({.resource = "a"});
    REQUIRE(held.has_value());
    CHECK(held->release() == release_outcome::released);
    CHECK(server.command({"EXISTS", "fenceguard:{0}:lease:a"}).integer == 0);
  }
}

TEST_CASE("who may publish but not count is heard") {
  redis_server server;
  server.command({"ACL", "SETUSER", "uncounted", "on", ">secret", "~*", "&*", "+@all", "-pubsub"});
  store_world world{server};
  store_world uncounted{server, "uncounted:secret"};
  auto const from = uncounted.make();
  auto const to = world.make();
  CHECK(median_handoff(server, *from, *to) < 25ms);
}

TEST_CASE("nothing is published where nobody hears") {
  redis_server server;
  store_world world{server};
  auto const leases = world.make();
  for (int i = 0; i < 5; ++i) {
    CHECK(leases->acquire({.resource = "a"})->release() == release_outcome::released);
  }
  CHECK_FALSE(server.info("commandstats", "cmdstat_publish").has_value());
}

TEST_CASE("a release that is not heard of costs a poll only") {
  redis_server server;
  store_world world{server};
  auto const to = world.make();
  auto const from = world.make();
  auto held = from->acquire({.resource = "a", .ttl = 60s});
  std::optional<lease> got;
  std::thread waiter{[&] { got = to->acquire({.resource = "a", .wait = 60s}); }};
  CHECK(eventually([&] { return subscribers(server, "a") == 1; }));
  server.command({"DEL", "fenceguard:{0}:lease:a"});  // without a word
  waiter.join();
  CHECK(got.has_value());
}

TEST_CASE("a hundred stores that wait for one resource all get it, and few requests are made") {
  redis_server server;
  store_world world{server};
  auto const first = world.make();
  auto held = first->acquire({.resource = "a", .ttl = 60s});
  constexpr int many = 100;
  std::vector<std::unique_ptr<redis::lease_store>> stores;
  for (int i = 0; i < many; ++i) stores.push_back(world.make());
  std::atomic<int> granted{0};
  std::vector<std::thread> waiters;
  for (auto const& one : stores) {
    waiters.emplace_back([&, store = one.get()] {
      if (store->acquire({.resource = "a", .ttl = 60s, .wait = 120s})) ++granted;
    });
  }
  CHECK(eventually([&] { return subscribers(server, "a") == many; }));
  std::uint64_t before = 0;
  auto const asked = [&] {
    std::uint64_t attempts = 0;
    for (auto const& one : stores) attempts += one->counters().attempts;
    return attempts;
  };
  before = asked();
  held.reset();
  for (auto& one : waiters) one.join();
  CHECK(granted == many);
  MESSAGE("requests per grant: " << static_cast<double>(asked() - before) / many);
  CHECK(asked() - before < 8 * many);  // each of them for each grant would be 50 on average
}

}  // namespace fenceguard
