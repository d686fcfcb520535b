#include <fenceguard/core/errors.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <string>

namespace fenceguard::testing {

token_source::token_source(std::int64_t first) : next_{fencing_token{first}.value()} {}

fencing_token token_source::reserve(std::int64_t count) {
  if (count < 1 || count > max_count) {
    throw invalid_request{"cannot reserve " + std::to_string(count) + " tokens: 1 ... " +
                          std::to_string(max_count) + " are allowed"};
  }
  if (!available_) throw token_source_unavailable{"the token source was made unavailable"};
  return fencing_token{next_.fetch_add(count)};
}

}  // namespace fenceguard::testing
