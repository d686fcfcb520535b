#pragma once

#include <cstdint>
#include <fenceguard/core/events.hpp>
#include <fenceguard/core/fencing_token.hpp>
#include <fenceguard/core/token_source.hpp>
#include <optional>
#include <string>

namespace fenceguard {

/// Why a token source gave nothing, in a form that several callers can be told: each is thrown an
/// exception of its own, since one shared object would be written to by all of them.
struct reservation_failure {
  enum class kind { unavailable, schema, invalid };
  kind what = kind::unavailable;
  std::string message{};

  /// Throws token_source_unavailable, schema_mismatch or invalid_request.
  [[noreturn]] void raise() const;
};

struct reservation {
  std::optional<fencing_token> first{};          ///< Of the range.
  std::optional<reservation_failure> failure{};  ///< Where there is no first.
};

/// Asks the source for `count` tokens that all lie within a token's range. Does not throw; tells
/// the observer, where there is one, of a failure.
[[nodiscard]] reservation reserve(token_source& source, std::int64_t count,
                                  observer* told) noexcept;

}  // namespace fenceguard
