#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "redis/discovery.hpp"
#include "redis/topology.hpp"

namespace fenceguard::redis {

/// One primary, which the sentinels name, and its replicas. A server is believed to be the primary
/// when a sentinel says so and its own ROLE does not deny it (the procedure of
/// https://redis.io/docs/latest/develop/reference/sentinel-clients/). After an answer that no
/// primary gives, a broken connection or a silence, the sentinels are asked again.
class sentinel_topology final : public topology {
 public:
  /// `connecting`: how to connect to the primary. Throws invalid_request.
  sentinel_topology(url const& from, connection_options connecting);

  [[nodiscard]] location locate(unsigned partition, time_point deadline) override;
  [[nodiscard]] next_step learn(unsigned partition, address const& from,
                                result const& outcome) override;
  [[nodiscard]] connection_options const& connecting() const noexcept override {
    return connecting_;
  }

 private:
  [[nodiscard]] location discover(time_point deadline);
  [[nodiscard]] location ask(connection& sentinel, time_point deadline);
  [[nodiscard]] std::string denial(address const& candidate, time_point deadline) const;

  std::string const service_;
  connection_options const connecting_;

  /// Belongs to the caller that discovers; the last one that answered comes first.
  std::vector<std::unique_ptr<connection>> sentinels_;

  std::mutex mutex_;
  discovery discovery_;
  location known_;
  bool doubted_ = true;
};

}  // namespace fenceguard::redis
