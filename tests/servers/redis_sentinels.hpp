#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "servers/child_process.hpp"
#include "servers/redis_server.hpp"
#include "servers/temporary_directory.hpp"

namespace fenceguard::test_servers {

// A private primary with two replicas, and three sentinels that watch them. One thread at a time.
class redis_sentinels {
 public:
  static constexpr char const* service = "orders";

  // Returns once every sentinel knows the two replicas and the two other sentinels.
  redis_sentinels();
  // All connections are encrypted, except those of this object to the sentinels.
  explicit redis_sentinels(std::optional<redis_server::tls> encrypted);

  // redis+sentinel://127.0.0.1:p1,127.0.0.1:p2,127.0.0.1:p3/orders, with TLS rediss+sentinel://…
  std::string url() const;
  std::vector<int> sentinel_ports() const;

  // The server that the sentinels name.
  redis_server& primary();
  // All three; which of them is the primary changes.
  std::array<redis_server, 3>& servers() noexcept { return servers_; }

  // The sentinels make another server the primary; the old one follows it. Returns once all
  // sentinels agree and both others follow.
  void fail_over();
  // Kills the primary; returns once the sentinels have made another. Not to be used while a server
  // is down already.
  void kill_primary();
  // Starts again what kill_primary() has killed; returns once it follows the primary.
  void revive();
  // All three serve, two of them as replicas of the one that all sentinels name.
  void wait_until_settled();

 private:
  struct sentinel {
    temporary_directory directory{};
    int port = 0;
    int tls_port = 0;                      // where there is TLS
    std::vector<child_process> process{};  // one, once started
  };

  void start(sentinel& one);
  int named_port(int sentinel_port) const;
  void wait_for_another_than(int port);

  std::optional<redis_server::tls> encrypted_;
  std::array<redis_server, 3> servers_;
  std::array<sentinel, 3> sentinels_;
};

}  // namespace fenceguard::test_servers
