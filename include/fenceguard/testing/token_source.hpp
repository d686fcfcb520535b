#pragma once

#include <atomic>
#include <cstdint>
#include <fenceguard/core/token_source.hpp>

namespace fenceguard::testing {

/// Tokens from a counter in memory, for users' own tests: they do not outlive the process. Every
/// member may be called from any thread.
class token_source final : public fenceguard::token_source {
 public:
  /// Throws invalid_request for a first token below 1.
  explicit token_source(std::int64_t first = 1);

  [[nodiscard]] fencing_token reserve(std::int64_t count) override;

  /// While set, reserve() throws token_source_unavailable.
  void set_available(bool available) noexcept { available_ = available; }

 private:
  std::atomic<std::int64_t> next_;
  std::atomic<bool> available_{true};
};

}  // namespace fenceguard::testing
