#pragma once

#include <prometheus/labels.h>

#include <fenceguard/core/events.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace prometheus {
class Registry;
}

namespace fenceguard::prometheus {

/// The part of a resource's name before its first '/' or ':': `account` of `account/42`.
[[nodiscard]] std::string resource_kind(std::string_view resource);

struct metrics_options {
  /// Put on every metric, for example {{"store", "orders"}}.
  ::prometheus::Labels labels{};
  /// What stands in the label `resource` of the stale claims. Each value is a time series of its
  /// own, so name kinds rather than single resources; after 1,000 different values the rest are
  /// counted as `other`. Must not throw anything but std::bad_alloc.
  std::function<std::string(std::string_view resource)> resource_label{resource_kind};
  /// Told of every event after it was counted. Must outlive the observer. None by default.
  observer* next = nullptr;
};

/// Counts the events of lease stores, token sources and guards as Prometheus metrics. Give it to a
/// store as its `observer`; one may serve several stores.
///
///     fenceguard_grants_total, fenceguard_busy_total, fenceguard_acquire_attempts_total
///     fenceguard_wait_seconds{outcome="granted"|"busy"}              histogram
///     fenceguard_renewals_total
///     fenceguard_renewal_margin_seconds                              histogram, least of each
///     round fenceguard_leases_lost_total{reason=…}
///     fenceguard_releases_total{outcome="released"|"already_lost"|"unknown"}
///     fenceguard_advances_total, fenceguard_acquisitions_undone_total
///     fenceguard_token_blocks_needed_total, fenceguard_token_blocks_reserved_total{accepted=…}
///     fenceguard_store_errors_total{operation=…}
///     fenceguard_stale_claims_total{resource=…}
///     fenceguard_stale_claim_gap_tokens{resource=…}                  histogram, current −
///     presented fenceguard_replays_total, fenceguard_commits_unknown_total
///
/// Each is there from the beginning with zero, except those whose labels are not known before.
/// on_event() may be called from any thread; where there is no memory for a new time series, the
/// event is counted in fenceguard_events_dropped_total.
class metrics_observer final : public observer {
 public:
  /// Registers the metrics. `registry` must outlive the object, whose metrics stay in it. Throws
  /// std::invalid_argument for labels that Prometheus does not allow.
  explicit metrics_observer(::prometheus::Registry& registry, metrics_options options = {});
  ~metrics_observer() override;

  void on_event(event const& what) noexcept override;

 private:
  struct metrics;
  std::unique_ptr<metrics> const metrics_;
};

}  // namespace fenceguard::prometheus
