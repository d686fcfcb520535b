#include <doctest/doctest.h>

#include <fenceguard/redis/lease_store.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <memory>

#include "conformance/run_conformance.hpp"
#include "servers/redis_server.hpp"

using namespace std::chrono_literals;
namespace fg = fenceguard;

namespace {

void run_over_redis(fg::redis::token_mode tokens_from) {
  fg::test_servers::redis_server server;
  fg::testing::token_source tokens;
  fg::tests::run_conformance(
      {.make_store =
           [&](fg::lease_store_settings const& settings) {
             return std::make_unique<fg::redis::lease_store>(
                 fg::redis::lease_store_options{
                     .url = server.url(), .tokens = tokens_from, .settings = settings},
                 tokens);
           },
       .expire =
           [&](std::string const& resource) {
             REQUIRE(server.command({"DEL", "fenceguard:{0}:lease:" + resource}).integer == 1);
           },
       .restart = [&] { server.restart(); },
       .pause = [&] { server.pause(); },
       .resume = [&] { server.resume(); },
       .short_ttl = 400ms},
      29);
}

}  // namespace

TEST_CASE("conformance: Redis, tokens from blocks") {
  run_over_redis(fg::redis::token_mode::automatic);
}

TEST_CASE("conformance: Redis, a token reserved for each grant") {
  run_over_redis(fg::redis::token_mode::per_grant);
}
