#pragma once

#include <chrono>
#include <fenceguard/core/events.hpp>
#include <fenceguard/core/lease.hpp>
#include <fenceguard/postgres/idempotency_key.hpp>
#include <fenceguard/postgres/parameter.hpp>
#include <nlohmann/json.hpp>
#include <pqxx/pqxx>
#include <string>

namespace fenceguard::postgres {

struct execute_once_options {
  /// How long to wait for another transaction that holds the key or the resource: 1 ms … 10 min.
  std::chrono::milliseconds patience{5'000};
  fenceguard::observer* observer = nullptr;
};

/// What a statement did, at its first try. `answer` is
/// `{"row_count": <rows written or returned>, "rows": [{<column>: <value>, …}, …]}`, with the rows
/// that it returned (RETURNING, or a query's) as PostgreSQL's to_json() writes them. It is stored
/// under the key, and a replay gives the same. Numbers beyond what a double keeps exact are best
/// returned as text (`amount::text`).
struct execute_once_result {
  bool replayed;
  nlohmann::json answer{};
};

/// A whole guarded, idempotent transaction with one statement, in one round trip: looks the key up,
/// claims the lease's resource, runs the statement, stores its answer, commits.
///
///     auto done = execute_once(db, lease, key, "UPDATE account SET balance = balance - $1 "
///                              "WHERE id = $2 RETURNING balance", amount, id);
///
/// Guarantees and refusals are those of postgres::transaction at READ COMMITTED. `sql` is one
/// INSERT, UPDATE, DELETE, SELECT (for a function that writes) or, from PostgreSQL 17 on, MERGE;
/// it is run inside a WITH clause, so a WITH of its own may not write. Where the business has to
/// decide between statements, use postgres::transaction.
///
/// The arguments are sent as quoted literals, since the protocol's message for several statements
/// has none; strings, names and comments of `sql` stay untouched.
///
/// Throws stale_token, unguarded_write, key_reused, in_progress, fence_busy, lease_lost,
/// lease_store_unavailable and schema_mismatch as postgres::transaction does; already_stored where
/// the key was stored meanwhile; invalid_request for arguments that do not match the statement, for
/// more than one statement, and for a bad option or key; what libpqxx throws where the statement is
/// refused. Nothing was written then. Throws commit_unknown where the reply was lost, or the server
/// says that a wait for its standby was cancelled: try again with the same key and lease.
///
/// The connection must have no transaction open; it belongs to one thread at a time.
execute_once_result execute_once_with(pqxx::connection& db, lease const& held,
                                      idempotency_key const& key, std::string const& sql,
                                      parameters const& args, execute_once_options options = {});

/// As execute_once_with(), with `args` for $1, $2, … and default options.
template <class... Args>
execute_once_result execute_once(pqxx::connection& db, lease const& held,
                                 idempotency_key const& key, std::string const& sql,
                                 Args&&... args) {
  return execute_once_with(db, held, key, sql, parameters{parameter{std::forward<Args>(args)}...});
}

/// A temporary lease would be released at the end of the statement.
template <class... Args>
execute_once_result execute_once(pqxx::connection& db, lease const&& held,
                                 idempotency_key const& key, std::string const& sql,
                                 Args&&... args) = delete;
execute_once_result execute_once_with(pqxx::connection& db, lease const&& held,
                                      idempotency_key const& key, std::string const& sql,
                                      parameters const& args,
                                      execute_once_options options = {}) = delete;

}  // namespace fenceguard::postgres
