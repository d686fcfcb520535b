#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/redis_checks.hpp"
#include "servers/free_port.hpp"
#include "servers/redis_sentinels.hpp"
#include "servers/wait.hpp"

namespace fg = fenceguard;
using fg::cli::check_redis;
using fg::cli::diagnosis;
using fg::cli::severity;
using fg::test_servers::redis_sentinels;

namespace {

bool has(std::vector<diagnosis> const& found, severity grade, std::string const& part) {
  return std::any_of(found.begin(), found.end(), [&](diagnosis const& one) {
    return one.grade == grade && (one.subject + ": " + one.finding).find(part) != std::string::npos;
  });
}

std::size_t beyond_notices(std::vector<diagnosis> const& found) {
  return static_cast<std::size_t>(std::count_if(
      found.begin(), found.end(), [](auto const& one) { return one.grade != severity::notice; }));
}

}  // namespace

TEST_CASE("doctor: sentinels in good order, and each fault planted in them") {
  redis_sentinels system;
  auto const healthy = check_redis(system.url());
  for (auto const& one : healthy) INFO(one.subject << ": " << one.finding);
  CHECK(beyond_notices(healthy) == 0);

  // The primary is examined as if the URL had named it.
  auto& primary = system.primary();
  primary.command({"CONFIG", "SET", "maxmemory", "100mb"});
  primary.command({"CONFIG", "SET", "maxmemory-policy", "allkeys-lru"});
  CHECK(has(check_redis(system.url()), severity::error, "maxmemory-policy"));
  primary.command({"CONFIG", "SET", "maxmemory", "0"});

  auto const gone =
      system.url().insert(std::string{"redis+sentinel://"}.size(),
                          "127.0.0.1:" + std::to_string(fg::test_servers::free_port()) + ",");
  CHECK(has(check_redis(gone), severity::warning, "does not answer"));

  // Two sentinels are told of another primary: they disagree, and no majority is left.
  for (int i = 1; i < 3; ++i) {
    auto const port = system.sentinel_ports()[static_cast<std::size_t>(i)];
    fg::test_servers::redis_command(port, {"SENTINEL", "REMOVE", redis_sentinels::service});
    fg::test_servers::redis_command(port,
                                    {"SENTINEL", "MONITOR", redis_sentinels::service, "127.0.0.1",
                                     std::to_string(fg::test_servers::free_port()), "2"});
  }
  auto const split = check_redis(system.url());
  CHECK(has(split, severity::error, "different primaries"));
  CHECK(has(split, severity::warning, "knows no replica"));
}
