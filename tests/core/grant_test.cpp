#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>

#include "core/scripted_store.hpp"

namespace fg = fenceguard;
using fg::tests::scripted_world;

TEST_CASE("after an unknown outcome the next claim takes a fresh token first") {
  scripted_world world;
  auto const lease = world.store->acquire({.resource = "a"});
  auto const& grant = lease->state();
  auto const token = lease->token();
  CHECK(grant->token_for_claim() == token);
  grant->note_unknown_outcome();
  auto const fresh = grant->token_for_claim();
  CHECK(token < fresh);
  CHECK(grant->token_for_claim() == fresh);
  CHECK(lease->token() == fresh);
}

TEST_CASE("an unknown outcome stays noted while no fresh token can be had") {
  scripted_world world;
  auto const lease = world.store->acquire({.resource = "a"});
  auto const& grant = lease->state();
  auto const token = lease->token();
  grant->note_unknown_outcome();
  world.acts->on_advance([](auto) { return fg::lease_backend::unknown{"no answer"}; });
  CHECK_THROWS_AS(static_cast<void>(grant->token_for_claim()), fg::lease_store_unavailable);
  CHECK_THROWS_AS(static_cast<void>(grant->token_for_claim()), fg::lease_store_unavailable);
  world.acts->on_advance({});
  CHECK(token < grant->token_for_claim());
}

TEST_CASE("a refused claim may be healed before the first committed claim in that database only") {
  scripted_world world;
  auto const lease = world.store->acquire({.resource = "a"});
  auto const& grant = lease->state();
  CHECK(grant->may_heal("one"));
  grant->note_committed_claim("one");
  grant->note_committed_claim("one");
  CHECK_FALSE(grant->may_heal("one"));
  CHECK(grant->may_heal("other"));
}

TEST_CASE("after an unknown outcome nothing is healed: the claim may have been committed") {
  scripted_world world;
  auto const lease = world.store->acquire({.resource = "a"});
  lease->state()->note_unknown_outcome();
  CHECK_FALSE(lease->state()->may_heal("one"));
  static_cast<void>(lease->state()->token_for_claim());
  CHECK_FALSE(lease->state()->may_heal("one"));
}

TEST_CASE("shared state may outlive lease and store") {
  scripted_world world;
  std::shared_ptr<fg::grant> kept;
  {
    auto const lease = world.store->acquire({.resource = "a"});
    kept = lease->state();
  }
  world.store.reset();
  CHECK(kept->resource() == "a");
  CHECK(kept->remaining().count() == 0);
  CHECK(kept->release() == fg::release_outcome::already_lost);
  CHECK_THROWS_AS(kept->advance(), fg::lease_lost);
}
