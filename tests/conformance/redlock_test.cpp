// Five servers, of which three make a majority. Two killed and one stopped at the same time leave
// no majority, so that nothing can be granted; what has to hold then is a case of its own below,
// and the suite is run with each kind of minority: none, two killed, one killed and one stopped.

#include <doctest/doctest.h>

#include <chrono>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/redis/redlock_store.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conformance/run_conformance.hpp"
#include "servers/redis_server.hpp"
#include "servers/wait.hpp"

using namespace std::chrono_literals;
namespace fg = fenceguard;
using fg::test_servers::eventually;
using fg::test_servers::redis_server;

namespace {

class five_servers {
 public:
  five_servers() : all_(5) {}

  redis_server& operator[](std::size_t i) { return all_[i]; }
  fg::redis::redlock_store_options options(fg::lease_store_settings const& settings) const {
    fg::redis::redlock_store_options how{.settings = settings};
    for (auto const& one : all_) how.urls.push_back(one.url());
    return how;
  }
  // Those that take part in a test; the others are away throughout.
  void kill(std::size_t i) { all_[i].stop(redis_server::stop_mode::kill); }
  void stop(std::size_t i) {
    all_[i].pause();
    stopped_ = i;
  }
  std::vector<redis_server*> awake() {
    std::vector<redis_server*> some;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (i != stopped_ && all_[i].running()) some.push_back(&all_[i]);
    }
    return some;
  }
  // How many of the servers that answer have the lease's key.
  int copies(std::string const& resource) {
    int count = 0;
    for (auto* one : awake()) {
      if (one->command({"EXISTS", "fenceguard:{0}:lease:" + resource}).integer == 1) ++count;
    }
    return count;
  }

 private:
  std::vector<redis_server> all_;
  std::optional<std::size_t> stopped_;
};

void run_over(five_servers& servers) {
  fg::testing::token_source tokens;
  auto const awake = servers.awake();
  fg::tests::run_conformance(
      {.make_store =
           [&](fg::lease_store_settings const& settings) {
             return std::make_unique<fg::redis::redlock_store>(servers.options(settings), tokens);
           },
       .expire =
           [&](std::string const& resource) {
             long long deleted = 0;
             for (auto* one : awake) {
               deleted += one->command({"DEL", "fenceguard:{0}:lease:" + resource}).integer;
             }
             REQUIRE(deleted >= 3);
           },
       .restart =
           [&] {
             for (auto* one : awake) one->restart();
           },
       .pause =
           [&] {
             for (auto* one : awake) one->pause();
           },
       .resume =
           [&] {
             for (auto* one : awake) one->resume();
           },
       .short_ttl = 400ms},
      29);
}

// Milliseconds that a call took.
std::chrono::milliseconds time_of(std::function<void()> const& call) {
  auto const before = fg::boottime::now();
  call();
  return std::chrono::duration_cast<std::chrono::milliseconds>(fg::boottime::now() - before);
}

}  // namespace

TEST_CASE("conformance: Redlock, five servers") {
  five_servers servers;
  run_over(servers);
}

TEST_CASE("conformance: Redlock, two of five servers killed") {
  five_servers servers;
  servers.kill(1);
  servers.kill(3);
  run_over(servers);
}

TEST_CASE("conformance: Redlock, one of five servers killed and one stopped") {
  five_servers servers;
  servers.kill(4);
  servers.stop(0);
  run_over(servers);
}

TEST_CASE("Redlock with two of five servers killed and one stopped: nothing is granted") {
  five_servers servers;
  fg::testing::token_source tokens;
  fg::redis::redlock_store store{servers.options({.command_timeout = 300ms}), tokens};
  REQUIRE(store.acquire({.resource = "before"}).has_value());
  servers.kill(0);
  servers.kill(1);
  servers.stop(2);
  for (int i = 0; i < 5; ++i) {
    auto const name = "account/" + std::to_string(i);
    auto const took = time_of([&] {
      CHECK_THROWS_AS(static_cast<void>(store.acquire({.resource = name, .ttl = 1h})),
                      fg::lease_store_unavailable);
    });
    CHECK(took < 2s);
    CHECK(eventually([&] { return servers.copies(name) == 0; }));
  }
  servers[2].resume();
  CHECK(eventually([&] {
    try {
      return store.acquire({.resource = "account/0"}).has_value();
    } catch (fg::lease_store_unavailable const&) {
      return false;
    }
  }));
  // The stopped one finds what was asked of it while it was stopped, and what undoes it.
  for (int i = 1; i < 5; ++i) {
    auto const key = "fenceguard:{0}:lease:account/" + std::to_string(i);
    CHECK(eventually([&] { return servers[2].command({"EXISTS", key}).integer == 0; }));
  }
}

TEST_CASE("Redlock: two of five servers killed cost no lease, one more stopped costs all in time") {
  five_servers servers;
  fg::testing::token_source tokens;
  fg::redis::redlock_store store{servers.options({.command_timeout = 300ms}), tokens};
  auto const held = store.acquire({.resource = "account/1", .ttl = 2s});
  REQUIRE(held.has_value());
  servers.kill(0);
  servers.kill(1);
  auto const renewals = store.counters().renewed;
  REQUIRE(eventually([&] { return store.counters().renewed >= renewals + 5; }));
  CHECK(!held->lost().stop_requested());
  CHECK(held->remaining() > 0ms);
  CHECK(servers.copies("account/1") == 3);

  servers.stop(2);
  auto const stopped_at = fg::boottime::now();
  REQUIRE(eventually([&] { return held->lost().stop_requested(); }));
  // The last renewal began before the server was stopped, so its ttl ends within two seconds.
  CHECK(fg::boottime::now() - stopped_at < 2s);
  servers[2].resume();
}
