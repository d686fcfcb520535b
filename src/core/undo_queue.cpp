#include "core/undo_queue.hpp"

#include <algorithm>
#include <utility>

#include "core/lease_schedule.hpp"
#include "core/sleep_by_clock.hpp"

namespace fenceguard {

bool undo_queue::add(entry what) {
  std::lock_guard const guard{mutex_};
  if (closed_) return false;
  entries_.push_back(std::move(what));
  std::push_heap(entries_.begin(), entries_.end(), later);
  changed_.notify_one();
  return true;
}

undo_queue::entry undo_queue::pop() {
  std::pop_heap(entries_.begin(), entries_.end(), later);
  entry taken = std::move(entries_.back());
  entries_.pop_back();
  return taken;
}

std::optional<undo_queue::entry> undo_queue::next() {
  std::vector<entry> expired;  // destroyed after the lock: an entry may own the last of a grant
  std::unique_lock guard{mutex_};
  while (!closed_) {
    auto const now = clock_.now();
    while (!entries_.empty() && entries_.front().expires <= now) expired.push_back(pop());
    if (entries_.empty()) {
      drained_.notify_all();
      changed_.wait(guard);
      continue;
    }
    auto const due = std::max(entries_.front().due, paused_until_);
    if (due <= now) {
      in_hand_ = true;
      return pop();
    }
    sleep_by_clock(guard, changed_, clock_, due);
  }
  return std::nullopt;
}

void undo_queue::done() {
  std::lock_guard const guard{mutex_};
  in_hand_ = false;
  paused_until_ = time_point::min();
}

void undo_queue::put_back(entry what, time_point due, bool pause_all) {
  std::unique_lock guard{mutex_};
  in_hand_ = false;
  paused_until_ = pause_all ? due : time_point::min();
  if (closed_) {
    guard.unlock();  // before `what` ends
    return;
  }
  what.due = due;
  entries_.push_back(std::move(what));
  std::push_heap(entries_.begin(), entries_.end(), later);
}

void undo_queue::drain(time_point until) noexcept {
  std::unique_lock guard{mutex_};
  while (!closed_ && (in_hand_ || !entries_.empty()) && clock_.now() < until) {
    sleep_by_clock(guard, drained_, clock_, until);
  }
}

void undo_queue::close() noexcept {
  std::vector<entry> forgotten;
  {
    std::lock_guard const guard{mutex_};
    closed_ = true;
    forgotten.swap(entries_);
  }
  changed_.notify_all();
  drained_.notify_all();
}

}  // namespace fenceguard
