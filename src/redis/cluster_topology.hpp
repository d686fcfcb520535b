#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "redis/discovery.hpp"
#include "redis/topology.hpp"

namespace fenceguard::redis {

/// The slot of a hash tag: its CRC16 (XMODEM) modulo 16384.
/// https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
[[nodiscard]] std::uint16_t slot_of(std::string_view tag) noexcept;

/// A Redis Cluster. All keys of a partition carry its number as their hash tag, so each partition
/// lies in one slot. Learns where those slots are from any node that answers CLUSTER SLOTS, and
/// from every MOVED; follows ASK for one request. A user who may not call CLUSTER SLOTS is sent to
/// any node, whose MOVED says the rest.
///
/// What a node says of itself by MOVED is kept against another's map, which may be older, until the
/// server that it names fails.
class cluster_topology final : public topology {
 public:
  /// `nodes`: some of the cluster's. `connecting`: how to connect to all of them. Throws
  /// invalid_request for a database other than 0.
  cluster_topology(std::vector<address> nodes, unsigned partitions, connection_options connecting);

  [[nodiscard]] location locate(unsigned partition, time_point deadline) override;
  [[nodiscard]] next_step learn(unsigned partition, address const& from,
                                result const& outcome) override;
  [[nodiscard]] connection_options const& connecting() const noexcept override {
    return connecting_;
  }

 private:
  struct place {
    bool known = false;
    address server{};  // where it is not known: the last one
  };
  struct slot_map {
    std::vector<std::optional<address>> primaries;  // by partition
    std::vector<address> nodes;                     // all of the cluster's
  };

  [[nodiscard]] std::string refresh(unsigned partition, time_point deadline);
  [[nodiscard]] std::vector<address> candidates();
  [[nodiscard]] bool learn_map(unsigned partition, address const& node, result const& outcome,
                               std::string& errors);
  [[nodiscard]] slot_map read_map(address const& node, reply_view answer) const;
  [[nodiscard]] bool doubt(address const& server);

  connection_options const connecting_;
  std::vector<std::uint16_t> const slots_;  // by partition
  std::vector<address> const given_;

  /// Whom to ask next. Belongs to the caller that discovers.
  std::vector<address> nodes_;

  std::mutex mutex_;
  discovery discovery_;
  bool may_ask_ = true;        // false while CLUSTER SLOTS is refused to this user
  std::vector<place> places_;  // by partition
};

}  // namespace fenceguard::redis
