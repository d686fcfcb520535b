#pragma once

#include <string>
#include <vector>

#include "redis/connection.hpp"

namespace fenceguard::cli {

/// The servers that give the leases of a Redis URL, as far as they can be found now: the one it
/// names, the primary that its sentinels name, or the primaries of its cluster. Throws
/// invalid_request for a bad URL, lease_store_unavailable where they cannot be found.
[[nodiscard]] std::vector<redis::connection_options> lease_servers(std::string const& url);

}  // namespace fenceguard::cli
