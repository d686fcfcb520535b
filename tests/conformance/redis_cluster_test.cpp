// Three primaries: with the slots at rest, with all of them half-moved, and with all of them moving
// to and fro during the whole suite.

#include "servers/redis_cluster.hpp"

#include <doctest/doctest.h>

#include <condition_variable>
#include <exception>
#include <fenceguard/redis/lease_store.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "conformance/run_conformance.hpp"
#include "redis/cluster_topology.hpp"
#include "redis/key_space.hpp"

using namespace std::chrono_literals;
namespace fg = fenceguard;
using fg::redis::token_mode;
using fg::test_servers::redis_cluster;

namespace {

constexpr unsigned partitions = 4;

int slot_of_partition(unsigned partition) { return fg::redis::slot_of(std::to_string(partition)); }

// Nobody may touch the cluster's layout while its nodes are stopped.
class layout {
 public:
  std::unique_lock<std::mutex> hold() {
    std::unique_lock held{mutex_};
    settled_.wait(held, [&] { return !stopped_; });
    return held;
  }
  void set_stopped(bool stopped) {
    std::lock_guard const held{mutex_};
    stopped_ = stopped;
    settled_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable settled_;
  bool stopped_ = false;
};

struct redirections {
  long long moved = 0;
  long long ask = 0;
  long long try_again = 0;

  void count(redis_cluster& cluster) {
    moved += cluster.errors("MOVED");
    ask += cluster.errors("ASK");
    try_again += cluster.errors("TRYAGAIN");
  }
};

redirections run_over(redis_cluster& cluster, layout& guard, token_mode mode) {
  fg::testing::token_source tokens;
  fg::redis::key_space const keys{"fenceguard", partitions};
  redirections seen;
  fg::tests::run_conformance(
      {.make_store =
           [&](fg::lease_store_settings const& settings) {
             return std::make_unique<fg::redis::lease_store>(
                 fg::redis::lease_store_options{.url = cluster.url(),
                                                .partitions = partitions,
                                                .tokens = mode,
                                                .settings = settings},
                 tokens);
           },
       .expire =
           [&](std::string const& resource) {
             auto const held = guard.hold();
             REQUIRE(cluster.command({"DEL", keys.lease(resource)}).integer == 1);
           },
       .restart =
           [&] {
             auto const held = guard.hold();
             seen.count(cluster);  // a server starts to count anew
             for (auto& node : cluster.nodes()) node.restart();
             cluster.wait_until_whole();
           },
       .pause =
           [&] {
             guard.set_stopped(true);
             for (auto& node : cluster.nodes()) node.pause();
           },
       .resume =
           [&] {
             for (auto& node : cluster.nodes()) node.resume();
             cluster.wait_until_whole();
             guard.set_stopped(false);
           }},
      29);
  seen.count(cluster);
  return seen;
}

// Moves every partition's slot on and on; the nodes may be stopped in the middle of a move. Each
// step lasts a little: a node writes its layout to disk before it goes on, and moves without a
// pause would be a test of the disk.
class mover {
 public:
  mover(redis_cluster& cluster, layout& guard) : cluster_{cluster}, guard_{guard} {}
  ~mover() { stop(); }
  mover(mover const&) = delete;
  mover& operator=(mover const&) = delete;

  void stop() {
    {
      std::lock_guard const held{mutex_};
      over_ = true;
      stopped_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }
  int moves() const { return moves_; }
  std::string const& failure() const { return failure_; }

 private:
  void run() {
    try {
      for (unsigned n = 0; !last(); ++n) move(slot_of_partition(n % partitions));
    } catch (std::exception const& failed) {
      failure_ = failed.what();
    }
  }
  void move(int slot) {
    std::size_t from = 0;
    std::size_t to = 0;
    step([&] {
      from = cluster_.owner_of(slot);
      to = (from + 1) % redis_cluster::primaries;
      cluster_.begin_move(slot, from, to);
    });
    step([&] { cluster_.move_keys(slot, from, to); });
    step([&] { cluster_.end_move(slot, to); });
    ++moves_;
  }
  template <class Step>
  void step(Step const& what) {
    {
      auto const held = guard_.hold();
      what();
    }
    last();
  }
  bool last() {
    std::unique_lock held{mutex_};
    return stopped_.wait_for(held, 3ms, [&] { return over_; });
  }

  redis_cluster& cluster_;
  layout& guard_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool over_ = false;
  int moves_ = 0;
  std::string failure_;
  std::thread thread_{[this] { run(); }};
};

}  // namespace

TEST_CASE("conformance: Cluster, slots at rest, tokens from blocks") {
  redis_cluster cluster;
  layout guard;
  auto const seen = run_over(cluster, guard, token_mode::automatic);
  CHECK(seen.ask == 0);
  CHECK(seen.try_again == 0);
}

TEST_CASE("conformance: Cluster, slots at rest, a token reserved for each grant") {
  redis_cluster cluster;
  layout guard;
  run_over(cluster, guard, token_mode::per_grant);
}

TEST_CASE("conformance: Cluster, every slot half-moved") {
  redis_cluster cluster;
  layout guard;
  for (unsigned partition = 0; partition < partitions; ++partition) {
    auto const slot = slot_of_partition(partition);
    auto const from = cluster.owner_of(slot);
    cluster.begin_move(slot, from, (from + 1) % redis_cluster::primaries);
  }
  auto const seen = run_over(cluster, guard, token_mode::automatic);
  CHECK(seen.ask > 100);
  CHECK(seen.try_again > 100);
}

TEST_CASE("conformance: Cluster, every slot moving to and fro") {
  redis_cluster cluster;
  layout guard;
  mover moving{cluster, guard};
  auto const seen = run_over(cluster, guard, token_mode::automatic);
  moving.stop();
  CHECK(moving.failure() == "");
  MESSAGE(moving.moves() << " moves, " << seen.moved << " MOVED, " << seen.ask << " ASK, "
                         << seen.try_again << " TRYAGAIN");
  CHECK(moving.moves() > 30);
  CHECK(seen.moved > 10);
  CHECK(seen.ask > 10);
  CHECK(seen.try_again > 10);
}
