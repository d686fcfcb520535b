#include <algorithm>
#include <condition_variable>
#include <fenceguard/core/retry.hpp>
#include <mutex>
#include <utility>

#include "core/holder_id.hpp"

namespace fenceguard {
namespace {

// Far beyond any sensible total, and still far from the end of the clock's range.
constexpr std::chrono::milliseconds longest_total = std::chrono::hours{24 * 365};

/// Says whether the pause was slept through.
bool sleep_until(std::chrono::steady_clock::time_point end, std::stop_token const& stop) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock{mutex};
  wake.wait_until(lock, stop, end, [] { return false; });
  return !stop.stop_requested();
}

}  // namespace

retry_schedule::retry_schedule(retry_policy policy)
    : policy_{std::move(policy)}, pause_{policy_.first_pause} {
  using std::chrono::milliseconds;
  if (policy_.attempts == 0) throw invalid_request{"retry policy: attempts must be at least 1"};
  if (policy_.total < milliseconds{0} || policy_.first_pause < milliseconds{0} ||
      policy_.longest_pause < milliseconds{0}) {
    throw invalid_request{"retry policy: a duration is negative"};
  }
  give_up_at_ = std::chrono::steady_clock::now() + std::min(policy_.total, longest_total);
}

bool retry_schedule::again(next_step advice) {
  if (advice == next_step::give_up || advice == next_step::reacquire) return false;
  if (tried_ >= policy_.attempts || policy_.stop.stop_requested()) return false;
  auto const pause = with_jitter(std::min(pause_, policy_.longest_pause));
  auto const next = std::chrono::steady_clock::now() + pause;
  if (next > give_up_at_) return false;
  if (!sleep_until(next, policy_.stop)) return false;
  ++tried_;
  pause_ = std::min(pause_ * 2, policy_.longest_pause);
  return true;
}

}  // namespace fenceguard
