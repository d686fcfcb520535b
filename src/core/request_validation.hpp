#pragma once

#include <chrono>
#include <fenceguard/core/lease_request.hpp>
#include <fenceguard/core/lease_store.hpp>
#include <string>
#include <string_view>

namespace fenceguard {

/// Each throws invalid_request with a message that names the field and what is allowed.
void validate(lease_store_settings const& settings);
void validate(lease_request const& request);
void validate(lease_set_request const& request);
void validate_resource(std::string const& resource);

/// What an engine gives a backend, and another caller of a backend might not: a holder as
/// new_holder_id() makes it, and a ttl of a millisecond at least.
void validate_attempt(std::string_view holder, std::chrono::milliseconds ttl);

}  // namespace fenceguard
