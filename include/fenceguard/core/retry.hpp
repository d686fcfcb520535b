#pragma once

#include <chrono>
#include <fenceguard/core/errors.hpp>
#include <stop_token>
#include <utility>

namespace fenceguard {

/// How often and how long retry() tries.
struct retry_policy {
  unsigned attempts = 5;                      ///< At least 1, the first included.
  std::chrono::milliseconds total{10'000};    ///< No new try begins after this time.
  std::chrono::milliseconds first_pause{10};  ///< Before the second try; doubles, with jitter.
  std::chrono::milliseconds longest_pause{1'000};
  std::stop_token stop{};  ///< Ends a pause at once; the last error is thrown.
};

/// Keeps count of tries and pauses; what retry() is made of, for loops of a shape of their own.
/// Belongs to one thread.
class retry_schedule {
 public:
  /// Throws invalid_request where the policy allows no try or a duration is negative.
  explicit retry_schedule(retry_policy policy);

  /// Whether to try again after an error with this advice: pauses, then says true. Says false at
  /// once for `give_up` and `reacquire`, when the tries or the time are used up, or on stop.
  [[nodiscard]] bool again(next_step advice);

 private:
  retry_policy policy_;
  std::chrono::steady_clock::time_point give_up_at_;
  std::chrono::milliseconds pause_;
  unsigned tried_ = 1;
};

/// Calls `work` until it returns, as long as its errors advise `retry` or `retry_same_key`; throws
/// the last error otherwise. `reacquire` is thrown at once: what was read under the old grant must
/// be read again under a new one, so the loop around it has to begin with acquire().
///
/// `work` must keep its idempotency key over all tries: make the key before, not inside.
template <class Work>
auto retry(retry_policy const& policy, Work&& work) -> decltype(work()) {
  retry_schedule schedule{policy};
  for (;;) {
    try {
      return work();
    } catch (error const& failed) {
      if (!schedule.again(failed.advice())) throw;
    }
  }
}

}  // namespace fenceguard
