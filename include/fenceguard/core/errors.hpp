#pragma once

#include <fenceguard/core/fencing_token.hpp>
#include <stdexcept>
#include <string>

namespace fenceguard {

/// What a caller can usefully do after an error. Each error answers it, so a retry loop needs no
/// list of types (see retry.hpp).
enum class next_step {
  give_up,         ///< Trying again cannot help: a bug, bad input, or a missing migration.
  retry,           ///< Nothing took effect; the same call may succeed later.
  retry_same_key,  ///< It may have taken effect; try again, but only with the same idempotency key.
  reacquire,       ///< This grant is over; ask for a new lease before anything else.
};

[[nodiscard]] char const* to_string(next_step step) noexcept;

/// Root of everything that fenceguard throws. Expected outcomes (busy, replayed, row missing) are
/// return values and never thrown.
class error : public std::runtime_error {
 public:
  error(std::string const& message, next_step advice)
      : std::runtime_error{message}, advice_{advice} {}

  [[nodiscard]] next_step advice() const noexcept { return advice_; }

 private:
  next_step advice_;
};

/// The database refused a claim or a write: a grant with a higher token (or the same token and
/// another holder) has been accepted before. SQLSTATE TF001. Nothing was written.
///
/// Advises `reacquire`; `retry` where another thread's advance() of the same grant overtook it.
class stale_token : public error {
 public:
  stale_token(std::string resource, fencing_token presented, fencing_token current,
              next_step advice = next_step::reacquire);

  [[nodiscard]] std::string const& resource() const noexcept { return resource_; }
  [[nodiscard]] fencing_token presented() const noexcept { return presented_; }
  /// The bound that the presented token did not beat: the resource's current token, or the floor
  /// that a promotion or a retention run has set.
  [[nodiscard]] fencing_token current() const noexcept { return current_; }

 private:
  std::string resource_;
  fencing_token presented_;
  fencing_token current_;
};

/// A protected row was written in a transaction that has not claimed its resource, or a row-fenced
/// row was written with its token left unchanged. SQLSTATE TF002. Advises `give_up`: it is a bug.
class unguarded_write : public error {
 public:
  explicit unguarded_write(std::string const& message) : error{message, next_step::give_up} {}
};

/// The idempotency key stands for another request. SQLSTATE TF003. Advises `give_up`.
class key_reused : public error {
 public:
  explicit key_reused(std::string const& message) : error{message, next_step::give_up} {}
};

/// The database server was promoted or restored since it last issued tokens. SQLSTATE TF004.
/// postgres::transaction and postgres::execute_once mend this themselves and try again; elsewhere
/// call postgres::acknowledge_promotion() outside any transaction. Advises `retry`.
class server_promoted : public error {
 public:
  explicit server_promoted(std::string const& message) : error{message, next_step::retry} {}
};

/// Another transaction holds this idempotency key and did not end within the patience. SQLSTATE
/// TF005. Advises `retry_same_key`.
class in_progress : public error {
 public:
  explicit in_progress(std::string const& message) : error{message, next_step::retry_same_key} {}
};

/// Another transaction holds the resource's fence and did not end within the patience. The message
/// names its backend. SQLSTATE TF006. Advises `retry`.
class fence_busy : public error {
 public:
  explicit fence_busy(std::string const& message) : error{message, next_step::retry} {}
};

/// COMMIT was sent and its outcome is not known. Ask postgres::transaction::resolve(), or try again
/// with the same idempotency key. Advises `retry_same_key`.
class commit_unknown : public error {
 public:
  explicit commit_unknown(std::string const& message) : error{message, next_step::retry_same_key} {}
};

/// A unique key that the first try may have stored was there already (23505 on the idempotency key
/// under a stricter isolation level), or the transaction could not be serialised with the first
/// try. Nothing was written. Advises `retry_same_key`: the repeat is answered from the stored row.
class already_stored : public error {
 public:
  explicit already_stored(std::string const& message) : error{message, next_step::retry_same_key} {}
};

/// The store says that the grant is over, or its time has run out. Advises `reacquire`.
class lease_lost : public error {
 public:
  explicit lease_lost(std::string const& message) : error{message, next_step::reacquire} {}
};

/// The lease store did not answer, or refused to serve (for example: a replica, out of memory, too
/// few replicas). No lease is held afterwards: what may have been applied is undone in the
/// background or runs out with its ttl. Advises `retry`.
class lease_store_unavailable : public error {
 public:
  explicit lease_store_unavailable(std::string const& message) : error{message, next_step::retry} {}
};

/// A token was needed and the source of tokens could not be reached, or refused. Advises `retry`.
class token_source_unavailable : public error {
 public:
  explicit token_source_unavailable(std::string const& message)
      : error{message, next_step::retry} {}
};

/// The database has no fenceguard schema, or one of another version. The message names the command
/// to run. Advises `give_up`.
class schema_mismatch : public error {
 public:
  explicit schema_mismatch(std::string const& message) : error{message, next_step::give_up} {}
};

/// An argument, option or URL is not valid, or an object is used after its end. Nothing was sent or
/// changed. Advises `give_up`.
class invalid_request : public error {
 public:
  explicit invalid_request(std::string const& message) : error{message, next_step::give_up} {}
};

}  // namespace fenceguard
