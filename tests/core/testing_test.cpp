#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>
#include <fenceguard/testing/lease_store.hpp>
#include <fenceguard/testing/token_source.hpp>

namespace fg = fenceguard;

TEST_CASE("the testing token source counts up and can be made unavailable") {
  fg::testing::token_source tokens{5};
  CHECK(tokens.reserve(1) == fg::fencing_token{5});
  CHECK(tokens.reserve(10) == fg::fencing_token{6});
  CHECK(tokens.reserve(1) == fg::fencing_token{16});
  CHECK_THROWS_AS(static_cast<void>(tokens.reserve(0)), fg::invalid_request);
  CHECK_THROWS_AS(static_cast<void>(tokens.reserve(fg::token_source::max_count + 1)),
                  fg::invalid_request);
  tokens.set_available(false);
  CHECK_THROWS_AS(static_cast<void>(tokens.reserve(1)), fg::token_source_unavailable);
  tokens.set_available(true);
  CHECK(tokens.reserve(1) == fg::fencing_token{17});
  CHECK_THROWS_AS(fg::testing::token_source{0}, fg::invalid_request);
}

TEST_CASE("the testing lease store refuses settings out of range") {
  fg::testing::token_source tokens;
  auto const make = [&](fg::lease_store_settings const& settings) {
    fg::testing::lease_store store{tokens, settings};
  };
  CHECK_NOTHROW(make({}));
  CHECK_THROWS_AS(make({.clock_drift = 0.7}), fg::invalid_request);
  CHECK_THROWS_AS(make({.clock = nullptr}), fg::invalid_request);
}

TEST_CASE("where no token can be had, nothing is held") {
  fg::testing::token_source tokens;
  fg::testing::lease_store store{tokens};
  tokens.set_available(false);
  CHECK_THROWS_AS(static_cast<void>(store.acquire({.resource = "a"})),
                  fg::token_source_unavailable);
  CHECK_FALSE(store.inspect("a").has_value());
  tokens.set_available(true);
  CHECK(store.acquire({.resource = "a"}).has_value());
}
