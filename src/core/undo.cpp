#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "core/lease_engine.hpp"

namespace fenceguard {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds first_pause{10};
constexpr milliseconds longest_pause{250};

}  // namespace

release_outcome lease_engine::release(grant::record& held, released_by whom) noexcept {
  // Another process's lease: nothing is sent, and nothing is to be done.
  if (forked()) return release_outcome::already_lost;
  static_cast<void>(still_held(held));  // release never stands for a loss that is due
  auto const before = schedule_.release(held);
  switch (before.phase) {
    case grant_phase::released:
      return release_outcome::already_lost;
    case grant_phase::held:
      --numbers_.held;
      return release_on_server(held, whom, before.renewing);
    case grant_phase::lost:
      break;
  }
  if (before.loss == events::loss_reason::store_closed) {
    return release_on_server(held, whom, before.renewing);
  }
  // It may stand on the server for a moment longer than it was held here; the next holder need not
  // wait for that.
  if (before.loss != events::loss_reason::refused_by_store) delete_later(held);
  return finish_release(held, release_outcome::already_lost);
}

release_outcome lease_engine::release_on_server(grant::record& held, released_by whom,
                                                bool renewing) noexcept {
  bool const destructor = whom == released_by::destructor;
  auto const bound = destructor ? settings_.release_timeout : settings_.command_timeout;
  auto const until = now() + bound;
  auto outcome = release_outcome::unknown;
  if (!destructor || (bound > bound.zero() && answering_)) {
    if (!renewing || schedule_.await_renewal_end(held, until)) {
      outcome = backend_->release(held.resource, held.holder, until);
    }
    answering_ = outcome != release_outcome::unknown;
    if (outcome == release_outcome::unknown) {
      tell_error("release", "no answer; going on in the background");
    }
  }
  if (outcome == release_outcome::unknown) delete_later(held);
  return finish_release(held, outcome);
}

release_outcome lease_engine::finish_release(grant::record& held,
                                             release_outcome outcome) noexcept {
  if (outcome == release_outcome::released) ++numbers_.released;
  tell([&] { return events::released{held.resource, fencing_token{held.token.load()}, outcome}; });
  queue_.wake(held.resource);
  return outcome;
}

void lease_engine::delete_later(grant::record& ended) noexcept {
  auto const expires = ended.server_end.load();
  if (expires <= now()) return;
  undo_later({.resource = ended.resource,
              .holder = ended.holder,
              .expires = expires,
              .of = ended.self.lock()});
}

void lease_engine::undo_later(undo_queue::entry what) noexcept try {
  if (!undo_queue_.add(std::move(what)) || undoing_) return;
  std::lock_guard const guard{threads_mutex_};
  if (closed_ || undo_.started()) return;
  undo_.start([self = shared_from_this()] { self->run_undo(); });
  undoing_ = true;
} catch (std::exception const& failed) {
  tell_error("undo", failed.what());  // it runs out with its ttl
}

void lease_engine::undo_now(undo_queue::entry what) noexcept {
  auto const until = now() + settings_.release_timeout;
  auto const outcome = backend_->release(what.resource, what.holder, until);
  if (outcome == release_outcome::unknown) {
    answering_ = false;
    undo_later(std::move(what));
  } else {
    report_undone(what, outcome);
  }
}

void lease_engine::run_undo() {
  auto pause = first_pause;
  while (auto next = undo_queue_.next()) undo(std::move(*next), pause);
}

void lease_engine::undo(undo_queue::entry what, milliseconds& pause) {
  if (what.of && schedule_.renewing(what.of->state())) {
    undo_queue_.put_back(std::move(what), now() + first_pause, false);
    return;
  }
  auto const outcome =
      backend_->release(what.resource, what.holder, now() + settings_.command_timeout);
  if (outcome == release_outcome::unknown) {
    answering_ = false;
    tell_error("undo", "no answer; trying again");
    undo_queue_.put_back(std::move(what), now() + pause, true);
    pause = std::min(pause * 2, longest_pause);
    return;
  }
  pause = first_pause;
  answering_ = true;
  if (outcome == release_outcome::already_lost && now() < what.final_after) {
    auto const due = what.final_after;
    undo_queue_.put_back(std::move(what), due, false);
    return;
  }
  report_undone(what, outcome);
  undo_queue_.done();
}

void lease_engine::report_undone(undo_queue::entry const& what, release_outcome outcome) noexcept {
  if (what.of) {
    finish_release(what.of->state(), outcome);
    return;
  }
  ++numbers_.undone;
  tell([&] { return events::undone{what.resource}; });
  queue_.wake(what.resource);
}

}  // namespace fenceguard
