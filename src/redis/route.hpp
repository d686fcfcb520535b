#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "redis/connection.hpp"
#include "redis/script.hpp"
#include "redis/topology.hpp"

namespace fenceguard::redis {

/// The connections of one kind of traffic to the servers of a store, one to each. A request goes to
/// the server that serves its partition, and follows it to another one, within its deadline, where
/// it surely was not applied by the first.
///
/// Any thread; in a forked child as connection.
class route {
 public:
  struct routed_call {
    unsigned partition;
    script_call with;
  };

  /// For partitions 0 … partitions − 1. Does not connect.
  route(std::shared_ptr<topology> where, unsigned partitions);
  route(route const&) = delete;
  route& operator=(route const&) = delete;
  /// No call may be running.
  ~route();

  /// Runs a script whose keys belong to the partition. Outcomes as connection::call().
  [[nodiscard]] result evaluate(script const& what, script_call const& with, unsigned partition,
                                time_point deadline);

  /// Runs a script as evaluate() does and then, on the same connection, the commands that `next`
  /// makes of its answer. Nobody else may be using the route meanwhile.
  struct followed {
    result first;
    bool asked = false;            ///< Whether there was any command to follow.
    bool same_connection = false;  ///< The connection was not made again in between.
    std::vector<result> then;
  };
  [[nodiscard]] followed evaluate_then(
      script const& what, script_call const& with, unsigned partition, time_point deadline,
      std::function<std::vector<command>(result const&)> const& next);

  /// Runs one script many times, in one message for each server. Results come in the order of
  /// `calls`. A server that did not answer last time comes last, so that it takes no time away from
  /// the others.
  [[nodiscard]] std::vector<result> evaluate_all(script const& what,
                                                 std::span<routed_call const> calls,
                                                 time_point deadline);

  /// A command without a key, to the server that serves the partition.
  [[nodiscard]] result call(command const& what, unsigned partition, time_point deadline);

  /// As connection::shutdown(), for all of them, also for those that are still to be made.
  void shutdown() noexcept;

 private:
  struct server {
    explicit server(connection_options options) : link{std::move(options)} {}
    connection link;
    std::atomic<bool> answering{true};
  };
  struct place {
    std::atomic<std::uint64_t> version{0};  // of the topology when `at` was found
    std::atomic<server*> at{nullptr};
  };

  template <class Send>
  [[nodiscard]] result send(unsigned partition, time_point deadline, Send const& request);
  [[nodiscard]] server* find(unsigned partition, time_point deadline, result& failed);
  [[nodiscard]] server& open(address const& where);
  [[nodiscard]] bool to_another(server const& last, topology::next_step const& step,
                                unsigned partition, time_point deadline);

  std::shared_ptr<topology> const topology_;
  std::unique_ptr<place[]> const places_;

  std::mutex mutex_;
  bool closed_ = false;
  // Kept until the end: at most one for each address that was ever served from.
  std::vector<std::unique_ptr<server>> servers_;
};

}  // namespace fenceguard::redis
