#include "core/lease_engine.hpp"

#include <algorithm>
#include <fenceguard/core/errors.hpp>
#include <system_error>
#include <utility>

#include "core/acquisition.hpp"
#include "core/fork_detection.hpp"
#include "core/request_validation.hpp"

namespace fenceguard {
namespace {

// What two clocks may differ by at any length of time: rounding to milliseconds at both ends.
constexpr std::chrono::nanoseconds least_drift = std::chrono::milliseconds{2};

}  // namespace

lease_engine::lease_engine(std::unique_ptr<lease_backend> backend,
                           lease_store_settings const& settings)
    : process_{process_generation()},
      settings_{settings},
      schedule_{*settings.clock},
      undo_queue_{*settings.clock},
      queue_{*settings.clock, *backend,
             [this](std::string_view operation, std::string_view message) {
               tell_error(operation, message);
             }},
      backend_{std::move(backend)} {
  backend_->set_hint_sink([this](std::string_view resource) { queue_.wake(resource); });
}

lease_engine::~lease_engine() = default;

bool lease_engine::forked() const noexcept { return process_generation() != process_; }

void lease_engine::require_same_process() const {
  if (forked()) {
    throw invalid_request{"this lease store belongs to the parent process: make one after fork()"};
  }
}

void lease_engine::tell_error(std::string_view operation, std::string_view message) noexcept {
  ++numbers_.store_errors;
  tell([&] { return events::store_error{operation, message}; });
}

std::chrono::nanoseconds lease_engine::drift(std::chrono::milliseconds ttl) const noexcept {
  std::chrono::duration<double, std::nano> const part = ttl * settings_.clock_drift;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(part) + least_drift;
}

lease_schedule::term lease_engine::term_of(grant::record const& held,
                                           sent_term const& sent) const noexcept {
  auto const deadline = sent.sent_at + std::min(sent.ttl, sent.validity) - drift(sent.ttl);
  bool const last = sent.ttl < held.ttl || deadline >= held.hold_end;
  bool const renewable = held.renew == renewal::automatic && !last;
  return {.deadline = std::min(deadline, held.hold_end),
          .renew_at = renewable ? sent.sent_at + held.ttl / 3 : time_point::max(),
          .last = last};
}

std::optional<lease> lease_engine::acquire(lease_request const& request) {
  require_same_process();
  validate(request);
  start_threads(request.renew);
  return acquisition{*this, request}.run();
}

std::optional<lease_set> lease_engine::acquire_all(lease_set_request const& request) {
  require_same_process();
  validate(request);
  auto const end = now() + request.wait;
  auto sorted = request.resources;
  std::sort(sorted.begin(), sorted.end());
  for (;;) {
    auto taken = take_all(request, sorted, end);
    if (!taken) return std::nullopt;
    // Waiting for the last ones may have outlived the first ones.
    bool const all_held = std::all_of(taken->begin(), taken->end(), [](lease const& one) {
      return !one.lost().stop_requested();
    });
    if (all_held) return taken;
    if (now() >= end || request.stop.stop_requested()) return std::nullopt;
  }
}

std::optional<lease_set> lease_engine::take_all(lease_set_request const& request,
                                                std::vector<std::string> const& sorted,
                                                time_point end) {
  std::vector<lease> taken;
  taken.reserve(sorted.size());
  for (auto const& resource : sorted) {
    auto const left = std::chrono::ceil<std::chrono::milliseconds>(end - now());
    auto one = acquire({.resource = resource,
                        .ttl = request.ttl,
                        .wait = std::max(left, std::chrono::milliseconds{0}),
                        .renew = request.renew,
                        .label = request.label,
                        .max_hold = request.max_hold,
                        .stop = request.stop});
    if (!one) return std::nullopt;
    taken.push_back(std::move(*one));
  }
  return lease_set{std::move(taken)};
}

std::optional<holder_info> lease_engine::inspect(std::string const& resource) {
  require_same_process();
  validate_resource(resource);
  return backend_->inspect(resource, now() + settings_.command_timeout);
}

lease_store_counters lease_engine::counters() const noexcept {
  return {.granted = numbers_.granted,
          .busy = numbers_.busy,
          .attempts = numbers_.attempts,
          .renewed = numbers_.renewed,
          .lost = numbers_.lost,
          .released = numbers_.released,
          .undone = numbers_.undone,
          .store_errors = numbers_.store_errors,
          .held = numbers_.held};
}

fencing_token lease_engine::advance(grant::record& held, std::optional<fencing_token> above) {
  if (forked()) throw lease_lost{"lease of the parent process, used in a forked child"};
  auto const require_held = [&] {
    if (!still_held(held)) throw lease_lost{"lease on " + held.resource + " is not held any more"};
  };
  require_held();
  fencing_token const before{held.token.load()};
  auto const answer =
      backend_->advance(held.resource, held.holder, above, now() + settings_.command_timeout);
  if (std::holds_alternative<lease_backend::lost>(answer)) {
    if (schedule_.lose(held, events::loss_reason::refused_by_store)) announce_loss(held);
    throw lease_lost{"lease on " + held.resource + " is not held any more, says its store"};
  }
  if (auto const* refused = std::get_if<lease_backend::not_applied>(&answer)) {
    tell_error("advance", refused->reason);
    throw lease_store_unavailable{"advance: " + refused->reason};
  }
  if (auto const* unanswered = std::get_if<lease_backend::unknown>(&answer)) {
    answering_ = false;
    tell_error("advance", unanswered->reason);
    throw lease_store_unavailable{"advance: " + unanswered->reason};
  }
  auto const fresh = std::get<lease_backend::advanced>(answer).token;
  if (fresh <= before || (above && fresh <= *above)) {
    tell_error("advance", "the store's new token is not higher than the old one");
    throw lease_store_unavailable{"advance: the store's new token is not higher than the old one"};
  }
  require_held();
  auto current = before.value();
  // Of several that run at once, the highest stays.
  while (current < fresh.value() && !held.token.compare_exchange_weak(current, fresh.value())) {
  }
  tell([&] { return events::advanced{held.resource, before, fresh}; });
  return fresh;
}

void lease_engine::close() noexcept {
  if (closed_.exchange(true)) return;
  if (answering_) undo_queue_.drain(now() + settings_.release_timeout);
  for (auto const& ended : schedule_.close()) announce_loss(ended->state());
  undo_queue_.close();
  backend_->close();
  std::lock_guard const guard{threads_mutex_};
  watchdog_.finish();
  renewal_.finish();
  undo_.finish();
}

void lease_engine::start_threads(renewal renew) {
  bool const needs_renewal = renew == renewal::automatic;
  if (watching_ && (!needs_renewal || renewing_)) return;
  std::lock_guard const guard{threads_mutex_};
  try {
    if (!watchdog_.started()) {
      watchdog_.start([self = shared_from_this()] { self->run_watchdog(); });
      watching_ = true;
    }
    if (needs_renewal && !renewal_.started()) {
      renewal_.start([self = shared_from_this()] { self->run_renewal(); });
      renewing_ = true;
    }
  } catch (std::system_error const& failed) {
    throw lease_store_unavailable{std::string{"no thread for the lease store: "} + failed.what()};
  }
}

}  // namespace fenceguard
