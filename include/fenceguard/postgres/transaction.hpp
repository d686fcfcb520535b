#pragma once

#include <chrono>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/core/events.hpp>
#include <fenceguard/core/lease.hpp>
#include <fenceguard/postgres/idempotency_key.hpp>
#include <fenceguard/postgres/parameter.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <pqxx/pqxx>
#include <string>

namespace fenceguard::postgres {

enum class isolation { read_committed, repeatable_read, serializable };

struct transaction_options {
  /// Under a stricter level than read_committed the caller retries on serialization failures
  /// (SQLSTATE 40001) with a new transaction.
  isolation level = isolation::read_committed;
  /// How long to wait for another transaction that holds the key or the resource, for each of
  /// them: 1 ms … 10 min.
  std::chrono::milliseconds patience{5'000};
  /// How long the server lets this transaction sit idle, or a client not read its result, before it
  /// ends it; so a paused holder cannot block its successor for ever. Zero: the shortest ttl of the
  /// leases.
  std::chrono::milliseconds max_idle{0};
  fenceguard::observer* observer = nullptr;
};

/// What resolve() found out about a COMMIT whose reply was lost.
enum class commit_state { committed, not_committed, unknown };

[[nodiscard]] char const* to_string(commit_state state) noexcept;

/// A guarded transaction: it claims the resources of its leases before its first read, so that no
/// older holder can commit a write to them any more, and holds the claim to its COMMIT.
///
/// With an idempotency key, a request that was answered before is *replayed*: nothing is claimed
/// and nothing can be written, also where the lease has become stale since.
///
/// Belongs to one thread at a time, as its connection does; the connection must have no other
/// transaction open and outlive this object. Destroying it without commit() rolls back. The leases
/// may be released or destroyed before it.
class transaction {
 public:
  /// Begins, looks the key up, claims: one round trip.
  ///
  /// Throws stale_token where a newer grant has claimed (checked before any of the caller's SQL);
  /// key_reused; in_progress and fence_busy where another transaction did not end within the
  /// patience; lease_lost or lease_store_unavailable where an outcome under the lease is unknown
  /// and no fresh token could be had; schema_mismatch; invalid_request for a bad argument; what
  /// libpqxx throws where the connection fails. Nothing has been written then.
  ///
  /// Not an error: a lease that has run out while nobody newer has claimed. The database decides.
  transaction(pqxx::connection& db, lease const& held, transaction_options options = {});
  transaction(pqxx::connection& db, lease const& held, idempotency_key key,
              transaction_options options = {});
  transaction(pqxx::connection& db, lease_set const& held, transaction_options options = {});
  transaction(pqxx::connection& db, lease_set const& held, idempotency_key key,
              transaction_options options = {});

  /// A temporary lease would be released at the end of the statement.
  transaction(pqxx::connection& db, lease const&& held, transaction_options options = {}) = delete;
  transaction(pqxx::connection& db, lease const&& held, idempotency_key key,
              transaction_options options = {}) = delete;
  transaction(pqxx::connection& db, lease_set const&& held,
              transaction_options options = {}) = delete;
  transaction(pqxx::connection& db, lease_set const&& held, idempotency_key key,
              transaction_options options = {}) = delete;

  transaction(transaction const&) = delete;
  transaction& operator=(transaction const&) = delete;
  ~transaction();

  /// The stored answer of an earlier try of the same key; nothing where this is the first.
  [[nodiscard]] std::optional<nlohmann::json> const& replay() const noexcept;

  /// Runs one statement with arguments for $1, $2, … and returns its rows.
  ///
  /// Throws unguarded_write where it writes a protected row whose resource was not claimed, and
  /// what libpqxx throws. Any throw latches: the transaction can only be rolled back, and a later
  /// commit() throws, also where the caller has caught the error. Throws invalid_request after a
  /// replay, after the end, and for a statement that begins or ends a transaction.
  template <class... Args>
  pqxx::result exec(std::string const& sql, Args&&... args) {
    return exec_with(sql, parameters{parameter{std::forward<Args>(args)}...});
  }

  /// As exec(), with the arguments in a container.
  pqxx::result exec_with(std::string const& sql, parameters const& args);

  /// Commits: the claim and the writes together. One round trip.
  ///
  /// Throws commit_unknown where the reply was lost, or the server says that a wait for its standby
  /// was cancelled; already_stored where the key was stored meanwhile (stricter isolation);
  /// invalid_request where an error has latched, after a replay, after the end, or without an
  /// answer where there is a key.
  void commit();

  /// Commits and stores the answer under the key, in the same COMMIT. Throws invalid_request where
  /// the transaction has no key.
  void commit(nlohmann::json const& answer);

  /// Gives the transaction up; nothing of it remains. Does nothing after the end. Never throws.
  void rollback() noexcept;

  /// After commit_unknown: asks the database, over a connection without open transaction (the
  /// broken one will not do), what became of the COMMIT. Waits for it, up to the patience, while it
  /// is still under way. `unknown` remains where a later transaction has claimed since and there is
  /// no key. Throws invalid_request where the outcome is not in doubt, and what libpqxx throws.
  [[nodiscard]] commit_state resolve(pqxx::connection& db);

 private:
  class implementation;
  std::unique_ptr<implementation> implementation_;
};

}  // namespace fenceguard::postgres
