#include "postgres/idempotency.hpp"

#include <fenceguard/core/errors.hpp>

namespace fenceguard::postgres {
namespace {

void check_name(std::string const& name, std::size_t max_bytes, char const* what) {
  if (name.empty() || name.size() > max_bytes) {
    throw invalid_request{std::string{"idempotency_key."} + what + " must have 1 to " +
                          std::to_string(max_bytes) + " bytes, not " + std::to_string(name.size())};
  }
  if (name.find('\0') != std::string::npos) {
    throw invalid_request{std::string{"idempotency_key."} + what + " holds a NUL character"};
  }
  json_text(name, what);  // refuses what is no UTF-8
}

}  // namespace

void check(idempotency_key const& key) {
  check_name(key.scope, idempotency_key::max_scope_bytes, "scope");
  check_name(key.key, idempotency_key::max_key_bytes, "key");
  if (key.retention < std::chrono::hours{1} || key.retention > std::chrono::hours{24 * 36'525}) {
    throw invalid_request{"idempotency_key.retention must be between 1 h and 100 years"};
  }
  json_text(key.request, "request");
}

std::string json_text(nlohmann::json const& value, char const* what) {
  try {
    return value.dump();
  } catch (nlohmann::json::exception const& failed) {
    throw invalid_request{std::string{what} + " is not valid as JSON: " + failed.what()};
  }
}

}  // namespace fenceguard::postgres
