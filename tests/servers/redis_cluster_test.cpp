#include "servers/redis_cluster.hpp"

#include <doctest/doctest.h>

using fenceguard::test_servers::redis_cluster;

TEST_CASE("redis_cluster: a slot is moved in steps, with its keys") {
  redis_cluster cluster;
  auto const slot =
      static_cast<int>(cluster.nodes()[0].command({"CLUSTER", "KEYSLOT", "{k}old"}).integer);
  auto const from = cluster.owner_of(slot);
  auto const to = (from + 1) % redis_cluster::primaries;
  auto& source = cluster.nodes()[from];
  auto& target = cluster.nodes()[to];
  REQUIRE(source.command({"SET", "{k}old", "1"}).text == "OK");
  CHECK(target.command({"GET", "{k}old"}).text.starts_with("MOVED "));

  cluster.begin_move(slot, from, to);
  CHECK(source.command({"GET", "{k}old"}).text == "1");
  CHECK(source.command({"GET", "{k}new"}).text.starts_with("ASK "));
  CHECK(cluster.command({"SET", "{k}new", "2"}).text == "OK");
  CHECK(source.command({"MGET", "{k}old", "{k}new"}).text.starts_with("TRYAGAIN "));
  cluster.move_keys(slot, from, to);
  CHECK(source.command({"GET", "{k}old"}).text.starts_with("ASK "));
  CHECK(cluster.command({"GET", "{k}old"}).text == "1");
  cluster.end_move(slot, to);
  CHECK(cluster.owner_of(slot) == to);
  CHECK(target.command({"GET", "{k}old"}).text == "1");
  CHECK(target.command({"GET", "{k}new"}).text == "2");
  CHECK(cluster.errors("ASK") >= 3);
}

TEST_CASE("redis_cluster: a replica takes over from a primary that is dead") {
  redis_cluster cluster{{.replicas = true}};
  auto const slot =
      static_cast<int>(cluster.nodes()[0].command({"CLUSTER", "KEYSLOT", "k"}).integer);
  auto const owner = cluster.owner_of(slot);
  REQUIRE(owner < redis_cluster::primaries);
  auto const replica = owner + redis_cluster::primaries;
  CHECK(cluster.nodes()[replica].info("replication", "role") == "slave");
  cluster.nodes()[owner].stop(fenceguard::test_servers::redis_server::stop_mode::kill);
  REQUIRE(cluster.nodes()[replica].command({"CLUSTER", "FAILOVER", "TAKEOVER"}).text == "OK");
  CHECK(cluster.owner_of(slot) == replica);
  CHECK(cluster.nodes()[replica].command({"SET", "k", "1"}).text == "OK");
}
