#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "servers/redis_server.hpp"

namespace fenceguard::test_servers {

// A private Redis Cluster: three primaries that share the slots evenly, and a replica of each where
// asked for. One thread at a time, except that command() may be called beside everything else.
class redis_cluster {
 public:
  struct options {
    bool replicas = false;  // nodes 3, 4, 5 follow 0, 1, 2; one that dies is replaced in seconds
    std::optional<redis_server::tls> encrypted = {};  // clients and nodes alike
  };

  static constexpr std::size_t primaries = 3;

  // Returns once every node says that the cluster is whole.
  redis_cluster();
  explicit redis_cluster(options how);

  // redis+cluster://127.0.0.1:p1,127.0.0.1:p2,127.0.0.1:p3, with TLS rediss+cluster://…
  std::string url() const;
  std::vector<redis_server>& nodes() noexcept { return nodes_; }

  // Index of the primary that has the slot, by its own word.
  std::size_t owner_of(int slot);

  // A move in its steps. From begin_move() on, what is new lies at `to`, and what was there at
  // `from`, until move_keys() has moved it; from then on nothing comes back to `from`.
  void begin_move(int slot, std::size_t from, std::size_t to);
  void move_keys(int slot, std::size_t from, std::size_t to);
  void move_key(std::string const& key, std::size_t from, std::size_t to);
  void end_move(int slot, std::size_t to);
  // For a slot that nobody uses meanwhile: until its keys are back those at `to` are not seen.
  void cancel_move(int slot, std::size_t from, std::size_t to);
  void move_slot(int slot, std::size_t from, std::size_t to);

  // Makes a replica the primary by agreement of all, with the old primary's data.
  void fail_over_to(std::size_t replica);

  // One command about one key, at whichever node has it now.
  redis_reply command(std::vector<std::string> const& words) const;

  // How often the nodes that run have answered with this error since they were started.
  long long errors(std::string const& code);

  void wait_until_whole();

 private:
  std::string id_of(std::size_t node) const;
  void wait_until_all_know(int slot, std::size_t owner) const;
  std::size_t with_port(std::string const& port) const;

  options options_;
  std::vector<int> bus_ports_;
  std::vector<redis_server> nodes_;
};

}  // namespace fenceguard::test_servers
