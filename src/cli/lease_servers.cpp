#include "cli/lease_servers.hpp"

#include <algorithm>
#include <chrono>
#include <fenceguard/core/errors.hpp>

#include "redis/key_space.hpp"
#include "redis/topology.hpp"
#include "redis/url.hpp"

namespace fenceguard::cli {

std::vector<redis::connection_options> lease_servers(std::string const& url) {
  constexpr std::chrono::seconds patience{5};
  auto const parsed = redis::parse_url(url);
  // Enough partitions to come by every primary of a cluster.
  auto const partitions =
      parsed.kind == redis::deployment::cluster ? redis::key_space::max_partitions : 1U;
  auto const servers = redis::make_topology(parsed, partitions, patience);
  std::vector<redis::connection_options> found;
  for (unsigned partition = 0; partition < partitions; ++partition) {
    auto here = servers->locate(partition, boottime::now() + patience);
    if (!here.found) throw lease_store_unavailable{here.error};
    bool const known = std::any_of(found.begin(), found.end(),
                                   [&](auto const& one) { return one.server == here.server; });
    if (known) continue;
    found.push_back(servers->connecting());
    found.back().server = here.server;
  }
  return found;
}

}  // namespace fenceguard::cli
