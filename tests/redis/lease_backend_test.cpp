#include "redis/lease_backend.hpp"

#include <fenceguard/core/errors.hpp>
#include <string>

#include "redis/backend_fixture.hpp"

namespace fenceguard::redis_tests {

TEST_CASE("acquire, renew and release") {
  test_servers::redis_server server;
  counted_tokens tokens;
  event_log log;
  auto const store = open_backend(server.port(), tokens, &log);
  auto const holder = new_holder();

  auto const before = boottime::now();
  auto const answer = acquire(*store, "account/42", holder);
  auto const first = token_of(answer);
  CHECK(first >= 1'000);
  auto const& granted = std::get<backend::granted>(answer);
  CHECK(granted.sent_at >= before);
  CHECK(granted.sent_at <= boottime::now());
  CHECK(granted.validity == 30s);
  CHECK(log.needed() == 1);
  CHECK(log.accepted() == 1);

  SUBCASE("the key is as documented") {
    CHECK(server.command({"EXISTS", "fenceguard:{0}:lease:account/42"}).integer == 1);
    CHECK(server.command({"EXISTS", "fenceguard:{0}:tokens"}).integer == 1);
    auto const ttl = server.command({"PTTL", "fenceguard:{0}:lease:account/42"}).integer;
    CHECK(ttl > 25'000);
    CHECK(ttl <= 30'000);
  }
  SUBCASE("another caller is told how long the holder has") {
    auto const second = try_acquire(*store, "account/42", new_holder());
    auto const* busy = std::get_if<backend::busy>(&second);
    REQUIRE(busy != nullptr);
    CHECK(busy->remaining > 25s);
    CHECK(busy->remaining <= 30s);
  }
  SUBCASE("inspect tells who holds it") {
    auto const info = store->inspect("account/42", in(5s));
    REQUIRE(info.has_value());
    CHECK(info->holder == holder);
    CHECK(info->token->value() == first);
    CHECK(info->label == "a test");
    CHECK(info->remaining > 25s);
    auto const age = std::chrono::system_clock::now() - info->since;
    CHECK(age < 60s);
    CHECK(age > -60s);
    CHECK(!store->inspect("account/43", in(5s)).has_value());
  }
  SUBCASE("the holder renews, nobody else does") {
    CHECK(renew(*store, "account/42", holder, 60s).answer == backend::renew_answer::renewed);
    CHECK(server.command({"PTTL", "fenceguard:{0}:lease:account/42"}).integer > 30'000);
    CHECK(renew(*store, "account/42", new_holder(), 90s).answer == backend::renew_answer::lost);
    CHECK(server.command({"PTTL", "fenceguard:{0}:lease:account/42"}).integer <= 60'000);
    CHECK(renew(*store, "account/43", holder).answer == backend::renew_answer::lost);
  }
  SUBCASE("the holder releases, nobody else does") {
    CHECK(store->release("account/42", new_holder(), in(5s)) == release_outcome::already_lost);
    CHECK(store->inspect("account/42", in(5s)).has_value());
    CHECK(store->release("account/42", holder, in(5s)) == release_outcome::released);
    CHECK(!store->inspect("account/42", in(5s)).has_value());
    CHECK(store->release("account/42", holder, in(5s)) == release_outcome::already_lost);
    CHECK(grant_token(*store, "account/42") > first);
  }
  SUBCASE("a fresh token for the same grant") {
    auto const fresh = token_of(store->advance("account/42", holder, std::nullopt, in(5s)));
    CHECK(fresh > first);
    CHECK(store->inspect("account/42", in(5s))->token->value() == fresh);
    CHECK(server.command({"PTTL", "fenceguard:{0}:lease:account/42"}).integer > 25'000);
    auto const other = store->advance("account/42", new_holder(), std::nullopt, in(5s));
    CHECK(std::holds_alternative<backend::lost>(other));
    CHECK(store->inspect("account/42", in(5s))->token->value() == fresh);
  }
}

// Redis takes PX 0 for an error; before it did, it was a key that never ends.
TEST_CASE("PX 0: a ttl below a millisecond never reaches the server") {
  test_servers::redis_server server;
  counted_tokens tokens;
  auto const store = open_backend(server.port(), tokens);
  REQUIRE(server.command({"SET", "k", "v", "PX", "0"}).is_error());
  for (auto const ttl : {0ms, -1ms, -1'000'000ms}) {
    CHECK_THROWS_AS(static_cast<void>(try_acquire(*store, "account/1", new_holder(), ttl)),
                    invalid_request);
  }
  CHECK(server.command({"DBSIZE"}).integer == 0);
}

}  // namespace fenceguard::redis_tests
