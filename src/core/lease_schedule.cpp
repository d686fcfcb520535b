#include "core/lease_schedule.hpp"

#include <algorithm>

#include "core/sleep_by_clock.hpp"

namespace fenceguard {

void lease_schedule::sleep(lock& held, std::condition_variable& wake, time_point until) const {
  sleep_by_clock(held, wake, clock_, until);
}

void lease_schedule::take_out(grant::record& who) noexcept {
  expiries_.remove(who);
  renewals_.remove(who);
}

void lease_schedule::place(grant::record& held, term const& granted) {
  held.deadline.store(granted.deadline);
  held.last_term = granted.last;
  expiries_.set(held, granted.deadline);
  if (granted.renew_at != time_point::max()) renewals_.set(held, granted.renew_at);
  if (granted.deadline < watchdog_wakes_at_) expiry_changed_.notify_one();
  if (granted.renew_at < renewal_wakes_at_) due_changed_.notify_one();
}

void lease_schedule::end(grant::record& held, events::loss_reason why) noexcept {
  bool const by_max_hold = why == events::loss_reason::ran_out && held.last_term;
  held.loss = by_max_hold ? events::loss_reason::held_too_long : why;
  held.phase.store(grant_phase::lost);
  take_out(held);
}

bool lease_schedule::add(grant::record& held, term const& granted) {
  std::lock_guard const guard{mutex_};
  if (closed_) return false;
  place(held, granted);
  return true;
}

bool lease_schedule::extend(grant::record& held, term const& renewed) {
  std::lock_guard const guard{mutex_};
  if (held.phase.load() != grant_phase::held) return false;
  place(held, renewed);
  return true;
}

void lease_schedule::renew_again(grant::record& held, time_point when) {
  std::lock_guard const guard{mutex_};
  if (held.phase.load() != grant_phase::held || held.last_term) return;
  renewals_.set(held, when);
  if (when < renewal_wakes_at_) due_changed_.notify_one();
}

bool lease_schedule::lose(grant::record& held, events::loss_reason why) noexcept {
  std::lock_guard const guard{mutex_};
  if (held.phase.load() != grant_phase::held) return false;
  end(held, why);
  return true;
}

bool lease_schedule::expire(grant::record& held) noexcept {
  std::lock_guard const guard{mutex_};
  // Asked again under the mutex: a renewal may have just come in.
  if (held.phase.load() != grant_phase::held || clock_.now() < held.deadline.load()) return false;
  end(held, events::loss_reason::ran_out);
  return true;
}

lease_schedule::last_state lease_schedule::release(grant::record& held) noexcept {
  std::lock_guard const guard{mutex_};
  last_state const before{held.phase.load(), held.renewing, held.loss};
  held.phase.store(grant_phase::released);
  take_out(held);
  return before;
}

void lease_schedule::forget(grant::record& gone) noexcept {
  std::lock_guard const guard{mutex_};
  take_out(gone);
}

bool lease_schedule::await_expired(grants& expired) {
  lock held{mutex_};
  while (!closed_) {
    auto const now = clock_.now();
    while (!expiries_.empty() && expiries_.top().when <= now &&
           expired.size() < longest_expired_batch) {
      grant::record& over = *expiries_.top().who;
      end(over, events::loss_reason::ran_out);
      // Empty where the grant is being destroyed: then nobody is left to be told.
      if (auto alive = over.self.lock()) expired.push_back(std::move(alive));
    }
    if (!expired.empty()) {
      watchdog_wakes_at_ = time_point::min();
      return true;
    }
    watchdog_wakes_at_ = expiries_.empty() ? time_point::max() : expiries_.top().when;
    sleep(held, expiry_changed_, watchdog_wakes_at_);
  }
  return false;
}

bool lease_schedule::await_due(grants& due, std::size_t limit) {
  lock held{mutex_};
  while (!closed_) {
    auto const now = clock_.now();
    if (!renewals_.empty() && renewals_.top().when <= now) {
      renewal_wakes_at_ = time_point::min();
      // What is due soon goes along: fewer and larger batches.
      while (!renewals_.empty() && due.size() < limit) {
        auto const& [when, who] = renewals_.top();
        if (when - who->ttl / 16 > now) break;
        grant::record& chosen = *who;
        renewals_.remove(chosen);
        if (auto alive = chosen.self.lock()) {
          chosen.renewing = true;
          due.push_back(std::move(alive));
        }
      }
      if (!due.empty()) return true;
      continue;
    }
    renewal_wakes_at_ = renewals_.empty() ? time_point::max() : renewals_.top().when;
    sleep(held, due_changed_, renewal_wakes_at_);
  }
  return false;
}

void lease_schedule::end_renewal(grants const& renewed) noexcept {
  std::lock_guard const guard{mutex_};
  for (auto const& one : renewed) one->state().renewing = false;
  if (waiting_for_renewal_ > 0) renewal_ended_.notify_all();
}

bool lease_schedule::await_renewal_end(grant::record const& held, time_point until) noexcept {
  lock guard{mutex_};
  ++waiting_for_renewal_;
  while (held.renewing && clock_.now() < until) sleep(guard, renewal_ended_, until);
  --waiting_for_renewal_;
  return !held.renewing;
}

bool lease_schedule::renewing(grant::record const& held) const noexcept {
  std::lock_guard const guard{mutex_};
  return held.renewing;
}

lease_schedule::grants lease_schedule::close() {
  std::lock_guard const guard{mutex_};
  closed_ = true;
  grants ended;
  while (!expiries_.empty()) {
    grant::record& held = *expiries_.top().who;
    end(held, events::loss_reason::store_closed);
    if (auto alive = held.self.lock()) ended.push_back(std::move(alive));
  }
  expiry_changed_.notify_all();
  due_changed_.notify_all();
  return ended;
}

}  // namespace fenceguard
