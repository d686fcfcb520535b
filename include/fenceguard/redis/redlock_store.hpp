#pragma once

#include <fenceguard/core/lease_store.hpp>
#include <fenceguard/core/token_source.hpp>
#include <string>
#include <vector>

namespace fenceguard::redis {

struct redlock_store_options {
  /// An odd number of servers, at least 3, each as redis://[user[:password]@]host[:port][/db],
  /// rediss://… (TLS, as in lease_store_options) or unix:///path[?db=N]. They must be primaries
  /// that know nothing of one another: a replica of one of them would be a second vote of the same
  /// server. Which they are cannot be seen from here; a server that says it is a replica has no
  /// vote.
  std::vector<std::string> urls{};

  /// First part of every key; no braces, at most 64 bytes. Stores with the same prefix on the same
  /// servers share their leases.
  std::string prefix{"fenceguard"};

  lease_store_settings settings{};
};

/// Leases in a majority of independent Redis (or Valkey) primaries, version 6.2 or later: Redlock,
/// https://redis.io/docs/latest/develop/use/patterns/distributed-locks/. All servers are asked at
/// the same time, and nobody waits for more of them than it takes to be sure of the answer.
///
/// What it survives: a minority of the servers dead, hung or without their data; nothing is lost
/// then and nobody waits for them. (The first calls after a server has hung up may, up to one
/// command_timeout.) While a majority is away, nothing is granted and what is held is lost before
/// its ttl ends. A lease that a majority of the servers has lost is lost; renewal never takes it
/// again.
///
/// A server that restarts without its data forgets the leases it has voted for, and its new vote
/// may give somebody else a majority: two processes may then believe that they hold one. The rule
/// of Redlock's author is that such a server stays away for the longest ttl in use before it is
/// started again, or writes its append-only file with `appendfsync always`. Whatever happens,
/// tokens do not go backwards: each grant is numbered by a reservation of its own in the token
/// source, and the database refuses the older.
///
/// What it costs: two round trips and one reservation (shared by callers who ask at the same time)
/// for a grant, one round trip for a release; three commands on each of the servers; one thread
/// and one connection for each server, and as many again while leases are renewed.
///
/// Waiters poll: the servers of a quorum send no word of releases.
class redlock_store final : public fenceguard::lease_store {
 public:
  /// Does not connect. `tokens` must outlive the store. Throws invalid_request for fewer than 3
  /// servers, an even number (which would tolerate no more failures than one less, and fail more
  /// often), a server named twice, a bad URL or option.
  redlock_store(redlock_store_options const& options, token_source& tokens);
};

}  // namespace fenceguard::redis
