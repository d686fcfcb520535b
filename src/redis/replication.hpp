#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <fenceguard/redis/lease_store.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "redis/route.hpp"

namespace fenceguard::redis {

/// Runs scripts whose effect is to be on other servers, or on disk, before the caller goes on:
/// WAIT, WAITAOF.
///
/// Both speak of the writes of the connection they are sent on, and hold up all that is sent behind
/// them there. So each run has connections to itself, from a pool, and what waits for a replica
/// delays nobody but its own caller.
///
/// Any thread; in a forked child as connection.
class replication {
 public:
  /// More connections than this to one server are not made; further callers wait for one.
  static constexpr std::size_t most_connections = 16;

  struct outcome {
    result answer;
    /// Why the effect of `answer` is not known to be where it should be; empty where it is, and
    /// where the script had no effect to wait for.
    std::string shortfall{};
  };

  /// Does not connect. `partitions` as for route. Throws invalid_request for options out of range.
  replication(std::shared_ptr<topology> where, unsigned partitions,
              replication_options const& options);
  replication(replication const&) = delete;
  replication& operator=(replication const&) = delete;
  ~replication();

  [[nodiscard]] bool wanted() const noexcept { return wanted(options_); }
  [[nodiscard]] static bool wanted(replication_options const& options) noexcept {
    return options.replicas_to_wait > 0 || options.fsync_to_wait > 0;
  }

  /// Runs a script as route::evaluate() does and, where `has_effect` says so of its answer, waits.
  [[nodiscard]] outcome evaluate(script const& what, script_call const& with, unsigned partition,
                                 time_point deadline,
                                 std::function<bool(result const&)> const& has_effect);

  /// Asks the server for WAITAOF, where fsync_to_wait needs it. Throws invalid_request where it
  /// knows none or writes no append-only file, lease_store_unavailable where it does not answer.
  void require_support(time_point deadline);

  void shutdown() noexcept;

 private:
  class borrowed;

  [[nodiscard]] std::vector<command> commands(std::chrono::milliseconds timeout) const;
  [[nodiscard]] std::string shortfall(route::followed const& what,
                                      std::chrono::milliseconds timeout) const;
  [[nodiscard]] std::unique_ptr<route> take(time_point deadline);
  void give_back(std::unique_ptr<route> one) noexcept;

  std::shared_ptr<topology> const topology_;
  unsigned const partitions_;
  replication_options const options_;

  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::unique_ptr<route>> idle_;
  std::vector<route*> all_;
  bool closed_ = false;
};

}  // namespace fenceguard::redis
