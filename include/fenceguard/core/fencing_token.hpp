#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace fenceguard {

/// A fencing token: a number that rises with every grant of a resource, so that the resource itself
/// can tell an older holder from a newer one.
///
/// The range is 1 … 2^53−1, the integers that Lua, JSON and JavaScript keep exact (IEEE 754
/// double). A value type; every member may be called from any thread.
class fencing_token {
 public:
  static constexpr std::int64_t min_value = 1;
  static constexpr std::int64_t max_value = (std::int64_t{1} << 53) - 1;

  /// Explicit, so that an arbitrary integer is never taken for a token.
  /// Throws invalid_request where `value` is outside the range.
  explicit fencing_token(std::int64_t value);

  [[nodiscard]] constexpr std::int64_t value() const noexcept { return value_; }

  friend auto operator<=>(fencing_token, fencing_token) noexcept = default;

 private:
  std::int64_t value_;
};

}  // namespace fenceguard

template <>
struct std::hash<fenceguard::fencing_token> {
  [[nodiscard]] std::size_t operator()(fenceguard::fencing_token token) const noexcept {
    return std::hash<std::int64_t>{}(token.value());
  }
};
