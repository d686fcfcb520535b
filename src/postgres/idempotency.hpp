#pragma once

#include <fenceguard/postgres/idempotency_key.hpp>
#include <string>

namespace fenceguard::postgres {

// Throws invalid_request where a field of the key is out of its range.
void check(idempotency_key const& key);

// The text of a JSON value as it is sent. Throws invalid_request where it is no UTF-8; `what` names
// it in the message.
std::string json_text(nlohmann::json const& value, char const* what);

}  // namespace fenceguard::postgres
