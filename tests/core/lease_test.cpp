#include <doctest/doctest.h>
#include <malloc.h>

#include <fenceguard/core/errors.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/grant_record.hpp"
#include "core/scripted_store.hpp"

using namespace std::chrono_literals;
namespace fg = fenceguard;
using fg::tests::scripted_world;

TEST_CASE("the end of a lease gives it back") {
  scripted_world world;
  { auto const lease = world.store->acquire({.resource = "a", .ttl = 1h}); }
  CHECK_FALSE(world.store->inspect("a").has_value());
}

TEST_CASE("a moved-from lease refuses work, and only the new one gives it back") {
  scripted_world world;
  auto first = world.store->acquire({.resource = "a"});
  fg::lease second{std::move(*first)};
  CHECK_THROWS_AS(static_cast<void>(first->token()), fg::invalid_request);
  CHECK_THROWS_AS(static_cast<void>(first->resource()), fg::invalid_request);
  CHECK_THROWS_AS(static_cast<void>(first->holder()), fg::invalid_request);
  CHECK_THROWS_AS(first->advance(), fg::invalid_request);
  CHECK(first->remaining() == 0ms);
  CHECK(first->lost().stop_requested());
  CHECK(first->release() == fg::release_outcome::already_lost);
  first.reset();
  CHECK(world.store->inspect("a").has_value());
  CHECK(second.remaining() > 0ms);
}

TEST_CASE("assigning to a lease gives back what it held") {
  scripted_world world;
  auto a = world.store->acquire({.resource = "a"});
  auto b = world.store->acquire({.resource = "b"});
  *a = std::move(*b);
  CHECK(a->resource() == "b");
  CHECK_FALSE(world.store->inspect("a").has_value());
  CHECK(world.store->inspect("b").has_value());
  auto& same = *a;
  *a = std::move(same);
  CHECK(a->resource() == "b");
  CHECK(world.store->inspect("b").has_value());
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("a held lease costs at most 1 KiB") {
  struct silent_backend final : fg::lease_backend {
    acquire_answer try_acquire(attempt const& what) override {
      return granted{fg::fencing_token{1}, fg::boottime::now(), what.ttl};
    }
    void renew(std::span<renew_item>, fg::time_point) noexcept override {}
    fg::release_outcome release(std::string_view, std::string_view,
                                fg::time_point) noexcept override {
      return fg::release_outcome::released;
    }
    advance_answer advance(std::string_view, std::string_view, std::optional<fg::fencing_token>,
                           fg::time_point) override {
      return lost{};
    }
    std::optional<fg::holder_info> inspect(std::string_view, fg::time_point) override {
      return std::nullopt;
    }
  };
  struct silent_store final : fg::lease_store {
    silent_store() : lease_store{std::make_unique<silent_backend>(), {}} {}
  } store;
  constexpr std::size_t count = 20'000;
  std::vector<fg::lease> leases;
  leases.reserve(count);
  auto const before = ::mallinfo2().uordblks;
  for (std::size_t i = 0; i < count; ++i) {
    leases.push_back(
        *store.acquire({.resource = "account/" + std::to_string(1'000'000 + i), .ttl = 1h}));
  }
  auto const each = (::mallinfo2().uordblks - before) / count;
  MESSAGE("bytes for a held lease: " << each << ", of them the record "
                                     << sizeof(fg::grant::record));
  CHECK(each > sizeof(fg::grant::record));
  CHECK(each <= 1024);
}
#endif
