#pragma once

#include <string>
#include <vector>

#include "cli/diagnosis.hpp"

namespace fenceguard::cli {

/// Looks at a live Redis as the URL's user sees it: version, role, eviction, persistence, replicas,
/// access, memory, clock. Changes nothing. Throws lease_store_unavailable where the server cannot
/// be reached, invalid_request where the URL names none; what it refuses to show is a finding.
[[nodiscard]] std::vector<diagnosis> check_redis(std::string const& url,
                                                 examination const& how = {});

/// Whether a value of the setting `bind` lets in more than this machine.
[[nodiscard]] bool binds_beyond_loopback(std::string_view bind);

}  // namespace fenceguard::cli
