#include "redis/cluster_topology.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <fenceguard/core/errors.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "redis/byte_server.hpp"
#include "redis/reply.hpp"
#include "redis/route.hpp"
#include "servers/free_port.hpp"
#include "servers/redis_cluster.hpp"

namespace fenceguard::redis_tests {
namespace {

using namespace std::chrono_literals;
using redis::address;
using redis::failure;
using redis::fate;
using redis::slot_of;
using step = redis::topology::next_step::kind;

constexpr unsigned partitions = 4;  // slots 13907, 9842, 5649, 1584

time_point in(std::chrono::milliseconds time) { return boottime::now() + time; }

address at(int port) { return {"127.0.0.1", static_cast<std::uint16_t>(port), {}}; }

std::shared_ptr<redis::cluster_topology> over(std::vector<address> nodes) {
  redis::connection_options connecting;
  connecting.connect_timeout = 1s;
  connecting.silence_limit = 10s;
  return std::make_shared<redis::cluster_topology>(std::move(nodes), partitions, connecting);
}

redis::result replied(std::string const& wire) {
  redis::reply_parser parser;
  parser.feed(wire.data(), wire.size());
  redis::result one;
  one.outcome = fate::replied;
  REQUIRE(parser.parse(one.answer) == redis::reply_parser::state::complete);
  return one;
}

redis::result error(std::string const& text) { return replied('-' + text + "\r\n"); }

redis::result broken(failure why, fate outcome) {
  redis::result one;
  one.why = why;
  one.outcome = outcome;
  return one;
}

std::string bulk(std::string const& text) {
  return '$' + std::to_string(text.size()) + "\r\n" + text + "\r\n";
}

std::string number(int value) { return ':' + std::to_string(value) + "\r\n"; }

// One range of CLUSTER SLOTS, as Redis 6.2 gives it.
std::string range(int first, int last, std::string const& host, int port) {
  return "*3\r\n" + number(first) + number(last) + "*3\r\n" + host + number(port) + bulk("an id");
}

// A node that answers every question the same, and counts them.
class stubborn_node {
 public:
  explicit stubborn_node(std::string answer) : answer_{std::move(answer)} {}
  address where() const { return at(server_.port()); }
  int asked() const { return asked_; }

 private:
  std::string const answer_;
  std::atomic<int> asked_{0};
  byte_server server_{[this](int descriptor) {
    while (!byte_server::hear(descriptor).empty()) {
      ++asked_;
      byte_server::say(descriptor, answer_);
    }
  }};
};

// As it is when others have just learned what is older.
class behind_the_times final : public redis::topology {
 public:
  behind_the_times(address old_one, address new_one) : old_{old_one}, new_{new_one} {}
  location locate(unsigned, time_point) override { return {.found = true, .server = old_}; }
  redis::topology::next_step learn(unsigned, address const&,
                                   redis::result const& outcome) override {
    if (outcome.answer.error_code() != "MOVED") return {};
    changed();
    return {.what = step::follow, .server = new_};
  }
  redis::connection_options const& connecting() const noexcept override { return connecting_; }

 private:
  address const old_;
  address const new_;
  redis::connection_options connecting_;
};

// Partitions 3 and 2 lie at port 7001, 1 and 0 at port 7002.
std::string const two_halves = "*2\r\n" + range(0, 8191, bulk("127.0.0.1"), 7001) +
                               range(8192, 16383, bulk("127.0.0.1"), 7002);

}  // namespace

TEST_CASE("cluster: the slot of a hash tag is the server's") {
  CHECK(slot_of("123456789") == 0x31c3);  // the specification's example
  test_servers::redis_server node{{.arguments = {"--cluster-enabled", "yes", "--cluster-port",
                                                 std::to_string(test_servers::free_port())}}};
  for (std::string const tag : {"0", "1", "63", "1023", "user1000", "\xc3\xa9\xff"}) {
    INFO(tag);
    CHECK(slot_of(tag) == node.command({"CLUSTER", "KEYSLOT", "x:{" + tag + "}:y"}).integer);
  }
}

TEST_CASE("cluster: database 0 only") {
  redis::connection_options connecting;
  connecting.database = 1;
  CHECK_THROWS_AS(redis::cluster_topology({at(7001)}, 1, connecting), invalid_request);
}

TEST_CASE("cluster: a real one's slots are found from any of its nodes") {
  test_servers::redis_cluster cluster;
  for (auto const& node : cluster.nodes()) {
    auto const nodes = over({at(node.port())});
    for (unsigned partition = 0; partition < partitions; ++partition) {
      auto const owner = cluster.owner_of(slot_of(std::to_string(partition)));
      auto const here = nodes->locate(partition, in(5s));
      REQUIRE_MESSAGE(here.found, here.error);
      CHECK(here.server == at(cluster.nodes()[owner].port()));
    }
  }
}

TEST_CASE("cluster: what is learned from answers") {
  stubborn_node const node{two_halves};
  auto const nodes = over({node.where()});
  REQUIRE(nodes->locate(0, in(5s)).server == at(7002));
  REQUIRE(nodes->locate(3, in(5s)).server == at(7001));
  REQUIRE(node.asked() == 1);
  auto const version = nodes->version();

  SUBCASE("an ordinary answer: nothing") {
    CHECK(nodes->learn(0, at(7002), replied("*1\r\n+BUSY\r\n")).what == step::keep);
    CHECK(nodes->version() == version);
  }
  SUBCASE("MOVED: where the slot is, and that others may have gone from there") {
    auto const next = nodes->learn(0, at(7002), error("MOVED 13907 127.0.0.1:7003"));
    CHECK(next.what == step::follow);
    CHECK(next.server == at(7003));
    CHECK(nodes->version() > version);
    CHECK(nodes->locate(0, in(5s)).server == at(7003));
    CHECK(nodes->locate(3, in(5s)).server == at(7001));
    CHECK(node.asked() == 1);
    CHECK(nodes->locate(1, in(5s)).server == at(7002));  // asked again
    CHECK(node.asked() == 2);
    // The node's map says otherwise still; it may be the older one.
    CHECK(nodes->locate(0, in(5s)).server == at(7003));
    // Until that server fails.
    CHECK(nodes->learn(0, at(7003), broken(failure::unreachable, fate::not_sent)).what ==
          step::look_again);
    CHECK(nodes->locate(0, in(5s)).server == at(7002));
  }
  SUBCASE("MOVED without a host: the host that answered") {
    CHECK(nodes->learn(0, {"::1", 7002, {}}, error("MOVED 13907 :7003")).what == step::follow);
    CHECK(nodes->locate(0, in(5s)).server == address{"::1", 7003, {}});
  }
  SUBCASE("MOVED to an IPv6 address") {
    static_cast<void>(nodes->learn(0, at(7002), error("MOVED 13907 fe80::1:7003")));
    CHECK(nodes->locate(0, in(5s)).server == address{"fe80::1", 7003, {}});
  }
  SUBCASE("MOVED to nobody knows whom: the nodes are asked") {
    CHECK(nodes->learn(0, at(7002), error("MOVED 13907 ?:7003")).what == step::look_again);
    CHECK(nodes->version() > version);
    CHECK(nodes->locate(0, in(5s)).server == at(7002));
    CHECK(node.asked() == 2);
  }
  SUBCASE("ASK: where to go this once") {
    auto const next = nodes->learn(0, at(7002), error("ASK 13907 127.0.0.1:7003"));
    CHECK(next.what == step::ask_once);
    CHECK(next.server == at(7003));
    CHECK(nodes->learn(0, at(7002), error("ASK 13907 :7003")).server == at(7003));
    CHECK(nodes->version() == version);
  }
  SUBCASE("TRYAGAIN: nothing") {
    CHECK(nodes->learn(0, at(7002), error("TRYAGAIN Multiple keys request")).what == step::keep);
    CHECK(nodes->version() == version);
  }
  SUBCASE("what no primary says: that another is one") {
    std::string text;
    SUBCASE("READONLY") { text = "-READONLY You can't write against a read only replica.\r\n"; }
    SUBCASE("READONLY within a script, before Redis 7") {
      text = "-ERR Error running script (call to f_1): @user_script:9: -READONLY You can't\r\n";
    }
    SUBCASE("MASTERDOWN") { text = "-MASTERDOWN Link with MASTER is down\r\n"; }
    SUBCASE("LOADING") { text = "-LOADING Redis is loading the dataset in memory\r\n"; }
    SUBCASE("a script's word") { text = "*1\r\n+NOT_PRIMARY\r\n"; }
    CHECK(nodes->learn(0, at(7002), replied(text)).what == step::look_again);
    CHECK(nodes->version() > version);
    CHECK(nodes->locate(3, in(5s)).found);
    CHECK(node.asked() == 1);
    CHECK(nodes->locate(0, in(5s)).found);
    CHECK(node.asked() == 2);
  }
  SUBCASE("CLUSTERDOWN: to look again next time") {
    CHECK(nodes->learn(0, at(7002), error("CLUSTERDOWN The cluster is down")).what == step::keep);
    CHECK(nodes->version() > version);
  }
  SUBCASE("a broken connection: what was sent is not sent again") {
    for (auto why : {failure::disconnected, failure::deadline}) {
      auto const before = nodes->version();
      CHECK(nodes->learn(0, at(7002), broken(why, fate::unknown)).what == step::keep);
      CHECK(nodes->version() > before);
      REQUIRE(nodes->locate(0, in(5s)).found);
    }
    CHECK(nodes->learn(0, at(7002), broken(failure::unreachable, fate::not_sent)).what ==
          step::look_again);
  }
  SUBCASE("what is over, or from a server that serves nothing any more: nothing") {
    CHECK(nodes->learn(0, at(7002), broken(failure::closed, fate::unknown)).what == step::keep);
    static_cast<void>(nodes->learn(0, at(7009), broken(failure::unreachable, fate::not_sent)));
    CHECK(nodes->version() == version);
  }
}

TEST_CASE("cluster: a request follows its own MOVED, whatever others have learned meanwhile") {
  stubborn_node const before{"-MOVED 13907 127.0.0.1:7003\r\n"};
  stubborn_node const now{"+OK\r\n"};
  redis::route all{std::make_shared<behind_the_times>(before.where(), now.where()), 1};
  auto const outcome = all.call(redis::command{"GET", "x"}, 0, in(5s));
  CHECK(outcome.answer.text() == "OK");
  CHECK(before.asked() == 1);
}

TEST_CASE("cluster: nodes without a host, or with a name that was never set") {
  std::string const with_ip = "*3\r\n" + number(8192) + number(16383) + "*4\r\n" + bulk("?") +
                              number(7002) + bulk("an id") + "*2\r\n" + bulk("ip") +
                              bulk("127.0.0.2");
  stubborn_node const node{"*2\r\n" + range(0, 8191, "$-1\r\n", 7001) + with_ip};
  auto const nodes = over({node.where()});
  CHECK(nodes->locate(3, in(5s)).server == at(7001));
  CHECK(nodes->locate(0, in(5s)).server == address{"127.0.0.2", 7002, {}});
}

TEST_CASE("cluster: a slot that nobody serves, and answers that are no map") {
  std::string answer;
  SUBCASE("half of the slots") { answer = "*1\r\n" + range(0, 8191, bulk("127.0.0.1"), 7001); }
  SUBCASE("none") { answer = "*0\r\n"; }
  SUBCASE("no cluster") { answer = "-ERR This instance has cluster support disabled\r\n"; }
  SUBCASE("nonsense") { answer = "*2\r\n:1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n:1\r\n:-1\r\n"; }
  stubborn_node const node{answer};
  auto const nodes = over({node.where()});
  auto const here = nodes->locate(0, in(5s));
  CHECK_FALSE(here.found);
  CHECK(here.error.find("slot 13907") != std::string::npos);
  CHECK_FALSE(nodes->locate(0, in(5s)).found);
  CHECK(node.asked() == 2);
}

TEST_CASE("cluster: nobody answers, and then somebody does") {
  std::atomic<bool> serving{false};
  byte_server const node{[&](int descriptor) {
    while (serving && !byte_server::hear(descriptor).empty()) {
      byte_server::say(descriptor, two_halves);
    }
  }};
  auto const nodes = over({at(node.port()), at(test_servers::free_port())});
  auto const nowhere = nodes->locate(0, in(2s));
  CHECK_FALSE(nowhere.found);
  CHECK(nowhere.error.find("was not found") != std::string::npos);
  serving = true;
  CHECK(nodes->locate(0, in(5s)).server == at(7002));
}

TEST_CASE("cluster: nodes that hang or are gone leave time for the others") {
  byte_server const mute{[](int descriptor) {
    while (!byte_server::hear(descriptor).empty()) {
    }
  }};
  stubborn_node const node{two_halves};
  auto const nodes = over({at(mute.port()), at(test_servers::free_port()), node.where()});
  auto const before = boottime::now();
  auto const here = nodes->locate(0, in(3s));
  CHECK_MESSAGE(here.found, here.error);
  CHECK(boottime::now() - before < 3s);
}

TEST_CASE("cluster: those who need the same answer ask once") {
  std::atomic<bool> serving{false};
  std::atomic<int> asked{0};
  byte_server const node{[&](int descriptor) {
    while (!byte_server::hear(descriptor).empty()) {
      ++asked;
      while (!serving) std::this_thread::yield();
      byte_server::say(descriptor, two_halves);
    }
  }};
  auto const nodes = over({at(node.port())});
  std::atomic<unsigned> found{0};
  std::vector<std::thread> callers;
  for (unsigned i = 0; i < 8; ++i) {
    callers.emplace_back([&, i] {
      if (i == 7) serving = true;
      if (nodes->locate(i % partitions, in(5s)).found) ++found;
    });
  }
  for (auto& one : callers) one.join();
  CHECK(found == 8);
  CHECK(asked == 1);
}

TEST_CASE("cluster: who may not ask for the slots is sent somewhere, and hears MOVED") {
  std::string refusal;
  SUBCASE("") { refusal = "-NOPERM this user has no permissions to run 'cluster|slots'\r\n"; }
  SUBCASE("Redis 6.2") {
    refusal =
        "-NOPERM this user has no permissions to run the 'cluster' command or its subcommand\r\n";
  }
  stubborn_node const first{refusal};
  stubborn_node const second{refusal};
  auto const nodes = over({first.where(), second.where()});
  CHECK(nodes->locate(0, in(5s)).server == first.where());
  CHECK(nodes->locate(1, in(5s)).server == second.where());
  CHECK(nodes->learn(0, first.where(), error("MOVED 13907 127.0.0.1:7003")).what == step::follow);
  CHECK(nodes->locate(0, in(5s)).server == at(7003));
  // What else lies there is known by its own MOVED only.
  CHECK(nodes->learn(1, second.where(), error("MOVED 9842 127.0.0.1:7003")).what == step::follow);
  CHECK(nodes->locate(1, in(5s)).server == at(7003));
  CHECK(nodes->locate(0, in(5s)).server == at(7003));
  CHECK(first.asked() + second.asked() == 2);
  // One that is gone is not believed in for ever.
  static_cast<void>(nodes->learn(0, at(7003), broken(failure::unreachable, fate::not_sent)));
  auto const next = nodes->locate(0, in(5s));
  REQUIRE(next.found);
  CHECK(next.server != at(7003));
}

}  // namespace fenceguard::redis_tests
