#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

namespace fenceguard {

/// Whether a store keeps a lease alive in the background.
enum class renewal {
  automatic,  ///< Renewed at a third of its ttl until it is released, lost or at its max_hold.
  none,       ///< Runs out ttl after it was asked for.
};

/// What a caller asks a lease store for. All durations are counted on the caller's boottime clock.
struct lease_request {
  static constexpr std::chrono::milliseconds min_ttl{10};
  static constexpr std::chrono::milliseconds max_ttl{24 * 60 * 60 * 1000};
  static constexpr std::chrono::milliseconds max_wait{24 * 60 * 60 * 1000};
  static constexpr std::chrono::milliseconds hold_limit{std::int64_t{365} * 24 * 60 * 60 * 1000};
  static constexpr std::size_t max_resource_bytes = 512;
  static constexpr std::size_t max_label_bytes = 128;

  /// The name of what is to be protected, such as "account/42": 1 … 512 bytes of UTF-8 without
  /// NUL. The same name is claimed in the database.
  std::string resource{};

  /// How long the lease lives without renewal: min_ttl … max_ttl. It bounds how long others wait
  /// after a crash, not how long the work may take.
  std::chrono::milliseconds ttl{10'000};

  /// How long acquire() may go on trying while the resource is busy: 0 … max_wait. Zero: one try.
  std::chrono::milliseconds wait{0};

  renewal renew = renewal::automatic;

  /// Free text for operators, shown by inspect(): at most 128 bytes of UTF-8, no control
  /// characters.
  std::string label{};

  /// The longest total hold: the last renewal ends the lease with it. min_ttl … hold_limit, or
  /// zero: none.
  std::chrono::milliseconds max_hold{0};

  /// A request to stop ends a wait at once, as busy does.
  std::stop_token stop{};
};

/// As lease_request, for several resources that are wanted together or not at all.
struct lease_set_request {
  static constexpr std::size_t max_resources = 64;

  /// 1 … 64 different names, in any order; they are taken in byte order, so that two callers who
  /// want the same ones cannot wait for each other in a circle.
  std::vector<std::string> resources{};
  std::chrono::milliseconds ttl{10'000};
  /// Bounds the wait for all of them together.
  std::chrono::milliseconds wait{0};
  renewal renew = renewal::automatic;
  std::string label{};
  std::chrono::milliseconds max_hold{0};
  std::stop_token stop{};
};

}  // namespace fenceguard
