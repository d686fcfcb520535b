#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>
#include <fenceguard/core/grant.hpp>
#include <string>

namespace fg = fenceguard;

TEST_CASE("a stale token names both tokens and the resource") {
  fg::stale_token const refused{"account/42", fg::fencing_token{3}, fg::fencing_token{9}};
  CHECK(std::string{refused.what()} == "stale token: presented 3, current 9, resource account/42");
  CHECK(refused.resource() == "account/42");
  CHECK(refused.presented() == fg::fencing_token{3});
  CHECK(refused.current() == fg::fencing_token{9});
  CHECK(refused.advice() == fg::next_step::reacquire);
  fg::stale_token const overtaken{"a", fg::fencing_token{3}, fg::fencing_token{4},
                                  fg::next_step::retry};
  CHECK(overtaken.advice() == fg::next_step::retry);
}

TEST_CASE("each error says what can be done") {
  using fg::next_step;
  CHECK(fg::unguarded_write{""}.advice() == next_step::give_up);
  CHECK(fg::key_reused{""}.advice() == next_step::give_up);
  CHECK(fg::server_promoted{""}.advice() == next_step::retry);
  CHECK(fg::in_progress{""}.advice() == next_step::retry_same_key);
  CHECK(fg::fence_busy{""}.advice() == next_step::retry);
  CHECK(fg::commit_unknown{""}.advice() == next_step::retry_same_key);
  CHECK(fg::already_stored{""}.advice() == next_step::retry_same_key);
  CHECK(fg::lease_lost{""}.advice() == next_step::reacquire);
  CHECK(fg::lease_store_unavailable{""}.advice() == next_step::retry);
  CHECK(fg::token_source_unavailable{""}.advice() == next_step::retry);
  CHECK(fg::schema_mismatch{""}.advice() == next_step::give_up);
  CHECK(fg::invalid_request{""}.advice() == next_step::give_up);
}

TEST_CASE("advice and release outcomes have names") {
  CHECK(std::string{to_string(fg::next_step::give_up)} == "give_up");
  CHECK(std::string{to_string(fg::next_step::retry)} == "retry");
  CHECK(std::string{to_string(fg::next_step::retry_same_key)} == "retry_same_key");
  CHECK(std::string{to_string(fg::next_step::reacquire)} == "reacquire");
  CHECK(std::string{to_string(fg::release_outcome::released)} == "released");
  CHECK(std::string{to_string(fg::release_outcome::already_lost)} == "already_lost");
  CHECK(std::string{to_string(fg::release_outcome::unknown)} == "unknown");
}
