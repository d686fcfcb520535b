#pragma once

#include <cstddef>
#include <fenceguard/core/lease_store.hpp>
#include <fenceguard/core/token_source.hpp>
#include <string>

namespace fenceguard::postgres {

struct lease_store_options {
  /// libpq's connection string or URI; empty: libpq's own environment variables. A role with the
  /// rights of sql/roles/application.sql will do.
  std::string url{};

  /// Connections for acquiring and releasing, at most: 1 … 64. Each is made when it is first needed
  /// and has a thread of its own. Renewals and notifications have one more each.
  std::size_t connections = 4;

  lease_store_settings settings{};
};

/// Leases in PostgreSQL, for users without Redis: a table and the database's clock. Needs the
/// schema's migration 10.
///
/// What it costs: a grant takes two short transactions that do not wait for the disk, and one
/// reservation of a token that does; callers who come at the same time share a reservation. A
/// release tells the first two stores that wait for it, by NOTIFY; the others poll every second or
/// two, and all do while nothing is heard. Through a pooler nothing is listened for: LISTEN would
/// stay with a server session that belongs to others. A lost hint costs time and nothing else.
///
/// A transaction that stays open for long in the same database (a dump, a report) keeps the old
/// versions of rows: many grants of one resource beside it become slower and slower, and are as
/// fast as before once it has ended.
///
/// The rows of leases stay until `fenceguard.forget_leases()` deletes them (sql/README.md,
/// "Retention").
///
/// What it survives: a restart of the server. A standby gives no leases; with several hosts and
/// target_session_attrs=read-write in `url` the store finds the one that was promoted. After a
/// crash, or when an asynchronous standby is promoted, the latest leases may be lost, and two
/// processes may believe that they hold one. The database refuses the older: tokens are not lost.
/// The same where the server's clock is set forward, since leases end early then.
class lease_store final : public fenceguard::lease_store {
 public:
  /// Does not connect. `tokens` must outlive the store; the database that it asks may be another
  /// one. Throws invalid_request for a bad option. The first acquire() throws schema_mismatch where
  /// the database lacks the migration.
  /// The destructor waits for a connection that is being made: where the server hangs, up to
  /// settings.command_timeout, or 2 s where that is less.
  lease_store(lease_store_options const& options, token_source& tokens);
};

}  // namespace fenceguard::postgres
