#include "core/grant_numbering.hpp"

#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "redis/counted_tokens.hpp"
#include "servers/wait.hpp"

using namespace std::chrono_literals;

namespace fenceguard {
namespace {

using redis_tests::counted_tokens;
using test_servers::eventually;

time_point in(std::chrono::milliseconds time) { return boottime::now() + time; }

}  // namespace

TEST_CASE("grant_numbering: callers who wait together share a reservation; all tokens differ") {
  counted_tokens source;
  grant_numbering numbering{source, nullptr};
  std::mutex mutex;
  std::set<std::int64_t> tokens;
  auto const take = [&] {
    auto const token = numbering.reserve_one(in(20s)).value();
    std::lock_guard const held{mutex};
    CHECK(tokens.insert(token).second);
  };
  source.hold_up();
  std::vector<std::thread> callers;
  callers.push_back(redis_tests::start_waiting(source, 1, take));
  for (int i = 0; i < 20; ++i) callers.emplace_back(take);
  source.go_on();
  for (auto& caller : callers) caller.join();
  CHECK(tokens.size() == 21);
  CHECK(source.calls() >= 2);
  CHECK(source.calls() <= 21);
}

// A reservation that began before a caller came may lie below tokens that were given out since.
TEST_CASE("grant_numbering: a caller is not served by a reservation that began before it came") {
  counted_tokens source;
  grant_numbering numbering{source, nullptr};
  source.hold_up();
  std::int64_t first = 0;
  auto early = redis_tests::start_waiting(source, 1,
                                          [&] { first = numbering.reserve_one(in(20s)).value(); });
  std::int64_t const elsewhere = 50'000;
  source.set_next(elsewhere);
  std::int64_t second = 0;
  std::thread late{[&] { second = numbering.reserve_one(in(20s)).value(); }};
  source.go_on();
  early.join();
  late.join();
  CHECK(first < elsewhere);
  CHECK(second >= elsewhere);
}

TEST_CASE("grant_numbering: what the source throws reaches the caller as it was") {
  counted_tokens source;
  grant_numbering numbering{source, nullptr};
  source.set_available(false);
  CHECK_THROWS_AS(static_cast<void>(numbering.reserve_one(in(5s))), token_source_unavailable);
  source.set_available(true);
  CHECK(numbering.reserve_one(in(5s)).value() == 1'000);

  class no_schema final : public token_source {
    fencing_token reserve(std::int64_t) override {
      throw schema_mismatch{"run fenceguard migrate"};
    }
  } unset;
  grant_numbering none{unset, nullptr};
  CHECK_THROWS_WITH_AS(static_cast<void>(none.reserve_one(in(5s))),
                       doctest::Contains("fenceguard migrate"), schema_mismatch);

  counted_tokens used_up{fencing_token::max_value};
  grant_numbering at_end{used_up, nullptr};
  CHECK_THROWS_WITH_AS(static_cast<void>(at_end.reserve_one(in(5s))),
                       doctest::Contains("end of the range"), token_source_unavailable);
}

TEST_CASE("grant_numbering: a caller waits no longer than its deadline, nor than the store lives") {
  counted_tokens source;
  grant_numbering numbering{source, nullptr};
  source.hold_up();
  auto const before = boottime::now();
  CHECK_THROWS_AS(static_cast<void>(numbering.reserve_one(in(50ms))), token_source_unavailable);
  CHECK(boottime::now() - before >= 50ms);
  CHECK(boottime::now() - before < 10s);
  bool told = false;
  std::thread caller{[&] {
    try {
      static_cast<void>(numbering.reserve_one(in(60s)));
    } catch (token_source_unavailable const&) {
      told = true;
    }
    source.go_on();
  }};
  REQUIRE(eventually([&] { return source.waiting() == 1; }));
  numbering.close();
  caller.join();
  CHECK(told);
  CHECK_THROWS_AS(static_cast<void>(numbering.reserve_one(in(5s))), token_source_unavailable);
}

// Else a holder would be given, as its fresh token, one that the database refuses.
TEST_CASE("grant_numbering: a fresh token is higher than what the database has accepted") {
  counted_tokens source{1'000};
  grant_numbering numbering{source, nullptr};
  CHECK(numbering.reserve_above(std::nullopt, in(5s)).value() == 1'000);
  CHECK(numbering.reserve_above(fencing_token{1'000}, in(5s)).value() == 1'001);
  for (std::int64_t const accepted : {1'002, 1'004, 5'000}) {  // the same, and more
    CHECK_THROWS_WITH_AS(
        static_cast<void>(numbering.reserve_above(fencing_token{accepted}, in(5s))),
        doctest::Contains("behind the database"), token_source_unavailable);
  }
}

}  // namespace fenceguard
