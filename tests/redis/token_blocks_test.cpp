#include "redis/token_blocks.hpp"

#include <algorithm>
#include <fenceguard/core/errors.hpp>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "redis/backend_fixture.hpp"
#include "redis/counted_tokens.hpp"
#include "servers/forked_child.hpp"

namespace fenceguard::redis_tests {
namespace {

using redis::token_blocks;
using test_servers::eventually;

// Takes down what is offered.
class offers {
 public:
  struct one {
    unsigned partition;
    std::string ticket;
    std::int64_t first;
    std::int64_t count;
  };

  token_blocks::offer_function function() {
    return [this](unsigned partition, std::string const& ticket, fencing_token first,
                  std::int64_t count) {
      std::lock_guard const held{mutex_};
      seen_.push_back({partition, ticket, first.value(), count});
      return answer_;
    };
  }
  void answer_with(token_blocks::offer_answer answer) { answer_ = answer; }
  std::vector<one> seen() const {
    std::lock_guard const held{mutex_};
    return seen_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<one> seen_;
  token_blocks::offer_answer answer_ = token_blocks::offer_answer::taken;
};

}  // namespace

TEST_CASE("a block is reserved and offered with the ticket that asked for it") {
  counted_tokens source{1'000};
  offers taken;
  event_log log;
  token_blocks blocks{source, {500, &log}, taken.function()};
  blocks.fetch(0, "a ticket", in(5s));
  REQUIRE(taken.seen().size() == 1);
  CHECK(taken.seen()[0].partition == 0);
  CHECK(taken.seen()[0].ticket == "a ticket");
  CHECK(taken.seen()[0].first == 1'000);
  CHECK(taken.seen()[0].count == 500);
  CHECK(log.accepted() == 1);

  taken.answer_with(token_blocks::offer_answer::refused);
  blocks.fetch(3, "another", in(5s));
  CHECK(taken.seen()[1].partition == 3);
  CHECK(taken.seen()[1].first == 1'500);
  CHECK(log.refused() == 1);
}

TEST_CASE("callers with one ticket share a reservation, other tickets do not") {
  counted_tokens source;
  offers taken;
  token_blocks blocks{source, {500}, taken.function()};
  source.hold_up();
  std::vector<std::thread> callers;
  callers.push_back(start_waiting(source, 1, [&] { blocks.fetch(0, "first", in(20s)); }));
  for (int i = 0; i < 5; ++i) callers.emplace_back([&] { blocks.fetch(0, "first", in(20s)); });
  callers.emplace_back([&] { blocks.fetch(0, "second", in(20s)); });
  callers.emplace_back([&] { blocks.fetch(1, "first", in(20s)); });
  blocks.fetch_ahead(0, "first");
  source.go_on();
  for (auto& caller : callers) caller.join();
  // A caller that came when the first reservation was over already has begun one more.
  auto const seen = taken.seen();
  CHECK(seen.size() >= 3);
  CHECK(source.calls() == static_cast<int>(seen.size()));
  auto const second = std::count_if(seen.begin(), seen.end(),
                                    [](auto const& one) { return one.ticket == "second"; });
  CHECK(second == 1);
}

TEST_CASE("a source that fails") {
  counted_tokens source;
  offers taken;
  event_log log;
  token_blocks blocks{source, {500, &log}, taken.function()};
  source.set_available(false);
  CHECK_THROWS_AS(blocks.fetch(0, "a ticket", in(5s)), token_source_unavailable);
  CHECK(taken.seen().empty());
  CHECK(log.errors().size() == 1);

  SUBCASE("those who wait for the caller that failed are told") {
    CHECK_THROWS_AS(blocks.throw_recent_failure(0, 60s), token_source_unavailable);
    blocks.throw_recent_failure(1, 60s);
    blocks.throw_recent_failure(0, 0s);
    source.set_available(true);
    blocks.fetch(0, "a ticket", in(5s));
    blocks.throw_recent_failure(0, 60s);
  }
  SUBCASE("it is asked again at the next need") {
    source.set_available(true);
    blocks.fetch(0, "a ticket", in(5s));
    CHECK(taken.seen().size() == 1);
  }
}

TEST_CASE("a source that goes backwards is reported") {
  counted_tokens source;
  offers taken;
  taken.answer_with(token_blocks::offer_answer::behind);
  token_blocks blocks{source, {500}, taken.function()};
  CHECK_THROWS_WITH_AS(blocks.fetch(0, "a ticket", in(5s)), doctest::Contains("went backwards"),
                       token_source_unavailable);
}

TEST_CASE("a source that throws schema_mismatch") {
  class no_schema final : public token_source {
    fencing_token reserve(std::int64_t) override {
      throw schema_mismatch{"run fenceguard migrate"};
    }
  } source;
  offers taken;
  token_blocks blocks{source, {500}, taken.function()};
  CHECK_THROWS_AS(blocks.fetch(0, "a ticket", in(5s)), schema_mismatch);
}

TEST_CASE("the end of the range of tokens is an error, not an overflow") {
  counted_tokens source{fencing_token::max_value - 100};
  offers taken;
  token_blocks blocks{source, {500}, taken.function()};
  CHECK_THROWS_WITH_AS(blocks.fetch(0, "a ticket", in(5s)), doctest::Contains("end of the range"),
                       token_source_unavailable);
  CHECK(taken.seen().empty());
}

TEST_CASE("a caller waits no longer than its deadline; what comes later still serves") {
  counted_tokens source;
  offers taken;
  token_blocks blocks{source, {500}, taken.function()};
  source.hold_up();
  auto const before = boottime::now();
  CHECK_THROWS_AS(blocks.fetch(0, "a ticket", in(50ms)), token_source_unavailable);
  CHECK(boottime::now() - before >= 50ms);
  CHECK(boottime::now() - before < 10s);
  source.go_on();
  CHECK(eventually([&] { return taken.seen().size() == 1; }));
}

TEST_CASE("fetching ahead does not wait") {
  counted_tokens source;
  offers taken;
  token_blocks blocks{source, {500}, taken.function()};
  source.hold_up();
  blocks.fetch_ahead(0, "a ticket");
  CHECK(taken.seen().empty());
  source.go_on();
  CHECK(eventually([&] { return taken.seen().size() == 1; }));
}

TEST_CASE("close ends those who wait and refuses those who come") {
  counted_tokens source;
  offers taken;
  token_blocks blocks{source, {500}, taken.function()};
  source.hold_up();
  bool told = false;
  auto caller = start_waiting(source, 1, [&] {
    try {
      blocks.fetch(0, "a ticket", in(60s));
    } catch (token_source_unavailable const&) {
      told = true;
    }
    source.go_on();
  });
  blocks.close();
  caller.join();
  CHECK(told);
  CHECK_THROWS_AS(blocks.fetch(0, "a ticket", in(5s)), token_source_unavailable);
  blocks.fetch_ahead(0, "a ticket");
}

TEST_CASE("block sizes out of range") {
  counted_tokens source;
  offers taken;
  for (std::int64_t size : {std::int64_t{0}, std::int64_t{-1}, token_source::max_count + 1}) {
    CHECK_THROWS_AS((token_blocks{source, {size}, taken.function()}), invalid_request);
  }
}

TEST_CASE("in a forked child it refuses, and its end does not hang") {
  counted_tokens source;
  offers taken;
  auto blocks =
      std::make_unique<token_blocks>(source, token_blocks::settings{500}, taken.function());
  blocks->fetch(0, "a ticket", in(5s));
  CHECK(test_servers::status_of_child([&] {
          try {
            blocks->fetch(0, "a ticket", in(5s));
          } catch (invalid_request const&) {
            blocks.reset();
            return true;
          }
          return false;
        }) == 0);
  blocks->fetch(0, "another", in(5s));
  CHECK(taken.seen().size() == 2);
}

}  // namespace fenceguard::redis_tests
