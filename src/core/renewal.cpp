#include <algorithm>
#include <chrono>
#include <vector>

#include "core/lease_engine.hpp"

namespace fenceguard {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t largest_batch = 1024;

// A batch waits for its answers for a part of its shortest ttl only, so that there is time for more
// than one try before the deadline.
milliseconds patience(milliseconds shortest_ttl, milliseconds command_timeout) {
  return std::min(command_timeout, std::max(shortest_ttl / 4, milliseconds{10}));
}

milliseconds pause_after_no_answer(milliseconds ttl) { return std::max(ttl / 20, milliseconds{5}); }

}  // namespace

/// One call to the backend, and what came of it. Used again for the next: it keeps its memory.
struct lease_engine::renewal_round {
  lease_schedule::grants batch{};
  std::vector<lease_backend::renew_item> items{};
  std::vector<grant::record*> renewed_of{};  ///< Whose the items are.
  std::vector<grant::record*> lost{};
  std::size_t renewed = 0;
  std::size_t unanswered = 0;
  std::chrono::nanoseconds smallest_margin = std::chrono::nanoseconds::max();

  void clear() {
    batch.clear();
    items.clear();
    renewed_of.clear();
    lost.clear();
    renewed = unanswered = 0;
    smallest_margin = std::chrono::nanoseconds::max();
  }
};

void lease_engine::run_renewal() {
  renewal_round round;
  while (schedule_.await_due(round.batch, largest_batch)) {
    renew_batch(round);
    schedule_.end_renewal(round.batch);
    report(round);
    round.clear();
  }
}

void lease_engine::renew_batch(renewal_round& round) {
  auto const begin = now();
  auto shortest_ttl = lease_request::max_ttl;
  for (auto const& one : round.batch) {
    grant::record& held = one->state();
    auto const hold_left = std::chrono::duration_cast<milliseconds>(held.hold_end - begin);
    if (hold_left < lease_request::min_ttl) continue;  // runs out with what it has
    shortest_ttl = std::min(shortest_ttl, held.ttl);
    round.renewed_of.push_back(&held);
    round.items.push_back(
        {.resource = held.resource, .holder = held.holder, .ttl = std::min(held.ttl, hold_left)});
  }
  if (round.items.empty()) return;
  auto const deadline = begin + patience(shortest_ttl, settings_.command_timeout);
  for (std::size_t i = 0; i < round.items.size(); ++i) {
    auto const ttl = round.items[i].ttl;
    round.renewed_of[i]->server_end.store(deadline + ttl + drift(ttl));
  }
  backend_->renew(round.items, deadline);
  for (std::size_t i = 0; i < round.items.size(); ++i) {
    settle(*round.renewed_of[i], round.items[i], round);
  }
}

void lease_engine::settle(grant::record& held, lease_backend::renew_item const& item,
                          renewal_round& round) {
  switch (item.answer) {
    case lease_backend::renew_answer::renewed: {
      auto const margin = held.deadline.load() - now();
      if (!schedule_.extend(held, term_of(held, {item.sent_at, item.ttl, item.validity}))) break;
      ++round.renewed;
      round.smallest_margin = std::min(round.smallest_margin, margin);
      break;
    }
    case lease_backend::renew_answer::lost:
      if (schedule_.lose(held, events::loss_reason::refused_by_store)) round.lost.push_back(&held);
      break;
    case lease_backend::renew_answer::unknown:
      ++round.unanswered;
      schedule_.renew_again(held, now() + pause_after_no_answer(held.ttl));
      break;
  }
}

void lease_engine::report(renewal_round const& round) {
  if (!round.items.empty()) answering_ = round.unanswered < round.items.size();
  for (auto* const lost : round.lost) announce_loss(*lost);
  if (round.unanswered > 0) tell_error("renew", "no answer; trying again");
  if (round.renewed == 0) return;
  numbers_.renewed += round.renewed;
  tell([&] {
    using std::chrono::microseconds;
    return events::renewed{round.renewed,
                           std::chrono::duration_cast<microseconds>(round.smallest_margin)};
  });
}

}  // namespace fenceguard
