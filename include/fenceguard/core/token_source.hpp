#pragma once

#include <cstdint>
#include <fenceguard/core/fencing_token.hpp>

namespace fenceguard {

/// Where fencing tokens come from: something durable that never hands out a number twice, also
/// after a crash, a restore or a promotion. postgres::token_source is the one for production: the
/// database that will judge the tokens issues them (compare the timestamp oracle of Percolator,
/// Peng and Dabek, OSDI 2010, section 2.3).
class token_source {
 public:
  static constexpr std::int64_t max_count = 100'000'000;

  virtual ~token_source() = default;

  /// Reserves `count` consecutive tokens (1 … max_count) and returns the first. When it returns,
  /// the reservation is durable, and each of the tokens is higher than all that were reserved
  /// before the call began. A call that fails may leave a gap; gaps are harmless.
  ///
  /// Throws invalid_request for a count out of range, token_source_unavailable where the source
  /// cannot be reached within its own time limit or refuses, schema_mismatch where it is not set
  /// up. May be called from any thread.
  [[nodiscard]] virtual fencing_token reserve(std::int64_t count) = 0;

 protected:
  token_source() = default;
  token_source(token_source const&) = default;
  token_source& operator=(token_source const&) = default;
};

}  // namespace fenceguard
