#pragma once

#include <fenceguard/core/lease_backend.hpp>
#include <optional>
#include <string_view>

namespace fenceguard::redis {

/// Takes apart what a lease's key holds: `holder token since label`, with token 0 while the grant
/// has not been numbered and `since` in microseconds since 1970. `remaining` stays zero. Nothing
/// where it is no such text.
[[nodiscard]] std::optional<holder_info> parse_lease(std::string_view value);

}  // namespace fenceguard::redis
