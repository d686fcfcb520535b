#pragma once

#include <chrono>
#include <fenceguard/core/token_source.hpp>
#include <memory>
#include <string>

namespace fenceguard::postgres {

struct token_source_options {
  /// libpq's connection string or URI; empty: libpq's own environment variables.
  std::string url{};
  /// Bounds one reservation, the connecting included: 100 ms … 60 s.
  std::chrono::milliseconds timeout{5'000};
};

/// Tokens from fenceguard.reserve_tokens() in the database that will judge them. Connects at the
/// first reservation, keeps the connection, and connects anew after a failure. Every member may be
/// called from any thread; reservations wait for each other.
class token_source final : public fenceguard::token_source {
 public:
  /// Does not connect. Throws invalid_request for a timeout out of range.
  explicit token_source(std::string const& url);
  explicit token_source(token_source_options options);
  ~token_source() override;

  /// See fenceguard::token_source. Throws schema_mismatch where the database lacks the schema.
  [[nodiscard]] fencing_token reserve(std::int64_t count) override;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace fenceguard::postgres
