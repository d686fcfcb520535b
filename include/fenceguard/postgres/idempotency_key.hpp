#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

namespace fenceguard::postgres {

/// Names a request so that it takes effect once, however often it is tried. The client makes the
/// key before its first try and keeps it for every retry.
struct idempotency_key {
  static constexpr std::size_t max_scope_bytes = 128;
  static constexpr std::size_t max_key_bytes = 256;

  /// Separates tenants and operations: 1 … 128 bytes of UTF-8.
  std::string scope{};
  /// 1 … 256 bytes of UTF-8, unique within the scope.
  std::string key{};
  /// What is asked for. Its SHA-256 (over the canonical form that PostgreSQL's jsonb gives) is
  /// kept; a repeat of the key with another request is refused with key_reused.
  nlohmann::json request{};
  /// How long the stored answer must be kept at least; forget_keys() may delete it afterwards.
  /// Until it is deleted it is honoured, so that expiry alone never lets a repeat through.
  std::chrono::hours retention{24 * 7};
};

}  // namespace fenceguard::postgres
