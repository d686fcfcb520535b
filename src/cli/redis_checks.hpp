#pragma once

#include <string>
#include <vector>

#include "cli/diagnosis.hpp"
#include "redis/connection.hpp"

namespace fenceguard::cli {

/// Looks at one live Redis as its user sees it: version, role, eviction, persistence, replicas,
/// access, memory, clock. Changes nothing. Throws lease_store_unavailable where the server cannot
/// be reached; what it refuses to show is a finding.
[[nodiscard]] std::vector<diagnosis> check_redis_server(redis::connection_options const& which,
                                                        examination const& how = {});

/// Looks at all that a Redis URL names: the server, or the sentinels and the primary that they
/// name, or a cluster and its primaries (redis_deployment_checks.cpp). Throws as
/// check_redis_server(), and invalid_request for a bad URL.
[[nodiscard]] std::vector<diagnosis> check_redis(std::string const& url,
                                                 examination const& how = {});

/// Whether a value of the setting `bind` lets in more than this machine.
[[nodiscard]] bool binds_beyond_loopback(std::string_view bind);

}  // namespace fenceguard::cli
