#include <doctest/doctest.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <chrono>
#include <fenceguard/prometheus/metrics_observer.hpp>
#include <fenceguard/testing/lease_store.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;
namespace fg = fenceguard;
using fg::prometheus::metrics_observer;

namespace {

// What a scrape would bring, line by line.
bool has_line(::prometheus::Registry const& registry, std::string const& line) {
  std::istringstream text{::prometheus::TextSerializer{}.Serialize(registry.Collect())};
  for (std::string one; std::getline(text, one);) {
    if (one == line) return true;
  }
  MESSAGE("there is no line " << line);
  return false;
}

fg::lease_request request(std::string resource, std::chrono::milliseconds wait = 0ms) {
  fg::lease_request wanted;
  wanted.resource = std::move(resource);
  wanted.ttl = 10s;
  wanted.wait = wait;
  return wanted;
}

}  // namespace

TEST_CASE("prometheus: a store's life as metrics") {
  ::prometheus::Registry registry;
  metrics_observer metrics{registry, {.labels = {{"store", "orders"}}}};
  fg::testing::token_source tokens;
  fg::testing::lease_store leases{tokens, {.observer = &metrics}};
  CHECK(has_line(registry, R"(fenceguard_grants_total{store="orders"} 0)"));

  auto first = leases.acquire(request("account/1"));
  REQUIRE(first.has_value());
  CHECK_FALSE(leases.acquire(request("account/1")).has_value());
  CHECK_FALSE(leases.acquire(request("account/1", 20ms)).has_value());
  static_cast<void>(first->advance());
  CHECK(first->release() == fg::release_outcome::released);
  CHECK(has_line(registry, R"(fenceguard_grants_total{store="orders"} 1)"));
  CHECK(has_line(registry, R"(fenceguard_busy_total{store="orders"} 2)"));
  CHECK(has_line(registry, R"(fenceguard_advances_total{store="orders"} 1)"));
  CHECK(has_line(registry, R"(fenceguard_releases_total{store="orders",outcome="released"} 1)"));
  CHECK(has_line(registry, R"(fenceguard_wait_seconds_count{store="orders",outcome="granted"} 1)"));
  CHECK(has_line(registry, R"(fenceguard_wait_seconds_count{store="orders",outcome="busy"} 2)"));
}

TEST_CASE("prometheus: every event has its metric") {
  ::prometheus::Registry registry;
  metrics_observer metrics{registry};
  fg::fencing_token const low{5};
  fg::fencing_token const high{105};
  std::vector<fg::event> const all{
      fg::events::granted{"account/1", low, 2ms, 3},
      fg::events::busy{"account/1", 2ms, 4},
      fg::events::renewed{7, 2s},
      fg::events::lost{"account/1", low, fg::events::loss_reason::ran_out},
      fg::events::released{"account/1", low, fg::release_outcome::unknown},
      fg::events::advanced{"account/1", low, high},
      fg::events::undone{"account/1"},
      fg::events::tokens_needed{"0"},
      fg::events::tokens_reserved{"0", low, 100, false},
      fg::events::store_error{"renew", "no answer"},
      fg::events::stale_claim{"account/1", low, high},
      fg::events::replayed{"payments"},
      fg::events::commit_unknown{"account/1"}};
  REQUIRE(all.size() == std::variant_size_v<fg::event>);
  for (std::size_t i = 0; i < all.size(); ++i) {
    REQUIRE(all[i].index() == i);  // each kind once
    metrics.on_event(all[i]);
  }
  for (auto const* line :
       {"fenceguard_grants_total 1",
        "fenceguard_busy_total 1",
        "fenceguard_acquire_attempts_total 7",
        "fenceguard_renewals_total 7",
        "fenceguard_renewal_margin_seconds_bucket{le=\"2.5\"} 1",
        "fenceguard_renewal_margin_seconds_bucket{le=\"1\"} 0",
        "fenceguard_leases_lost_total{reason=\"ran_out\"} 1",
        "fenceguard_leases_lost_total{reason=\"store_closed\"} 0",
        "fenceguard_releases_total{outcome=\"unknown\"} 1",
        "fenceguard_advances_total 1",
        "fenceguard_acquisitions_undone_total 1",
        "fenceguard_token_blocks_needed_total 1",
        "fenceguard_token_blocks_reserved_total{accepted=\"false\"} 1",
        "fenceguard_store_errors_total{operation=\"renew\"} 1",
        "fenceguard_stale_claims_total{resource=\"account\"} 1",
        "fenceguard_stale_claim_gap_tokens_sum{resource=\"account\"} 100",
        "fenceguard_stale_claim_gap_tokens_bucket{resource=\"account\",le=\"100\"} 1",
        "fenceguard_stale_claim_gap_tokens_bucket{resource=\"account\",le=\"10\"} 0",
        "fenceguard_replays_total 1",
        "fenceguard_commits_unknown_total 1",
        "fenceguard_events_dropped_total 0"}) {
    CHECK(has_line(registry, line));
  }
}

TEST_CASE("prometheus: the number of time series is bounded") {
  ::prometheus::Registry registry;
  metrics_observer metrics{registry, {.resource_label = [](std::string_view resource) {
                             return std::string{resource};
                           }}};
  for (int i = 0; i < 1'010; ++i) {
    auto const name = "account/" + std::to_string(i);
    metrics.on_event(fg::events::stale_claim{name, fg::fencing_token{1}, fg::fencing_token{2}});
  }
  CHECK(has_line(registry, "fenceguard_stale_claims_total{resource=\"account/999\"} 1"));
  CHECK(has_line(registry, "fenceguard_stale_claims_total{resource=\"other\"} 10"));
}

TEST_CASE("prometheus: a label that throws is counted, the next observer is told all the same") {
  class counting final : public fg::observer {
   public:
    void on_event(fg::event const&) noexcept override { ++told; }
    int told = 0;
  } next;
  ::prometheus::Registry registry;
  metrics_observer metrics{registry,
                           {.resource_label = [](std::string_view) -> std::string {
                              throw std::runtime_error{"no label"};
                            },
                            .next = &next}};
  metrics.on_event(fg::events::stale_claim{"a", fg::fencing_token{1}, fg::fencing_token{2}});
  CHECK(has_line(registry, "fenceguard_events_dropped_total 1"));
  CHECK(next.told == 1);
}

TEST_CASE("prometheus: counted from many threads at once") {
  ::prometheus::Registry registry;
  metrics_observer metrics{registry};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 500; ++n) {
        metrics.on_event(
            fg::events::stale_claim{"account/1", fg::fencing_token{1}, fg::fencing_token{2}});
        metrics.on_event(fg::events::undone{"account/1"});
      }
    });
  }
  for (auto& one : threads) one.join();
  CHECK(has_line(registry, "fenceguard_stale_claims_total{resource=\"account\"} 4000"));
  CHECK(has_line(registry, "fenceguard_acquisitions_undone_total 4000"));
}

TEST_CASE("prometheus: labels that are not allowed") {
  ::prometheus::Registry registry;
  CHECK_THROWS_AS((metrics_observer{registry, {.labels = {{"0 store", "x"}}}}),
                  std::invalid_argument);
}

TEST_CASE("prometheus: the kind of a resource") {
  CHECK(fg::prometheus::resource_kind("account/42") == "account");
  CHECK(fg::prometheus::resource_kind("order:7:line") == "order");
  CHECK(fg::prometheus::resource_kind("nightly") == "nightly");
  CHECK(fg::prometheus::resource_kind("") == "");
}
