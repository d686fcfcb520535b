// Leases in a real cluster: while slots move, when a primary is replaced, and for users with few
// rights.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/redis/lease_store.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "redis/backend_fixture.hpp"
#include "redis/cluster_topology.hpp"
#include "redis/key_space.hpp"
#include "servers/redis_cluster.hpp"
#include "servers/wait.hpp"

namespace fenceguard::redis_tests {
namespace {

using redis::slot_of;
using redis::token_mode;
using test_servers::eventually;
using test_servers::redis_cluster;
using test_servers::redis_server;

constexpr auto primaries = redis_cluster::primaries;

std::unique_ptr<backend> over(std::string const& url, token_source& tokens, unsigned partitions,
                              bool number_each_grant = false) {
  return std::make_unique<backend>(
      backend::settings{.servers = redis::make_topology(redis::parse_url(url), partitions, 1s),
                        .keys = redis::key_space{"fenceguard", partitions},
                        .number_each_grant = number_each_grant,
                        .block_size = 1'000},
      tokens);
}

lease_request request(std::string resource, std::chrono::milliseconds wait = 5s) {
  lease_request wanted;
  wanted.resource = std::move(resource);
  wanted.ttl = 30s;
  wanted.wait = wait;
  return wanted;
}

std::int64_t advance(backend& store, std::string const& resource, std::string const& holder) {
  return token_of(store.advance(resource, holder, std::nullopt, in(5s)));
}

// Two stores, one of which numbers each grant, and eight threads that take a few resources without
// waiting for them, and what they saw.
class traffic {
 public:
  // `one_at_a_time`: where a server's death may give one lease to two holders, grants are compared
  // in the order in which they were asked for.
  traffic(std::string const& url, unsigned partitions, bool one_at_a_time = false)
      : one_at_a_time_{one_at_a_time} {
    for (auto mode : {token_mode::automatic, token_mode::per_grant}) {
      stores_.push_back(std::make_unique<redis::lease_store>(
          redis::lease_store_options{.url = url,
                                     .partitions = partitions,
                                     .tokens = mode,
                                     .block_size = 100,
                                     .settings = {.command_timeout = 10s}},
          tokens_));
    }
    for (std::size_t i = 0; i < threads; ++i) {
      threads_.emplace_back([this, i] { work(*stores_[i % stores_.size()], i); });
    }
  }
  ~traffic() { stop(); }
  traffic(traffic const&) = delete;
  traffic& operator=(traffic const&) = delete;

  // Each of the resources is granted so many times more.
  bool goes_on(std::uint64_t more) {
    auto const before = counts();
    return eventually([&] {
      auto const now = counts();
      for (std::size_t i = 0; i < resources; ++i) {
        if (now[i] < before[i] + more) return false;
      }
      return true;
    });
  }
  void stop() {
    over_ = true;
    for (auto& one : threads_) {
      if (one.joinable()) one.join();
    }
  }
  // The first grant whose token was not higher than the one before it.
  std::string disorder() {
    std::lock_guard const held{mutex_};
    return disorder_;
  }
  // The first acquisition that came to nothing without being busy.
  std::string failure() {
    std::lock_guard const held{mutex_};
    return failure_;
  }
  std::uint64_t grants() {
    auto const all = counts();
    std::uint64_t sum = 0;
    for (auto one : all) sum += one;
    return sum;
  }

 private:
  static constexpr std::size_t resources = 6;
  static constexpr std::size_t threads = 8;
  struct seen {
    std::int64_t latest = 0;
    std::uint64_t grants = 0;
  };

  std::vector<std::uint64_t> counts() {
    std::lock_guard const held{mutex_};
    std::vector<std::uint64_t> all;
    for (auto const& one : seen_) all.push_back(one.grants);
    return all;
  }

  void work(redis::lease_store& leases, std::size_t first) {
    for (std::size_t n = first; !over_; ++n) {
      try {
        take(leases, n % resources, n % 5 == 0);
      } catch (error const& failed) {
        std::lock_guard const held{mutex_};
        if (failure_.empty()) failure_ = failed.what();
      }
    }
  }

  void take(redis::lease_store& leases, std::size_t which, bool advance_too) {
    std::unique_lock turn{turn_, std::defer_lock};
    if (one_at_a_time_) turn.lock();
    auto given = leases.acquire(request("account/" + std::to_string(which), 0ms));
    if (!given) {
      std::this_thread::yield();
      return;
    }
    note(which, given->token());
    if (advance_too) note(which, given->advance());
    static_cast<void>(given->release());
  }

  void note(std::size_t which, fencing_token token) {
    std::lock_guard const held{mutex_};
    auto& one = seen_[which];
    if (token.value() <= one.latest && disorder_.empty()) {
      disorder_ = "account/" + std::to_string(which) + ": " + std::to_string(token.value()) +
                  " after " + std::to_string(one.latest);
    }
    one.latest = token.value();
    ++one.grants;
  }

  bool const one_at_a_time_;
  testing::token_source tokens_;
  std::vector<std::unique_ptr<redis::lease_store>> stores_;
  std::atomic<bool> over_{false};
  std::mutex turn_;
  std::mutex mutex_;
  std::vector<seen> seen_{resources};
  std::string disorder_;
  std::string failure_;
  std::vector<std::thread> threads_;
};

}  // namespace

TEST_CASE("cluster: CROSSSLOT: all keys of a script lie in one slot, whatever the resource") {
  redis_cluster cluster;
  constexpr unsigned partitions = 64;
  redis::key_space const keys{"fenceguard", partitions};
  // That two partitions' would be refused:
  auto const crossed = cluster.nodes()[0].command(
      {"EVAL", "return redis.call('GET', KEYS[1])", "2", keys.tokens(0), keys.tokens(1)});
  REQUIRE(crossed.is_error());
  REQUIRE(crossed.text.find("CROSSSLOT") != std::string::npos);

  bool numbered = false;
  SUBCASE("tokens from blocks") {}
  SUBCASE("a token for each grant") { numbered = true; }
  counted_tokens tokens;
  auto const store = over(cluster.url(), tokens, partitions, numbered);
  std::set<unsigned> used;
  for (int i = 0; i < 200; ++i) {
    auto const name = "order/{" + std::to_string(i) + "}/x";
    INFO(name);
    auto const holder = new_holder();
    auto const token = token_of(acquire(*store, name, holder));
    CHECK(advance(*store, name, holder) > token);
    CHECK(renew(*store, name, holder).answer == backend::renew_answer::renewed);
    CHECK(store->inspect(name, in(5s))->holder == holder);
    CHECK(store->release(name, holder, in(5s)) == release_outcome::released);
    used.insert(keys.partition_of(name));
  }
  CHECK(used.size() > 50);
  CHECK(cluster.errors("CROSSSLOT") == 1);  // the one above
}

TEST_CASE("cluster: tokens rise over every stage of a move, whoever numbers the grants") {
  redis_cluster cluster;
  counted_tokens tokens;
  auto const slot = slot_of("0");
  auto const from = cluster.owner_of(slot);
  auto const to = (from + 1) % primaries;
  auto const blocks = over(cluster.url(), tokens, 1);
  std::int64_t latest = 0;
  auto const rises = [&](std::string const& stage) {
    INFO(stage);
    auto const token = pass(*blocks, "account/1");
    CHECK(token > latest);
    latest = token;
  };
  rises("at rest");
  auto const block = latest;
  cluster.begin_move(slot, from, to);

  SUBCASE("the block is on the old side while a grant is numbered, and the move is cancelled") {
    rises("half-moved");
    CHECK(latest > block + 1);  // not from the block
    cluster.cancel_move(slot, from, to);
    rises("cancelled");
  }
  SUBCASE("the block has been moved when a grant is numbered, and comes back unused") {
    cluster.move_keys(slot, from, to);
    rises("half-moved");
    CHECK(latest > block + 1);
    cluster.end_move(slot, to);
    cluster.move_slot(slot, to, from);
    rises("moved to and fro");
  }
  SUBCASE("the block is moved and stays") {
    cluster.move_keys(slot, from, to);
    cluster.end_move(slot, to);
    rises("moved");
    cluster.move_slot(slot, to, from);
    rises("moved to and fro");
  }
  SUBCASE("a fresh token, the lease on one side and the block on the other") {
    cluster.cancel_move(slot, from, to);
    auto const holder = new_holder();
    token_of(acquire(*blocks, "account/1", holder));
    cluster.begin_move(slot, from, to);
    auto key = redis::key_space{"fenceguard"}.lease("account/1");
    SUBCASE("the lease is moved first") {}
    SUBCASE("the block is moved first") { key = redis::key_space{"fenceguard"}.tokens(0); }
    cluster.move_key(key, from, to);
    latest = advance(*blocks, "account/1", holder);
    CHECK(latest > block + 2);
    CHECK(blocks->release("account/1", holder, in(5s)) == release_outcome::released);
    cluster.cancel_move(slot, from, to);
    rises("cancelled");
  }
  CHECK(cluster.errors("CROSSSLOT") == 0);
}

TEST_CASE("cluster: leases are seen, renewed and released wherever a move has them") {
  redis_cluster cluster;
  counted_tokens tokens;
  constexpr unsigned partitions = 4;
  auto const store = over(cluster.url(), tokens, partitions);
  auto const other = over(cluster.url(), tokens, partitions);
  std::vector<std::string> names;
  std::vector<std::string> holders;
  for (int i = 0; i < 40; ++i) {
    names.push_back("account/" + std::to_string(i));
    holders.push_back(new_holder());
    token_of(acquire(*store, names.back(), holders.back()));
  }
  auto const all_held = [&](std::string const& stage) {
    INFO(stage);
    std::vector<backend::renew_item> batch;
    for (std::size_t i = 0; i < names.size(); ++i) {
      batch.push_back({.resource = names[i], .holder = holders[i], .ttl = 30s});
    }
    store->renew(batch, in(5s));
    for (std::size_t i = 0; i < names.size(); ++i) {
      INFO(names[i]);
      CHECK(batch[i].answer == backend::renew_answer::renewed);
      CHECK(other->inspect(names[i], in(5s))->holder == holders[i]);
      auto const answer = try_acquire(*other, names[i], new_holder());
      CHECK(std::holds_alternative<backend::busy>(answer));
    }
  };
  std::vector<std::size_t> from(partitions);
  auto const each_slot = [&](auto const& step) {
    for (unsigned partition = 0; partition < partitions; ++partition) {
      auto const slot = slot_of(std::to_string(partition));
      if (from[partition] == 0) from[partition] = cluster.owner_of(slot) + 1;
      auto const source = from[partition] - 1;
      step(slot, source, (source + 1) % primaries);
    }
  };
  all_held("at rest");
  each_slot([&](auto... move) { cluster.begin_move(move...); });
  all_held("begun");
  redis::key_space const keys{"fenceguard", partitions};
  for (std::size_t i = 0; i < names.size(); i += 2) {
    auto const source = from[keys.partition_of(names[i])] - 1;
    cluster.move_key(keys.lease(names[i]), source, (source + 1) % primaries);
  }
  all_held("half-moved");
  each_slot([&](auto... move) { cluster.move_keys(move...); });
  all_held("all keys moved");
  each_slot([&](int slot, std::size_t, std::size_t to) { cluster.end_move(slot, to); });
  all_held("moved");
  for (std::size_t i = 0; i < names.size(); ++i) {
    CHECK(store->release(names[i], holders[i], in(5s)) == release_outcome::released);
    CHECK(store->release(names[i], holders[i], in(5s)) == release_outcome::already_lost);
  }
}

TEST_CASE("cluster: tokens keep rising and acquisitions go on while slots move") {
  redis_cluster cluster;
  constexpr unsigned partitions = 2;
  traffic work{cluster.url(), partitions};
  CHECK(work.goes_on(5));
  for (int round = 0; round < 6; ++round) {
    for (unsigned partition = 0; partition < partitions; ++partition) {
      auto const slot = slot_of(std::to_string(partition));
      auto const from = cluster.owner_of(slot);
      auto const to = (from + 1) % primaries;
      cluster.begin_move(slot, from, to);
      CHECK(work.goes_on(3));
      cluster.move_keys(slot, from, to);
      CHECK(work.goes_on(3));
      cluster.end_move(slot, to);
      CHECK(work.goes_on(3));
    }
  }
  work.stop();
  CHECK(work.disorder() == "");
  CHECK(work.failure() == "");
  CHECK(cluster.errors("TRYAGAIN") > 0);
  MESSAGE(work.grants() << " grants");
}

TEST_CASE("cluster: tokens keep rising and acquisitions go on while slots move without a pause") {
  redis_cluster cluster;
  constexpr unsigned partitions = 2;
  traffic work{cluster.url(), partitions};
  int moves = 0;
  auto const until = in(8s);
  while (boottime::now() < until) {
    for (unsigned partition = 0; partition < partitions; ++partition) {
      auto const slot = slot_of(std::to_string(partition));
      auto const from = cluster.owner_of(slot);
      cluster.move_slot(slot, from, (from + 1) % primaries);
      ++moves;
    }
  }
  CHECK(work.goes_on(5));
  work.stop();
  CHECK(work.disorder() == "");
  CHECK(work.failure() == "");
  MESSAGE(work.grants() << " grants, " << moves << " moves");
}

TEST_CASE("cluster: tokens keep rising over failovers of a primary") {
  redis_cluster cluster{{.replicas = true}};
  auto const slot = slot_of("0");
  auto const first = cluster.owner_of(slot);
  auto const replica = first + primaries;
  auto& nodes = cluster.nodes();
  traffic work{cluster.url(), 2, true};
  CHECK(work.goes_on(5));

  // On request.
  cluster.fail_over_to(replica);
  CHECK(work.goes_on(5));

  // The new primary dies, and the old one takes over again without asking anybody.
  REQUIRE(
      eventually([&] { return nodes[first].info("replication", "master_link_status") == "up"; }));
  nodes[replica].stop(redis_server::stop_mode::kill);
  REQUIRE(nodes[first].command({"CLUSTER", "FAILOVER", "TAKEOVER"}).text == "OK");
  CHECK(work.goes_on(5));

  // Another one dies, and the others agree on its replica.
  auto const second = (first + 1) % primaries;
  nodes[second].stop(redis_server::stop_mode::kill);
  REQUIRE(eventually(
      [&] { return nodes[second + primaries].info("replication", "role") == "master"; }));
  CHECK(work.goes_on(5));
  work.stop();
  CHECK(work.disorder() == "");
}

TEST_CASE("cluster: NOSCRIPT after failover") {
  redis_cluster cluster{{.replicas = true}};
  counted_tokens tokens;
  auto const store = over(cluster.url(), tokens, 1);
  auto const slot = slot_of("0");
  auto const replica = cluster.owner_of(slot) + primaries;
  auto const first = pass(*store, "account/1");
  REQUIRE(!cluster.nodes()[replica].command({"SCRIPT", "FLUSH"}).is_error());
  cluster.fail_over_to(replica);
  std::int64_t second = 0;
  REQUIRE(eventually([&] {
    auto const holder = new_holder();
    auto const answer = acquire(*store, "account/1", holder);
    if (!std::holds_alternative<backend::granted>(answer)) return false;
    second = token_of(answer);
    return store->release("account/1", holder, in(5s)) == release_outcome::released;
  }));
  CHECK(second > first);
  CHECK(cluster.errors("NOSCRIPT") > 0);
}

TEST_CASE("cluster: a grant waits for the replicas of the primary that has the lease") {
  redis_cluster cluster{{.replicas = true}};
  auto const slot = slot_of("0");
  auto const from = cluster.owner_of(slot);
  auto const to = (from + 1) % primaries;
  testing::token_source tokens;
  redis::lease_store leases{{.url = cluster.url(),
                             .partitions = 1,
                             .replication = {.replicas_to_wait = 1, .timeout = 400ms}},
                            tokens};
  auto const granted = [&] {
    auto const held = leases.acquire(request("account/1"));
    return held.has_value();
  };
  CHECK(eventually(granted));
  cluster.begin_move(slot, from, to);
  CHECK(granted());
  auto& replica = cluster.nodes()[to + primaries];
  replica.pause();
  CHECK_THROWS_WITH_AS(static_cast<void>(leases.acquire(request("account/1", 0ms))),
                       doctest::Contains("0 of 1 replicas acknowledged"), lease_store_unavailable);
  replica.resume();
  CHECK(eventually([&] {
    try {
      return granted();
    } catch (lease_store_unavailable const&) {
      return false;
    }
  }));
}

TEST_CASE("cluster: a primary that hangs holds up its own partitions only") {
  redis_cluster cluster;
  counted_tokens tokens;
  constexpr unsigned partitions = 64;
  redis::key_space const keys{"fenceguard", partitions};
  auto const store = over(cluster.url(), tokens, partitions);
  auto const hangs = cluster.owner_of(slot_of("0"));
  std::vector<std::string> here;
  std::vector<std::string> elsewhere;
  for (int i = 0; i < 60; ++i) {
    auto const name = "account/" + std::to_string(i);
    pass(*store, name);
    auto const owner = cluster.owner_of(slot_of(std::to_string(keys.partition_of(name))));
    (owner == hangs ? here : elsewhere).push_back(name);
  }
  REQUIRE(here.size() > 5);
  REQUIRE(elsewhere.size() > 5);
  cluster.nodes()[hangs].pause();
  for (int round = 0; round < 3; ++round) {
    auto const answer = try_acquire(*store, here[0], new_holder(), 30s, 300ms);
    CHECK_FALSE(std::holds_alternative<backend::granted>(answer));
    for (auto const& name : elsewhere) {
      auto const holder = new_holder();
      auto const before = boottime::now();
      token_of(try_acquire(*store, name, holder, 30s, 5s));
      CHECK(store->release(name, holder, in(5s)) == release_outcome::released);
      CHECK(boottime::now() - before < 2s);
    }
  }
  cluster.nodes()[hangs].resume();
  CHECK(eventually([&] {
    return std::holds_alternative<backend::granted>(acquire(*store, here[1], new_holder()));
  }));
}

TEST_CASE("cluster: stores that were told different numbers of partitions") {
  redis_cluster cluster;
  counted_tokens tokens;
  bool numbered = false;
  SUBCASE("tokens from blocks") {}
  SUBCASE("a token for each grant") { numbered = true; }
  auto const first = over(cluster.url(), tokens, 8, numbered);
  pass(*first, "account/1");
  for (unsigned other : {1U, 16U, 64U}) {
    auto const second = over(cluster.url(), tokens, other, numbered);
    for (int i = 0; i < 5; ++i) {
      auto const name = "account/" + std::to_string(i);
      auto const text = "over 8 partitions, and this store was told " + std::to_string(other);
      CHECK_THROWS_WITH_AS(static_cast<void>(try_acquire(*second, name, new_holder())),
                           doctest::Contains(text.c_str()), invalid_request);
    }
  }
  auto const third = over(cluster.url(), tokens, 8, !numbered);
  pass(*third, "account/2");
  pass(*first, "account/3");
}

TEST_CASE("cluster: the number of partitions: 64 where nothing is said, 1 to 1024") {
  redis_cluster cluster;
  testing::token_source tokens;
  redis::lease_store leases{{.url = cluster.url()}, tokens};
  REQUIRE(leases.acquire(request("account/1")).has_value());
  CHECK(cluster.command({"GET", "fenceguard:{0}:partitions"}).text == "64");
  CHECK_THROWS_AS(redis::lease_store({.url = cluster.url(), .partitions = 1'025}, tokens),
                  invalid_request);
  CHECK_THROWS_AS(redis::lease_store({.url = cluster.url() + "/1"}, tokens), invalid_request);
}

TEST_CASE(
    "cluster: a move that is cancelled half-way hides what had moved, and tokens go on rising") {
  redis_cluster cluster;
  counted_tokens tokens;
  auto const store = over(cluster.url(), tokens, 1);
  auto const holder = new_holder();
  auto const first = token_of(acquire(*store, "account/1", holder));
  auto const slot = static_cast<int>(slot_of("0"));
  auto const from = cluster.owner_of(slot);
  auto const to = (from + 1) % primaries;
  auto const set_stable = [&](std::size_t node) {
    REQUIRE_FALSE(cluster.nodes()[node]
                      .command({"CLUSTER", "SETSLOT", std::to_string(slot), "STABLE"})
                      .is_error());
  };
  cluster.begin_move(slot, from, to);
  SUBCASE("the lease alone had moved") {
    cluster.move_key("fenceguard:{0}:lease:account/1", from, to);
  }
  SUBCASE("the tokens alone had moved") { cluster.move_key("fenceguard:{0}:tokens", from, to); }
  SUBCASE("all had moved") { cluster.move_keys(slot, from, to); }
  set_stable(from);
  set_stable(to);
  auto const held = cluster.nodes()[from].command({"EXISTS", "fenceguard:{0}:lease:account/1"});
  CHECK((renew(*store, "account/1", holder).answer == backend::renew_answer::renewed) ==
        (held.integer == 1));
  auto const second = token_of(acquire(*store, "account/2", new_holder()));
  CHECK(second > first);
  if (held.integer == 0) CHECK(token_of(acquire(*store, "account/1", new_holder())) > second);
  // The keys that were hidden are in the way of the next move, which says so.
  cluster.begin_move(slot, from, to);
  CHECK_THROWS_WITH_AS(cluster.move_keys(slot, from, to), doctest::Contains("BUSYKEY"),
                       std::runtime_error);
}

TEST_CASE("cluster: users with few rights") {
  redis_cluster cluster;
  std::string rights =
      "+eval +evalsha +get +set +del +hdel +hmget +hset +hincrby +pttl +pexpire +time +info "
      "+cluster|slots +asking";
  bool blocks = true;
  SUBCASE("the least") {}
  SUBCASE("no INFO: a token for each grant") {
    rights.replace(rights.find("+info"), 5, "");
    blocks = false;
  }
  SUBCASE("no CLUSTER SLOTS: MOVED alone") {
    rights.replace(rights.find("+cluster|slots"), 14, "");
  }
  for (auto const& node : cluster.nodes()) {
    std::vector<std::string> words{"ACL", "SETUSER", "worker", "on", ">s3cr3t", "~fenceguard:*"};
    std::istringstream text{rights};
    for (std::string word; text >> word;) words.push_back(word);
    REQUIRE_FALSE(node.command(words).is_error());
  }
  auto url = cluster.url();
  url.insert(url.find("://") + 3, "worker:s3cr3t@");
  counted_tokens tokens;
  auto const store = over(url, tokens, 8);
  std::map<std::string, std::int64_t> latest;
  auto const rise = [&] {
    for (int i = 0; i < 30; ++i) {
      auto const name = "account/" + std::to_string(i);
      auto const holder = new_holder();
      auto const token = token_of(acquire(*store, name, holder));
      CHECK(token > latest[name]);
      latest[name] = advance(*store, name, holder);
      CHECK(latest[name] > token);
      CHECK(renew(*store, name, holder).answer == backend::renew_answer::renewed);
      CHECK(store->release(name, holder, in(5s)) == release_outcome::released);
    }
  };
  rise();
  CHECK((tokens.calls() <= 8) == blocks);
  for (unsigned partition = 0; partition < 8; ++partition) {
    auto const slot = slot_of(std::to_string(partition));
    auto const from = cluster.owner_of(slot);
    auto const to = (from + 1) % primaries;
    cluster.begin_move(slot, from, to);
    if (partition % 2 == 0) continue;
    cluster.move_keys(slot, from, to);
    cluster.end_move(slot, to);
  }
  rise();
}

}  // namespace fenceguard::redis_tests
