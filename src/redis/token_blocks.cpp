#include "redis/token_blocks.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <fenceguard/core/errors.hpp>
#include <system_error>
#include <utility>

#include "core/sleep_by_clock.hpp"

namespace fenceguard::redis {
token_blocks::token_blocks(token_source& source, settings how, offer_function offer)
    : source_{source}, how_{how}, offer_{std::move(offer)}, process_{::getpid()} {
  if (how_.block_size < 1 || how_.block_size > token_source::max_count) {
    throw invalid_request{"block_size must be 1 to " + std::to_string(token_source::max_count) +
                          ", not " + std::to_string(how_.block_size)};
  }
}

token_blocks::~token_blocks() { close(); }

void token_blocks::close() noexcept {
  if (::getpid() != process_) {
    static_cast<void>(signals_.release());
    return;
  }
  std::unique_ptr<std::thread> thread;
  {
    std::lock_guard const held{signals_->mutex};
    closing_ = true;
    thread = std::move(signals_->thread);
  }
  signals_->work.notify_all();
  signals_->done.notify_all();
  if (thread) thread->join();
}

void token_blocks::fetch(unsigned partition, std::string_view ticket, time_point deadline) {
  check_usable();
  std::unique_lock held{signals_->mutex};
  auto const job = enqueue(partition, ticket);
  wait_for(held, *job, deadline);
  if (job->failure) job->failure->raise();
}

void token_blocks::fetch_ahead(unsigned partition, std::string_view ticket) {
  check_usable();
  std::lock_guard const held{signals_->mutex};
  if (!closing_) enqueue(partition, ticket);
}

void token_blocks::throw_recent_failure(unsigned partition, std::chrono::microseconds max_age) {
  check_usable();
  std::lock_guard const held{signals_->mutex};
  if (partition >= recent_.size() || !recent_[partition]) return;
  auto const& recent = *recent_[partition];
  if (boottime::now() - recent.at < max_age) recent.what.raise();
}

// A request for the same ticket is the same request. One for another ticket is not: the reservation
// that is under way may have begun before the data set behind that ticket asked.
token_blocks::block_ptr token_blocks::enqueue(unsigned partition, std::string_view ticket) {
  auto const same = std::find_if(blocks_.begin(), blocks_.end(), [&](block_ptr const& job) {
    return job->partition == partition && job->ticket == ticket;
  });
  if (same != blocks_.end()) return *same;
  if (recent_.size() <= partition) recent_.resize(partition + 1);
  blocks_.push_back(std::make_shared<block_job>(block_job{partition, std::string{ticket}}));
  start_thread();
  return blocks_.back();
}

void token_blocks::start_thread() {
  if (closing_) return;
  try {
    if (!signals_->thread) signals_->thread = std::make_unique<std::thread>([this] { run(); });
  } catch (std::system_error const& e) {
    throw token_source_unavailable{std::string{"no thread to reserve tokens: "} + e.what()};
  }
  signals_->work.notify_one();
}

void token_blocks::check_usable() const {
  if (::getpid() != process_) {
    throw invalid_request{"a lease store cannot be used in a forked child process"};
  }
}

void token_blocks::wait_for(std::unique_lock<std::mutex>& held, block_job const& job,
                            time_point deadline) {
  while (!job.done) {
    if (closing_) throw token_source_unavailable{"the lease store is being closed"};
    if (boottime::now() >= deadline) {
      throw token_source_unavailable{"tokens were not reserved in time; it goes on"};
    }
    sleep_by_clock(held, signals_->done, deadline);
  }
}

void token_blocks::run() noexcept {
  std::unique_lock held{signals_->mutex};
  for (;;) {
    signals_->work.wait(held, [this] { return closing_ || !blocks_.empty(); });
    if (closing_) return;
    serve_block(held);
  }
}

void token_blocks::serve_block(std::unique_lock<std::mutex>& held) {
  auto const job = blocks_.front();
  held.unlock();
  auto failure = reserve_and_offer(*job);
  held.lock();
  auto& recent = recent_[job->partition];
  recent.reset();
  if (failure) recent = recent_failure{boottime::now(), *failure};
  job->failure = std::move(failure);
  job->done = true;
  blocks_.pop_front();
  signals_->done.notify_all();
}

std::optional<token_blocks::failed> token_blocks::reserve_and_offer(block_job const& job) {
  auto const [first, failure] = reserve(source_, how_.block_size, how_.observer);
  if (!first) return failure;
  auto const answer = offer_(job.partition, job.ticket, *first, how_.block_size);
  auto const partition = std::to_string(job.partition);
  tell(events::tokens_reserved{partition, *first, how_.block_size, answer == offer_answer::taken});
  if (answer != offer_answer::behind) return std::nullopt;
  return failed{failed::kind::unavailable,
                "the token source went backwards: it reserved " + std::to_string(first->value()) +
                    ", which Redis has had before; is it the same database as before?"};
}

void token_blocks::tell(event const& what) noexcept {
  if (how_.observer != nullptr) how_.observer->on_event(what);
}

}  // namespace fenceguard::redis
