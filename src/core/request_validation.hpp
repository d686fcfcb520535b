#pragma once

#include <fenceguard/core/lease_request.hpp>
#include <fenceguard/core/lease_store.hpp>
#include <string>

namespace fenceguard {

/// Each throws invalid_request with a message that names the field and what is allowed.
void validate(lease_store_settings const& settings);
void validate(lease_request const& request);
void validate(lease_set_request const& request);
void validate_resource(std::string const& resource);

}  // namespace fenceguard
