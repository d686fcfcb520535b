#include "servers/redis_sentinels.hpp"

#include <doctest/doctest.h>

using fenceguard::test_servers::redis_sentinels;

TEST_CASE("redis_sentinels: failover on request, and after the primary was killed") {
  redis_sentinels system;
  int const first = system.primary().port();
  system.fail_over();
  int const second = system.primary().port();
  CHECK(second != first);
  CHECK(system.primary().info("replication", "connected_slaves") == "2");

  system.kill_primary();
  CHECK(system.primary().port() != second);
  system.revive();
  CHECK(system.primary().info("replication", "connected_slaves") == "2");
}
