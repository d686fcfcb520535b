#pragma once

#include <condition_variable>
#include <cstddef>
#include <fenceguard/core/clock.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/deadline_heap.hpp"
#include "core/grant_record.hpp"

namespace fenceguard {

/// When the held leases of a store run out, and when they are to be renewed; decides, under one
/// mutex, who ends a grant: release, the watchdog, or the renewal that found it gone. It does no
/// I/O and calls nobody. Every member may be called from any thread.
class lease_schedule {
 public:
  using grants = std::vector<std::shared_ptr<grant>>;

  explicit lease_schedule(fenceguard::clock const& time) noexcept : clock_{time} {}

  /// A term that a server has granted: until when, and when to renew it (never: max()).
  struct term {
    time_point deadline;
    time_point renew_at;
    bool last = false;  ///< max_hold allows no later deadline.
  };

  /// Takes a new grant in; says false where the schedule has been closed.
  [[nodiscard]] bool add(grant::record& held, term const& granted);

  /// Sets the term after a renewal; says false where the grant has ended in the meantime.
  bool extend(grant::record& held, term const& renewed);

  /// Tries the renewal again at that time, where the grant is still held.
  void renew_again(grant::record& held, time_point when);

  /// Ends the grant as lost; says whether this call was the one that did.
  bool lose(grant::record& held, events::loss_reason why) noexcept;

  /// Ends the grant as lost where its time is over; says whether this call was the one that did.
  bool expire(grant::record& held) noexcept;

  /// How a grant stood when it was released.
  struct last_state {
    grant_phase phase;
    bool renewing;
    events::loss_reason loss;
  };
  last_state release(grant::record& held) noexcept;

  /// Takes the grant out where it is still in: its object ends.
  void forget(grant::record& gone) noexcept;

  /// For the watchdog: sleeps until grants have run out, ends them as lost and fills `expired`.
  /// Says false when the schedule has been closed.
  [[nodiscard]] bool await_expired(grants& expired);

  /// For the renewal thread: sleeps until a renewal is due and fills `due` with what may be renewed
  /// together with it, at most `limit`; each counts as being renewed until end_renewal(). Says
  /// false when the schedule has been closed.
  [[nodiscard]] bool await_due(grants& due, std::size_t limit);
  void end_renewal(grants const& renewed) noexcept;

  /// Waits until no renewal of this grant is under way; says false where one still is at `until`.
  [[nodiscard]] bool await_renewal_end(grant::record const& held, time_point until) noexcept;
  [[nodiscard]] bool renewing(grant::record const& held) const noexcept;

  /// Ends all grants as lost (store_closed) and returns them; ends await_expired() and await_due().
  [[nodiscard]] grants close();

 private:
  static constexpr std::size_t longest_expired_batch = 256;
  using lock = std::unique_lock<std::mutex>;

  void take_out(grant::record& who) noexcept;
  void end(grant::record& held, events::loss_reason why) noexcept;
  void place(grant::record& held, term const& granted);
  void sleep(lock& held, std::condition_variable& wake, time_point until) const;

  fenceguard::clock const& clock_;

  mutable std::mutex mutex_;
  std::condition_variable expiry_changed_;
  std::condition_variable due_changed_;
  std::condition_variable renewal_ended_;
  deadline_heap<&grant::record::watch_index> expiries_;
  deadline_heap<&grant::record::renew_index> renewals_;
  // Until when the threads sleep: they are woken only by something earlier.
  time_point watchdog_wakes_at_ = time_point::min();
  time_point renewal_wakes_at_ = time_point::min();
  std::size_t waiting_for_renewal_ = 0;
  bool closed_ = false;
};

}  // namespace fenceguard
