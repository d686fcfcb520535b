#pragma once

#include <fenceguard/core/lease_backend.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "redis/connection.hpp"

namespace fenceguard::redis {

struct listed_lease {
  std::string resource;
  holder_info held;
};

/// The leases that one server has under a store's prefix, by name. Looks with SCAN, a portion at a
/// time, so that the server goes on serving: what is taken or released meanwhile may be missing or
/// be there. Throws lease_store_unavailable where the server does not answer or refuses.
[[nodiscard]] std::vector<listed_lease> list_leases(connection& server, std::string_view prefix,
                                                    time_point deadline);

}  // namespace fenceguard::redis
