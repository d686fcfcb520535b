#pragma once

#include <chrono>
#include <fenceguard/core/clock.hpp>
#include <fenceguard/core/fencing_token.hpp>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

namespace fenceguard {

class lease_engine;

/// What became of a release. None of these is an error.
enum class release_outcome { released, already_lost, unknown };

[[nodiscard]] char const* to_string(release_outcome outcome) noexcept;

/// One successful acquisition: the state that a lease, its store's renewal and the transactions
/// that claim with it share. Users hold a `lease`; this interface is for code that guards a
/// resource, such as postgres::transaction.
///
/// Every member may be called from any thread.
class grant {
 public:
  struct record;  // defined in src/core/grant_record.hpp

  explicit grant(std::unique_ptr<record> state) noexcept;
  ~grant();
  grant(grant const&) = delete;
  grant& operator=(grant const&) = delete;

  [[nodiscard]] std::string const& resource() const noexcept;
  [[nodiscard]] std::string const& holder() const noexcept;
  [[nodiscard]] std::chrono::milliseconds ttl() const noexcept;
  [[nodiscard]] fencing_token token() const;
  [[nodiscard]] std::chrono::milliseconds remaining() const noexcept;
  [[nodiscard]] std::stop_token lost() const noexcept;

  /// See lease::advance(). The new token is also higher than `above`, where one is given: a token
  /// that the database was found to have accepted.
  fencing_token advance(std::optional<fencing_token> above = std::nullopt);

  /// See lease::release().
  release_outcome release() noexcept;

  /// Says that the outcome of a request under this grant is unknown: it may still be on its way,
  /// and could land after a retry has read. The next token_for_claim() takes a fresh token first,
  /// which fences the late request out like any stale holder's. Fencing orders grants, not the
  /// requests of one grant.
  void note_unknown_outcome() noexcept;

  /// The token for the next claim. Advances first where an outcome is unknown; throws as advance()
  /// does, and the outcome stays noted then.
  [[nodiscard]] fencing_token token_for_claim();

  /// Whether a refused claim in `database` may be healed by one advance(): only before the grant's
  /// first claim there was accepted and committed. Later a refusal means that a newer grant has
  /// claimed, and is final. Also false once an outcome is unknown: a claim may have been committed
  /// then. `database` is any stable name of the database.
  [[nodiscard]] bool may_heal(std::string const& database) const;

  /// Says that a claim of this grant was accepted and committed in `database`.
  void note_committed_claim(std::string const& database);

  /// For the engine of the store that made the grant.
  [[nodiscard]] record& state() noexcept { return *state_; }

 private:
  std::unique_ptr<record> state_;
};

}  // namespace fenceguard
