#pragma once

#include <atomic>
#include <cstdint>
#include <fenceguard/core/events.hpp>
#include <fenceguard/core/grant.hpp>
#include <fenceguard/core/lease_request.hpp>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace fenceguard {

enum class grant_phase : std::uint8_t { held, lost, released };

/// What a grant is made of. Constants first; then what any thread may read; then what belongs to a
/// mutex.
struct grant::record {
  static constexpr std::uint32_t not_scheduled = std::numeric_limits<std::uint32_t>::max();

  std::string resource{};
  std::string holder{};
  std::chrono::milliseconds ttl{0};
  renewal renew = renewal::automatic;
  time_point hold_end = time_point::max();  ///< By max_hold.
  std::shared_ptr<lease_engine> engine{};
  std::weak_ptr<grant> self{};
  std::stop_source lost{};

  std::atomic<std::int64_t> token{0};
  /// Written with the schedule's mutex held.
  std::atomic<grant_phase> phase{grant_phase::held};
  std::atomic<time_point> deadline{time_point{}};    ///< Local: not held from here on.
  std::atomic<time_point> server_end{time_point{}};  ///< Surely gone from the server after this.
  /// Unknown outcomes that were noted, and how many of them a later advance has fenced out.
  std::atomic<std::uint32_t> unknown_noted{0};
  std::atomic<std::uint32_t> unknown_fenced{0};

  // Under the schedule's mutex.
  std::uint32_t watch_index = not_scheduled;
  std::uint32_t renew_index = not_scheduled;
  bool renewing = false;   ///< Part of a batch that the renewal thread has given to the backend.
  bool last_term = false;  ///< The deadline is the one that max_hold allows at most.
  events::loss_reason loss = events::loss_reason::ran_out;  ///< Where the phase is lost.

  std::mutex claims_mutex{};
  std::vector<std::string> claimed_databases{};
};

/// A token on which a stop has been requested already: what a lease that is not one answers.
[[nodiscard]] std::stop_token lost_token() noexcept;

}  // namespace fenceguard
