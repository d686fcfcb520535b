#include "servers/redis_server.hpp"

#include <doctest/doctest.h>

#include "servers/relay.hpp"
#include "servers/wait.hpp"

using namespace std::chrono_literals;
namespace ts = fenceguard::test_servers;

TEST_CASE("redis_server forgets on restart, unless it is persistent") {
  ts::redis_server forgetful;
  ts::redis_server persistent{{.persistent = true, .password = "secret"}};
  int const port = forgetful.port();
  forgetful.command({"SET", "a", "1"});
  persistent.command({"SET", "a", "1"});

  forgetful.restart();
  persistent.restart(ts::redis_server::stop_mode::kill);
  CHECK(forgetful.port() == port);
  CHECK(forgetful.command({"GET", "a"}).type == ts::redis_reply::kind::nil);
  CHECK(persistent.command({"GET", "a"}).text == "1");
  CHECK(persistent.url(3) ==
        "redis://:secret@127.0.0.1:" + std::to_string(persistent.port()) + "/3");
}

TEST_CASE("redis_server: a paused server answers nothing and loses nothing") {
  ts::redis_server server;
  server.pause();
  CHECK_THROWS_AS(server.command({"PING"}, 100ms), std::runtime_error);
  server.resume();
  CHECK(server.command({"PING"}).text == "PONG");
  server.pause();  // a stopped server can be stopped and started too
  server.restart();
  CHECK(server.command({"PING"}).text == "PONG");
}

TEST_CASE("redis_server: a replica behind a cut link lags, and can be promoted") {
  ts::redis_server primary;
  ts::relay link{primary.port()};
  ts::redis_server replica;
  primary.command({"SET", "a", "1"});
  replica.replica_of(primary, link.port());
  CHECK(replica.command({"GET", "a"}).text == "1");
  CHECK(replica.command({"SET", "a", "2"}).is_error());

  link.sever();
  primary.command({"SET", "a", "2"});
  ts::wait_until("link down",
                 [&] { return replica.info("replication", "master_link_status") == "down"; });
  replica.promote();
  CHECK(replica.command({"GET", "a"}).text == "1");
  CHECK(replica.info("replication", "role") == "master");
  CHECK(replica.command({"SET", "a", "3"}).text == "OK");
}

TEST_CASE("redis_server that cannot start says why") {
  ts::redis_server::options const wrong{.arguments = {"--no-such-option", "1"}};
  CHECK_THROWS_WITH_AS(ts::redis_server{wrong}, doctest::Contains("no-such-option"),
                       std::runtime_error);
}
