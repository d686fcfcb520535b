#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>
#include <fenceguard/core/fencing_token.hpp>
#include <limits>
#include <type_traits>
#include <unordered_set>

using fenceguard::fencing_token;
using fenceguard::invalid_request;

TEST_CASE("a fencing token is 1 ... 2^53-1") {
  CHECK(fencing_token{1}.value() == 1);
  CHECK(fencing_token{9'007'199'254'740'991}.value() == 9'007'199'254'740'991);
  CHECK_THROWS_AS(fencing_token{0}, invalid_request);
  CHECK_THROWS_AS(fencing_token{-1}, invalid_request);
  CHECK_THROWS_AS(fencing_token{9'007'199'254'740'992}, invalid_request);
  CHECK_THROWS_AS(fencing_token{std::numeric_limits<std::int64_t>::min()}, invalid_request);
  CHECK_THROWS_WITH(fencing_token{0}, "fencing token 0 is outside 1 ... 9007199254740991");
}

TEST_CASE("fencing tokens are ordered and hashed by their value") {
  CHECK(fencing_token{1} < fencing_token{2});
  CHECK(fencing_token{7} == fencing_token{7});
  std::unordered_set<fencing_token> const set{fencing_token{1}, fencing_token{1}, fencing_token{2}};
  CHECK(set.size() == 2);
}

TEST_CASE("an integer is never taken for a token") {
  CHECK_FALSE(std::is_convertible_v<int, fencing_token>);
  CHECK_FALSE(std::is_convertible_v<std::int64_t, fencing_token>);
}
