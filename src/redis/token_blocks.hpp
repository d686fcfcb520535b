#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <fenceguard/core/clock.hpp>
#include <fenceguard/core/events.hpp>
#include <fenceguard/core/fencing_token.hpp>
#include <fenceguard/core/token_source.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/reservation.hpp"

namespace fenceguard::redis {

/// Asks the token source, for a store whose data sets give out tokens from blocks.
///
/// The source has a time limit of its own, longer perhaps than a caller's. So one thread, started
/// at the first need, does the asking; callers wait for it until their own deadlines, and what
/// comes later still serves the next ones. Callers who need the same thing share one request.
///
/// Every member may be called from any thread. In a forked child they throw invalid_request.
class token_blocks {
 public:
  enum class offer_answer {
    taken,
    refused,     ///< The data set that asked is gone, or has a block by now.
    behind,      ///< The data set has had these tokens already: the source went backwards.
    unanswered,  ///< May have been taken.
  };
  /// Gives a block, first … first + count − 1, to the data set that asked for it with the ticket.
  /// Called on the thread of its own; must not throw.
  using offer_function = std::function<offer_answer(unsigned partition, std::string const& ticket,
                                                    fencing_token first, std::int64_t count)>;

  struct settings {
    std::int64_t block_size;
    fenceguard::observer* observer = nullptr;
  };

  /// `source` must outlive the object. Throws invalid_request for a block size out of range.
  token_blocks(token_source& source, settings how, offer_function offer);
  token_blocks(token_blocks const&) = delete;
  token_blocks& operator=(token_blocks const&) = delete;
  /// Waits for a reservation that is under way.
  ~token_blocks();

  /// Reserves a block and offers it; returns when that has been tried, whoever began it, or when
  /// the same was tried for another caller. That the block was refused is no error: the caller asks
  /// Redis again. Throws token_source_unavailable, also where the deadline comes first, and
  /// schema_mismatch or invalid_request where the source did.
  void fetch(unsigned partition, std::string_view ticket, time_point deadline);

  /// The same, without waiting. Failures are reported to the observer.
  void fetch_ahead(unsigned partition, std::string_view ticket);

  /// For a caller that another was preferred to: throws what the latest fetch for the partition
  /// threw, where it failed less than `max_age` ago and none has succeeded since.
  void throw_recent_failure(unsigned partition, std::chrono::microseconds max_age);

  /// Ends waiting calls, refuses later ones, and waits for a reservation that is under way.
  void close() noexcept;

 private:
  using failed = reservation_failure;
  struct block_job {
    unsigned partition;
    std::string ticket;
    bool done = false;
    std::optional<failed> failure{};
  };
  struct recent_failure {
    time_point at;
    failed what;
  };
  using block_ptr = std::shared_ptr<block_job>;

  block_ptr enqueue(unsigned partition, std::string_view ticket);
  void start_thread();
  void check_usable() const;
  void wait_for(std::unique_lock<std::mutex>& held, block_job const& job, time_point deadline);
  void run() noexcept;
  void serve_block(std::unique_lock<std::mutex>& held);
  std::optional<failed> reserve_and_offer(block_job const& job);
  void tell(event const& what) noexcept;

  token_source& source_;
  settings const how_;
  offer_function const offer_;
  pid_t const process_;

  /// Leaked in a forked child: the thread is not there to be joined, and a condition variable that
  /// it waited on cannot be destroyed.
  struct signals {
    std::mutex mutex;
    std::condition_variable work;
    std::condition_variable done;
    std::unique_ptr<std::thread> thread;
  };
  std::unique_ptr<signals> signals_ = std::make_unique<signals>();

  // Under the mutex.
  bool closing_ = false;
  std::deque<block_ptr> blocks_;  // the first one stays until it has been served
  std::vector<std::optional<recent_failure>> recent_;  // by partition
};

}  // namespace fenceguard::redis
