#include "core/wait_queue.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/holder_id.hpp"
#include "core/lease_schedule.hpp"
#include "core/sleep_by_clock.hpp"

namespace fenceguard {

wait_queue::wait_queue(fenceguard::clock const& time, lease_backend& backend, error_sink on_error)
    : clock_{time}, backend_{backend}, on_error_{std::move(on_error)} {}

wait_queue::shard& wait_queue::shard_of(std::string_view resource) const {
  return (*shards_)[name_hash{}(resource) % shards_->size()];
}

bool wait_queue::has_line(std::string_view resource) const {
  if (waiting_.load() == 0) return false;
  shard const& mine = shard_of(resource);
  std::lock_guard const guard{mine.mutex};
  return mine.by_name.find(resource) != mine.by_name.end();
}

void wait_queue::wake(std::string_view resource) {
  if (waiting_.load() == 0) return;
  shard& mine = shard_of(resource);
  std::lock_guard const guard{mine.mutex};
  auto const found = mine.by_name.find(resource);
  if (found == mine.by_name.end()) return;
  line& waiters = found->second;
  waiters.ask_at = time_point::min();
  waiters.pause = first_pause;
  waiters.first->wake.notify_one();
}

void wait_queue::update_watch(std::string const& resource) noexcept try {
  // Serialised, so that the backend hears of an end and a new beginning in their order.
  std::lock_guard const guard{watch_mutex_};
  bool const wanted = has_line(resource);
  bool const watched = watched_.contains(resource);
  if (wanted && !watched) {
    watched_.insert(resource);
    backend_.watch(resource);
  } else if (!wanted && watched) {
    watched_.erase(resource);
    backend_.unwatch(resource);
  }
} catch (std::exception const& failed) {
  on_error_("watch", failed.what());
}

wait_queue::place::place(wait_queue& queue, std::string const& resource,
                         std::stop_token const& stop, bool has_asked)
    : queue_{queue}, resource_{resource}, shard_{queue.shard_of(resource)}, stop_{stop} {
  join(has_asked);
}

void wait_queue::place::join(bool has_asked) {
  queue_.waiting_.fetch_add(1);
  bool first = false;
  {
    lock guard{shard_.mutex};
    line_ = &shard_.by_name[resource_];
    first = line_->first == nullptr;
    self_.previous = line_->last;
    (first ? line_->first : line_->last->next) = &self_;
    line_->last = &self_;
    answers_before_ = line_->answers;
    if (first && has_asked) line_->ask_at = time_point::max();
  }
  if (first) queue_.update_watch(resource_);
}

wait_queue::place::~place() { leave(); }

void wait_queue::place::leave() noexcept {
  bool last = false;
  {
    lock guard{shard_.mutex};
    bool const was_head = at_head();
    (self_.previous != nullptr ? self_.previous->next : line_->first) = self_.next;
    (self_.next != nullptr ? self_.next->previous : line_->last) = self_.previous;
    last = line_->first == nullptr;
    if (last) {
      shard_.by_name.erase(shard_.by_name.find(resource_));
    } else if (was_head) {
      // It asked and cannot say what came of it: the next one finds out.
      if (line_->ask_at == time_point::max()) line_->ask_at = time_point::min();
      line_->first->wake.notify_one();
    }
  }
  queue_.waiting_.fetch_sub(1);
  if (last) queue_.update_watch(resource_);
}

wait_queue::place::turn wait_queue::place::await(time_point end) {
  std::stop_callback const on_stop{stop_, [this] {
                                     lock const guard{shard_.mutex};
                                     self_.stopped = true;
                                     self_.wake.notify_one();
                                   }};
  lock guard{shard_.mutex};
  for (;;) {
    if (self_.stopped) break;
    auto const now = queue_.clock_.now();
    if (now >= end) return turn::time_over;
    if (at_head() && line_->ask_at <= now) {
      line_->ask_at = time_point::max();
      return turn::ask;
    }
    auto const until = at_head() ? std::min(end, line_->ask_at) : end;
    sleep_by_clock(guard, self_.wake, queue_.clock_, until);
  }
  return turn::stopped;
}

void wait_queue::place::ask_after(std::chrono::nanoseconds pause) {
  // A word of release that came while this caller was asking stands.
  if (line_->ask_at != time_point::min()) line_->ask_at = queue_.clock_.now() + pause;
}

void wait_queue::place::busy(std::chrono::milliseconds holder_remaining) {
  auto const hinted = queue_.backend_.poll_interval(resource_);
  lock const guard{shard_.mutex};
  ++line_->answers;
  line_->failure.clear();
  if (!at_head()) return;
  // Those who wait elsewhere have often asked at the same moment; with hints, pauses are long
  // enough for that to show.
  auto pause = hinted ? std::max<std::chrono::nanoseconds>(random_part_of(*hinted), first_pause)
                      : with_jitter(line_->pause);
  if (holder_remaining > holder_remaining.zero()) {
    pause = std::min<std::chrono::nanoseconds>(pause, holder_remaining);
  }
  if (!hinted) line_->pause = std::min(line_->pause * 2, longest_pause);
  ask_after(pause);
}

void wait_queue::place::again(std::chrono::milliseconds pause) {
  lock const guard{shard_.mutex};
  if (at_head()) ask_after(std::max<std::chrono::nanoseconds>(pause, first_pause / 2));
}

void wait_queue::place::failed(std::string const& reason) {
  lock const guard{shard_.mutex};
  line_->failure = reason;
  if (!at_head()) return;
  auto const pause = with_jitter(line_->pause);
  line_->pause = std::min(line_->pause * 2, longest_pause);
  ask_after(pause);
}

void wait_queue::place::granted(std::chrono::milliseconds ttl) {
  lock const guard{shard_.mutex};
  ++line_->answers;
  line_->failure.clear();
  if (!at_head()) return;
  line_->pause = longest_pause;
  ask_after(std::min<std::chrono::nanoseconds>(longest_pause, ttl));
}

bool wait_queue::place::answered() const {
  lock const guard{shard_.mutex};
  return line_->answers != answers_before_;
}

std::string wait_queue::place::failure() const {
  lock const guard{shard_.mutex};
  return line_->failure;
}

}  // namespace fenceguard
