#include <chrono>

#include "core/lease_engine.hpp"

namespace fenceguard {

void lease_engine::run_watchdog() {
  lease_schedule::grants expired;
  while (schedule_.await_expired(expired)) {
    for (auto const& over : expired) announce_loss(over->state());
    expired.clear();
  }
}

bool lease_engine::still_held(grant::record& held) noexcept {
  if (held.phase.load() != grant_phase::held) return false;
  if (now() < held.deadline.load()) return true;
  if (!schedule_.expire(held)) return held.phase.load() == grant_phase::held;
  announce_loss(held);
  return false;
}

std::chrono::milliseconds lease_engine::remaining(grant::record& held) noexcept {
  if (forked() || !still_held(held)) return std::chrono::milliseconds{0};
  auto const left = held.deadline.load() - now();
  return std::max(std::chrono::duration_cast<std::chrono::milliseconds>(left),
                  std::chrono::milliseconds{0});
}

void lease_engine::announce_loss(grant::record& lost) noexcept {
  ++numbers_.lost;
  --numbers_.held;
  lost.lost.request_stop();
  tell([&] { return events::lost{lost.resource, fencing_token{lost.token.load()}, lost.loss}; });
  queue_.wake(lost.resource);
}

}  // namespace fenceguard
