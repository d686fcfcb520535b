#include "core/acquisition.hpp"

#include <algorithm>
#include <condition_variable>
#include <fenceguard/core/errors.hpp>
#include <memory>
#include <mutex>
#include <utility>

#include "core/holder_id.hpp"

namespace fenceguard {

acquisition::acquisition(lease_engine& engine, lease_request const& request)
    : engine_{engine}, request_{request}, started_{engine.now()} {}

std::optional<lease> acquisition::run() {
  if (request_.stop.stop_requested()) return give_up();
  return request_.wait > request_.wait.zero() ? run_in_line() : run_once();
}

std::optional<lease> acquisition::run_once() { return conclude(await_tokens(ask())); }

std::optional<lease> acquisition::run_in_line() {
  auto const wait_end = started_ + request_.wait;
  auto last = answer::busy;
  bool const ask_first = !engine_.queue_.has_line(request_.resource);
  if (ask_first) {
    last = ask();
    if (last == answer::granted || last == answer::cancelled) return conclude(last);
  }
  wait_queue::place mine{engine_.queue_, request_.resource, request_.stop, ask_first};
  if (ask_first) note(mine, last);
  for (;;) {
    auto const turn = mine.await(wait_end);
    if (turn == wait_queue::place::turn::stopped) return give_up();
    if (turn == wait_queue::place::turn::time_over) break;
    last = ask();
    note(mine, last);
    if (last == answer::granted || last == answer::cancelled) return conclude(last);
  }
  // Nobody is told "busy" on no other ground than that the head of the line waits for an answer, or
  // that tokens were being fetched.
  auto const attempts = attempts_;
  if (attempts_ == 0 && !mine.answered()) last = ask();
  if (!mine.answered()) last = await_tokens(last);
  if (attempts_ != attempts) note(mine, last);
  if (last == answer::granted || last == answer::cancelled) return conclude(last);
  if (last == answer::again && !mine.answered()) return conclude(last);
  failure_ = mine.failure();
  return conclude(failure_.empty() ? answer::busy : answer::failed);
}

acquisition::answer acquisition::await_tokens(answer last) {
  auto const give_up_at = started_ + engine_.settings_.command_timeout;
  while (last == answer::again && engine_.now() + hint_ < give_up_at) {
    if (!pause(hint_)) return answer::cancelled;
    last = ask();
  }
  return last;
}

void acquisition::note(wait_queue::place& mine, answer what) {
  switch (what) {
    case answer::granted:
      return mine.granted(request_.ttl);
    case answer::busy:
      return mine.busy(hint_);
    case answer::again:
      return mine.again(hint_);
    case answer::failed:
      return mine.failed(failure_);
    case answer::cancelled:
      return;  // the next in line asks at once
  }
}

acquisition::answer acquisition::ask() {
  auto const holder = new_holder_id();
  auto const ttl = ttl_to_ask_for();
  auto const deadline = engine_.now() + engine_.settings_.command_timeout;
  ++attempts_;
  ++engine_.numbers_.attempts;
  auto const reply = [&] {
    try {
      return engine_.backend_->try_acquire({.resource = request_.resource,
                                            .holder = holder,
                                            .label = request_.label,
                                            .ttl = ttl,
                                            .deadline = deadline});
    } catch (error const& failed) {
      engine_.tell_error("acquire", failed.what());
      throw;
    }
  }();
  if (auto const* given = std::get_if<lease_backend::granted>(&reply)) {
    return received(holder, *given, ttl);
  }
  if (auto const* unknown = std::get_if<lease_backend::unknown>(&reply)) {
    return unanswered(holder, deadline, unknown->reason);
  }
  if (auto const* refused = std::get_if<lease_backend::not_applied>(&reply)) {
    failure_ = refused->reason;
    engine_.tell_error("acquire", failure_);
    return answer::failed;
  }
  engine_.answering_ = true;
  if (auto const* later = std::get_if<lease_backend::again>(&reply)) {
    hint_ = std::max(later->pause, std::chrono::milliseconds{1});
    return answer::again;
  }
  hint_ = std::get<lease_backend::busy>(reply).remaining;
  return answer::busy;
}

acquisition::answer acquisition::unanswered(std::string const& holder, time_point deadline,
                                            std::string const& reason) {
  failure_ = reason;
  engine_.answering_ = false;
  engine_.tell_error("acquire", reason);
  auto const margin = engine_.drift(engine_.settings_.command_timeout);
  engine_.undo_later({.resource = request_.resource,
                      .holder = holder,
                      .expires = deadline + request_.ttl + engine_.drift(request_.ttl) + margin,
                      .final_after = deadline + margin});
  return answer::failed;
}

acquisition::answer acquisition::received(std::string const& holder,
                                          lease_backend::granted const& given,
                                          std::chrono::milliseconds ttl) {
  engine_.answering_ = true;
  auto const now = engine_.now();
  undo_queue::entry const take_back{
      .resource = request_.resource, .holder = holder, .expires = now + ttl + engine_.drift(ttl)};
  if (request_.stop.stop_requested()) {
    engine_.undo_now(take_back);
    return answer::cancelled;
  }
  if (now >= given.sent_at + std::min(ttl, given.validity) - engine_.drift(ttl)) {
    failure_ = "the grant came when its time was already over";
    engine_.tell_error("acquire", failure_);
    engine_.undo_later(take_back);
    return answer::failed;
  }
  admit(holder, given, ttl, take_back.expires);
  return answer::granted;
}

void acquisition::admit(std::string const& holder, lease_backend::granted const& given,
                        std::chrono::milliseconds ttl, time_point server_end) {
  auto state = std::make_unique<grant::record>();
  auto& made = *state;
  made.resource = request_.resource;
  made.holder = holder;
  made.ttl = request_.ttl;
  made.renew = request_.renew;
  if (request_.max_hold > request_.max_hold.zero()) {
    made.hold_end = given.sent_at + request_.max_hold;
  }
  made.engine = engine_.shared_from_this();
  made.token.store(given.token.value());
  made.server_end.store(server_end);
  auto shared = std::make_shared<grant>(std::move(state));
  made.self = shared;
  auto const term = engine_.term_of(made, {given.sent_at, ttl, given.validity});
  if (!engine_.schedule_.add(made, term)) {
    throw invalid_request{"acquire() was called while the lease store was being destroyed"};
  }
  ++engine_.numbers_.held;
  ++engine_.numbers_.granted;
  taken_.emplace(std::move(shared));
}

std::optional<lease> acquisition::give_up() {
  ++engine_.numbers_.busy;
  engine_.tell([&] { return events::busy{request_.resource, waited(), attempts_}; });
  return std::nullopt;
}

std::optional<lease> acquisition::conclude(answer last) {
  switch (last) {
    case answer::granted:
      engine_.tell([&] {
        return events::granted{request_.resource, taken_->token(), waited(), attempts_};
      });
      return std::move(taken_);
    case answer::again:
      throw token_source_unavailable{"acquire " + request_.resource +
                                     ": another caller has not fetched new tokens in time"};
    case answer::failed:
      throw lease_store_unavailable{"acquire " + request_.resource + ": " + failure_};
    case answer::busy:
    case answer::cancelled:
      break;
  }
  return give_up();
}

bool acquisition::pause(std::chrono::milliseconds time) const {
  auto const& clock = *engine_.settings_.clock;
  auto const end = clock.now() + time;
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock{mutex};
  for (auto now = clock.now(); now < end && !request_.stop.stop_requested(); now = clock.now()) {
    auto const nap = std::min<std::chrono::nanoseconds>(end - now, clock.longest_wait());
    wake.wait_for(lock, request_.stop, nap, [] { return false; });
  }
  return !request_.stop.stop_requested();
}

std::chrono::microseconds acquisition::waited() const {
  return std::chrono::duration_cast<std::chrono::microseconds>(engine_.now() - started_);
}

std::chrono::milliseconds acquisition::ttl_to_ask_for() const {
  bool const capped = request_.max_hold > request_.max_hold.zero();
  return capped ? std::min(request_.ttl, request_.max_hold) : request_.ttl;
}

}  // namespace fenceguard
