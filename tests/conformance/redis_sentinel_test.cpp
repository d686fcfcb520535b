// One primary, two replicas, three sentinels. Two failovers come in the middle of the suite: one on
// request, and one because the primary was killed.

#include <doctest/doctest.h>

#include <fenceguard/redis/lease_store.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <memory>

#include "conformance/run_conformance.hpp"
#include "servers/redis_sentinels.hpp"

using namespace std::chrono_literals;
namespace fg = fenceguard;

namespace {

void run_over_sentinels(fg::redis::token_mode tokens_from) {
  fg::test_servers::redis_sentinels system;
  fg::testing::token_source tokens;
  int failovers = 0;
  fg::tests::run_conformance(
      {.make_store =
           [&](fg::lease_store_settings const& settings) {
             return std::make_unique<fg::redis::lease_store>(
                 fg::redis::lease_store_options{
                     .url = system.url(), .tokens = tokens_from, .settings = settings},
                 tokens);
           },
       .expire =
           [&](std::string const& resource) {
             auto const key = "fenceguard:{0}:lease:" + resource;
             REQUIRE(system.primary().command({"DEL", key}).integer == 1);
           },
       // Too short for the sentinels to make another primary: that is done below.
       .restart = [&] { system.primary().restart(); },
       .pause =
           [&] {
             for (auto& one : system.servers()) one.pause();
           },
       .resume =
           [&] {
             for (auto& one : system.servers()) one.resume();
             system.wait_until_settled();
           },
       .short_ttl = 400ms},
      29, [&](int ran) {
        if (ran == 10 && failovers == 0) {
          system.fail_over();
          ++failovers;
        }
        if (ran == 20 && failovers == 1) {
          system.kill_primary();
          system.revive();
          ++failovers;
        }
      });
  CHECK(failovers == 2);
}

}  // namespace

TEST_CASE("conformance: Sentinel, tokens from blocks") {
  run_over_sentinels(fg::redis::token_mode::automatic);
}

TEST_CASE("conformance: Sentinel, a token reserved for each grant") {
  run_over_sentinels(fg::redis::token_mode::per_grant);
}
