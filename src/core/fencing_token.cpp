#include <fenceguard/core/errors.hpp>
#include <fenceguard/core/fencing_token.hpp>
#include <string>

namespace fenceguard {

fencing_token::fencing_token(std::int64_t value) : value_{value} {
  if (value < min_value || value > max_value) {
    throw invalid_request{"fencing token " + std::to_string(value) + " is outside 1 ... " +
                          std::to_string(max_value)};
  }
}

}  // namespace fenceguard
