#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <chrono>
#include <exception>
#include <fenceguard/prometheus/metrics_observer.hpp>
#include <mutex>
#include <set>
#include <utility>
#include <variant>

namespace fenceguard::prometheus {
namespace {

using ::prometheus::Counter;
using ::prometheus::Family;
using ::prometheus::Histogram;
using ::prometheus::Registry;

constexpr std::size_t most_resource_labels = 1'000;

Histogram::BucketBoundaries const wait_buckets{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                               0.25,   0.5,   1,      2.5,   5,    10,    30,   60};
Histogram::BucketBoundaries const margin_buckets{0, 0.01, 0.05, 0.1, 0.25, 0.5,
                                                 1, 2.5,  5,    10,  30,   60};
Histogram::BucketBoundaries const gap_buckets{1, 10, 100, 1e3, 1e4, 1e6, 1e9, 1e12};

double seconds(std::chrono::microseconds time) {
  return std::chrono::duration<double>{time}.count();
}

char const* name_of(events::loss_reason why) {
  switch (why) {
    case events::loss_reason::refused_by_store:
      return "refused_by_store";
    case events::loss_reason::ran_out:
      return "ran_out";
    case events::loss_reason::held_too_long:
      return "held_too_long";
    case events::loss_reason::store_closed:
      break;
  }
  return "store_closed";
}

char const* name_of(release_outcome outcome) {
  switch (outcome) {
    case release_outcome::released:
      return "released";
    case release_outcome::already_lost:
      return "already_lost";
    case release_outcome::unknown:
      break;
  }
  return "unknown";
}

}  // namespace

std::string resource_kind(std::string_view resource) {
  return std::string{resource.substr(0, resource.find_first_of("/:"))};
}

struct metrics_observer::metrics {
  metrics(Registry& registry, metrics_options how)
      : options{std::move(how)},
        to{registry},
        grants{counter("fenceguard_grants_total", "Leases that were granted.")},
        busy{counter("fenceguard_busy_total", "Acquisitions given up because others held on.")},
        attempts{counter("fenceguard_acquire_attempts_total",
                         "Requests to the store for all acquisitions.")},
        waits{histograms("fenceguard_wait_seconds", "Time from acquire() to its answer.")},
        wait_granted{waits.Add({{"outcome", "granted"}}, wait_buckets)},
        wait_busy{waits.Add({{"outcome", "busy"}}, wait_buckets)},
        renewals{counter("fenceguard_renewals_total", "Leases that were renewed.")},
        margin{histograms("fenceguard_renewal_margin_seconds",
                          "Least time that a round of renewals left before a lease's deadline.")
                   .Add({}, margin_buckets)},
        lost{counters("fenceguard_leases_lost_total", "Leases lost while they were held.")},
        releases{counters("fenceguard_releases_total", "Releases, by what the store answered.")},
        advances{counter("fenceguard_advances_total", "Fresh tokens for grants that held.")},
        undone{counter("fenceguard_acquisitions_undone_total",
                       "Acquisitions without an answer in time that were taken back.")},
        needed{counter("fenceguard_token_blocks_needed_total",
                       "Times a data set had no tokens left or was another one.")},
        reserved{counters("fenceguard_token_blocks_reserved_total", "Blocks of tokens reserved.")},
        errors{counters("fenceguard_store_errors_total", "Failed conversations with a store.")},
        stale{counters("fenceguard_stale_claims_total", "Claims that the database refused.")},
        gap{histograms("fenceguard_stale_claim_gap_tokens",
                       "Distance from a refused token to the current one.")},
        replays{counter("fenceguard_replays_total", "Answers given again for a repeated key.")},
        commits_unknown{counter("fenceguard_commits_unknown_total",
                                "Commits of which it was not known whether they took place.")},
        dropped{counter("fenceguard_events_dropped_total", "Events that could not be counted.")} {
    for (auto const* reason : {"refused_by_store", "ran_out", "held_too_long", "store_closed"}) {
      lost.Add({{"reason", reason}});
    }
    for (auto const* outcome : {"released", "already_lost", "unknown"}) {
      releases.Add({{"outcome", outcome}});
    }
    for (auto const* accepted : {"true", "false"}) reserved.Add({{"accepted", accepted}});
  }

  Family<Counter>& counters(char const* name, char const* help) {
    return ::prometheus::BuildCounter().Name(name).Help(help).Labels(options.labels).Register(to);
  }
  Counter& counter(char const* name, char const* help) { return counters(name, help).Add({}); }
  Family<Histogram>& histograms(char const* name, char const* help) {
    return ::prometheus::BuildHistogram().Name(name).Help(help).Labels(options.labels).Register(to);
  }

  std::string label_of(std::string_view resource) {
    auto label = options.resource_label ? options.resource_label(resource) : std::string{};
    std::lock_guard const held{mutex};
    if (seen.contains(label)) return label;
    if (seen.size() >= most_resource_labels) return "other";
    seen.insert(label);
    return label;
  }

  void count(events::granted const& e) {
    grants.Increment();
    attempts.Increment(e.attempts);
    wait_granted.Observe(seconds(e.waited));
  }
  void count(events::busy const& e) {
    busy.Increment();
    attempts.Increment(e.attempts);
    wait_busy.Observe(seconds(e.waited));
  }
  void count(events::renewed const& e) {
    renewals.Increment(static_cast<double>(e.count));
    margin.Observe(seconds(e.smallest_margin));
  }
  void count(events::lost const& e) { lost.Add({{"reason", name_of(e.reason)}}).Increment(); }
  void count(events::released const& e) {
    releases.Add({{"outcome", name_of(e.outcome)}}).Increment();
  }
  void count(events::advanced const&) { advances.Increment(); }
  void count(events::undone const&) { undone.Increment(); }
  void count(events::tokens_needed const&) { needed.Increment(); }
  void count(events::tokens_reserved const& e) {
    reserved.Add({{"accepted", e.accepted ? "true" : "false"}}).Increment();
  }
  void count(events::store_error const& e) {
    errors.Add({{"operation", std::string{e.operation}}}).Increment();
  }
  void count(events::stale_claim const& e) {
    auto const label = label_of(e.resource);
    stale.Add({{"resource", label}}).Increment();
    gap.Add({{"resource", label}}, gap_buckets)
        .Observe(static_cast<double>(e.current.value() - e.presented.value()));
  }
  void count(events::replayed const&) { replays.Increment(); }
  void count(events::commit_unknown const&) { commits_unknown.Increment(); }

  metrics_options const options;
  Registry& to;
  Counter& grants;
  Counter& busy;
  Counter& attempts;
  Family<Histogram>& waits;
  Histogram& wait_granted;
  Histogram& wait_busy;
  Counter& renewals;
  Histogram& margin;
  Family<Counter>& lost;
  Family<Counter>& releases;
  Counter& advances;
  Counter& undone;
  Counter& needed;
  Family<Counter>& reserved;
  Family<Counter>& errors;
  Family<Counter>& stale;
  Family<Histogram>& gap;
  Counter& replays;
  Counter& commits_unknown;
  Counter& dropped;

  std::mutex mutex{};
  std::set<std::string> seen{};
};

metrics_observer::metrics_observer(Registry& registry, metrics_options options)
    : metrics_{std::make_unique<metrics>(registry, std::move(options))} {}

metrics_observer::~metrics_observer() = default;

void metrics_observer::on_event(event const& what) noexcept {
  try {
    std::visit([this](auto const& one) { metrics_->count(one); }, what);
  } catch (std::exception const&) {
    metrics_->dropped.Increment();
  }
  if (metrics_->options.next != nullptr) metrics_->options.next->on_event(what);
}

}  // namespace fenceguard::prometheus
