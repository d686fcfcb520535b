#include "core/grant_numbering.hpp"

#include <fenceguard/core/errors.hpp>
#include <string>
#include <system_error>
#include <utility>

#include "core/fork_detection.hpp"
#include "core/sleep_by_clock.hpp"

namespace fenceguard {
grant_numbering::grant_numbering(token_source& source, observer* told)
    : source_{source}, told_{told}, process_{process_generation()} {}

grant_numbering::~grant_numbering() { close(); }

void grant_numbering::close() noexcept {
  if (process_generation() != process_) {
    if (state_) abandon_in_child(std::shared_ptr<void>{std::move(state_)});
    return;
  }
  {
    std::lock_guard const held{state_->mutex};
    if (state_->closing) return;
    state_->closing = true;
  }
  state_->work.notify_all();
  state_->done.notify_all();
  state_->thread.finish();
}

fencing_token grant_numbering::reserve_one(time_point deadline) {
  if (process_generation() != process_) {
    throw invalid_request{"a lease store cannot be used in a forked child process"};
  }
  auto& shared = *state_;
  auto const mine = std::make_shared<job>();
  std::unique_lock held{shared.mutex};
  if (shared.closing) throw token_source_unavailable{"the lease store is being closed"};
  try {
    if (!shared.thread.started()) shared.thread.start([this] { run(); });
  } catch (std::system_error const& e) {
    throw token_source_unavailable{std::string{"no thread to reserve tokens: "} + e.what()};
  }
  shared.waiting.push_back(mine);
  shared.work.notify_one();
  while (!mine->done) {
    if (shared.closing) throw token_source_unavailable{"the lease store is being closed"};
    if (boottime::now() >= deadline) {
      throw token_source_unavailable{"a token was not reserved in time"};
    }
    sleep_by_clock(held, shared.done, deadline);
  }
  if (mine->result.failure) mine->result.failure->raise();
  return *mine->result.first;
}

fencing_token grant_numbering::reserve_above(std::optional<fencing_token> above,
                                             time_point deadline) {
  auto const token = reserve_one(deadline);
  if (!above || token > *above) return token;
  throw token_source_unavailable{
      "the token source is behind the database: it reserved " + std::to_string(token.value()) +
      " where " + std::to_string(above->value()) + " has been accepted; is it the same database?"};
}

void grant_numbering::run() noexcept {
  auto& shared = *state_;
  std::unique_lock held{shared.mutex};
  for (;;) {
    shared.work.wait(held, [&] { return shared.closing || !shared.waiting.empty(); });
    if (shared.closing) return;
    auto const jobs = std::exchange(shared.waiting, {});
    held.unlock();
    auto const range = reserve(source_, static_cast<std::int64_t>(jobs.size()), told_);
    held.lock();
    std::int64_t offset = 0;
    for (auto const& one : jobs) {
      one->result = range;
      if (range.first) one->result.first = fencing_token{range.first->value() + offset++};
      one->done = true;
    }
    shared.done.notify_all();
  }
}

}  // namespace fenceguard
