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

/// Where a grant is to be, beyond the primary's memory, before acquire() returns it.
///
/// What it gives: a lease that has reached the replica which is promoted after a failure of the
/// primary is still there, so that fewer failovers let two processes believe that they hold it.
/// What it does not give: it is no consensus. A failover may promote a replica that has not
/// acknowledged, and an acknowledgement is "received" (WAIT) or "on disk" (WAITAOF), not "will not
/// be lost" (https://redis.io/docs/latest/commands/wait/, …/waitaof/). What keeps a late writer out
/// is the fencing token, with or without this. Renewals and advance() are not waited for.
///
/// A grant that is acknowledged by fewer is undone, and acquire() throws lease_store_unavailable
/// with their number (after the wait that the request allows for). Where this is used,
/// acquisitions go over connections of their own, at most 16, one each at a time: WAIT speaks of
/// the writes of its own connection and holds up what comes after it there.
struct replication_options {
  /// How many replicas must have received the grant: 0 … 1000. The primary does not count.
  unsigned replicas_to_wait = 0;

  /// How many servers must have the grant in their append-only files on disk: 0 … 1000. The primary
  /// is the first of them, the others are replicas. Needs Redis 7.2; the store's constructor asks
  /// the server, for settings.command_timeout at most.
  unsigned fsync_to_wait = 0;

  /// How long the acknowledgements may take: 1 ms … half of settings.command_timeout.
  std::chrono::milliseconds timeout{100};
};

struct lease_store_options {
  /// redis://[user[:password]@]host[:port][/db], unix:///path[?db=N],
  /// redis+sentinel://s1[:port],s2,s3/service or redis+cluster://n1[:port],n2,n3. The password
  /// never appears in messages. `rediss` in place of `redis` means TLS to every server; parameters
  /// cacert, cacertdir, cert, key and sni as the options of redis-cli. Certificates are always
  /// verified.
  std::string url{"redis://127.0.0.1:6379"};

  /// First part of every key; no braces, at most 64 bytes. Stores with the same prefix on the same
  /// servers share their leases.
  std::string prefix{"fenceguard"};

  /// Over how many partitions the resources are spread: 1 … 1,024. A partition's keys lie in one
  /// slot of a cluster, and it has a block of tokens of its own. Zero: 64 for a cluster, else 1.
  /// All stores with one prefix must agree; one that does not is refused with invalid_request.
  unsigned partitions = 0;

  token_mode tokens = token_mode::automatic;

  /// How many tokens are reserved at a time: 1 … 100,000,000. They are fetched ahead when a tenth
  /// is left.
  std::int64_t block_size = 1'000'000;

  replication_options replication{};

  lease_store_settings settings{};
};

/// Leases in Redis (or Valkey), version 6.2 or later: in one primary, in the primary that sentinels
/// name, or in the primaries of a cluster. Each grant takes one round trip. While a cluster moves a
/// slot, each grant of its resources takes a reservation of its own.
///
/// What it survives: FLUSHALL, eviction, restart without persistence and asynchronous failover
/// never let a token go backwards or be given twice; leases themselves may be lost then, and two
/// processes may believe that they hold one. The database refuses the older.
class lease_store final : public fenceguard::lease_store {
 public:
  /// Does not connect, except for replication.fsync_to_wait. `tokens` must outlive the store.
  /// Throws invalid_request for a bad URL or option, and for fsync_to_wait on a server that is
  /// older than 7.2 or writes no append-only file; lease_store_unavailable where it had to ask and
  /// no server answered.
  lease_store(lease_store_options const& options, token_source& tokens);
};

}  // namespace fenceguard::redis
