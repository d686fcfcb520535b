#pragma once

#include <chrono>
#include <cstddef>
#include <fenceguard/core/events.hpp>
#include <memory>
#include <vector>

#include "redis/connection.hpp"
#include "redis/redlock_ballot.hpp"
#include "redis/redlock_server.hpp"

namespace fenceguard::redis {

/// The servers of a quorum, with a thread and a connection each for one kind of traffic. Any
/// thread; not for use in a forked child, which must not destroy it either.
class redlock_panel {
 public:
  /// Does not connect. Throws invalid_request.
  redlock_panel(std::vector<connection_options> const& servers, observer* told);

  [[nodiscard]] std::size_t size() const noexcept { return servers_.size(); }

  /// Asks all servers that the ballot has not left out, at the same time. Does not wait.
  void cast(std::shared_ptr<redlock_ballot> const& what);

  /// Ends the threads. Votes that are outstanding come at once, except that servers that answer
  /// have a moment for what is to be given back. May be called again.
  void close() noexcept;

 private:
  std::vector<std::unique_ptr<redlock_server>> servers_;
};

}  // namespace fenceguard::redis
