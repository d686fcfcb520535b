// A build without OpenSSL.

#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>
#include <fenceguard/redis/lease_store.hpp>
#include <fenceguard/redis/redlock_store.hpp>
#include <fenceguard/testing/token_source.hpp>

namespace fg = fenceguard;

TEST_CASE("rediss:// is refused at construction, and the message says why") {
  fg::testing::token_source tokens;
  for (auto const* url : {"rediss://127.0.0.1:1", "rediss+sentinel://127.0.0.1:1/name",
                          "rediss+cluster://127.0.0.1:1"}) {
    CHECK_THROWS_WITH_AS(fg::redis::lease_store({.url = url}, tokens),
                         doctest::Contains("without OpenSSL"), fg::invalid_request);
  }
}
