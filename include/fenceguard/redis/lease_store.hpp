#pragma once

#include <chrono>
#include <cstdint>
#include <fenceguard/core/lease_store.hpp>
#include <fenceguard/core/token_source.hpp>
#include <string>

namespace fenceguard::redis {

/// How a store numbers its grants.
enum class token_mode {
  /// From blocks that Redis hands out, where the server shows its identity; one reservation for
  /// each
  /// grant where it does not.
  automatic,
  /// One reservation in the token source for every grant, always.
  per_grant,
};

struct lease_store_options {
  /// redis://[user[:password]@]host[:port][/db], unix:///path[?db=N], rediss:// where hiredis has
  /// TLS. The password never appears in messages.
  std::string url{"redis://127.0.0.1:6379"};

  /// First part of every key; no braces, at most 64 bytes. Stores with the same prefix on the same
  /// servers share their leases.
  std::string prefix{"fenceguard"};

  token_mode tokens = token_mode::automatic;

  /// How many tokens are reserved at a time: 1 … 100,000,000. They are fetched ahead when a tenth
  /// is left.
  std::int64_t block_size = 1'000'000;

  lease_store_settings settings{};
};

/// Leases in one Redis (or Valkey) primary, version 6.2 or later. Each grant takes one round trip.
///
/// What it survives: FLUSHALL, eviction, restart without persistence and asynchronous failover
/// never let a token go backwards or be given twice; leases themselves may be lost then, and two
/// processes may believe that they hold one. The database refuses the older.
class lease_store final : public fenceguard::lease_store {
 public:
  /// Does not connect. `tokens` must outlive the store. Throws invalid_request for a bad URL or
  /// option.
  lease_store(lease_store_options const& options, token_source& tokens);
};

}  // namespace fenceguard::redis
