#pragma once

#include <chrono>
#include <fenceguard/core/fencing_token.hpp>
#include <fenceguard/core/grant.hpp>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

namespace fenceguard {

/// A lease that this process was granted; the handle that owns it. Destroying it releases it.
///
/// A lease is a time-limited right to *try*. Whether a write is accepted is for the database to
/// say: pass the lease to postgres::transaction. remaining() and lost() are hints that spare
/// useless work; nothing that must be right may depend on them.
///
/// Every member may be called from any thread. A lease may outlive its store: it is lost then. In a
/// forked child it is inert: remaining() is zero, lost() is requested, nothing is sent. A
/// moved-from lease may only be destroyed or assigned to; every other member throws invalid_request
/// or, where it is noexcept, answers as for a lost lease.
class lease {
 public:
  explicit lease(std::shared_ptr<grant> state) noexcept;
  lease(lease&&) noexcept = default;
  lease& operator=(lease&& other) noexcept;
  lease(lease const&) = delete;
  lease& operator=(lease const&) = delete;

  /// Releases the lease within the store's release bound; never throws and never waits longer.
  /// While the store does not answer, the release goes on in the background.
  ~lease();

  [[nodiscard]] std::string const& resource() const;

  /// 128 random bits in hexadecimal, new for every grant: tells two grants apart that carry the
  /// same token.
  [[nodiscard]] std::string const& holder() const;

  /// The token that guards the next write. It changes only by advance().
  [[nodiscard]] fencing_token token() const;

  /// What is left until the local deadline; never negative. Zero where the lease is lost or
  /// released. A hint.
  [[nodiscard]] std::chrono::milliseconds remaining() const noexcept;

  /// A stop is requested once, when the lease is lost: refused by the store, run out, or its store
  /// destroyed. It is requested before the ttl ends on the server, and never by release(). Its
  /// callbacks run on the store's watchdog thread (or on the thread that asked and found the time
  /// over); they may call back into the store, and should be short.
  [[nodiscard]] std::stop_token lost() const noexcept;

  /// Gives the same grant a fresh, higher token, after the store has confirmed that the grant still
  /// holds. Transactions that were opened with the old token are refused from the next claim on.
  ///
  /// Throws lease_lost where it does not hold any more, lease_store_unavailable or
  /// token_source_unavailable where that could not be told; the token is then as it was.
  fencing_token advance();

  /// Gives the lease back. Nothing is renewed once this is called.
  ///
  /// `released`: the store has deleted it. `already_lost`: it was not ours any more, had run out,
  /// or was released before; nothing was deleted and nothing needs to be done. `unknown`: the store
  /// did not answer; the release is tried again in the background until the ttl is over, and can
  /// only ever delete this grant's own lease. None of these is an error, and it never throws.
  ///
  /// Waits up to the store's command_timeout, and not at all for a lease that has run out. After
  /// the end of its store it is tried once, and `unknown` is left to run out with its ttl.
  release_outcome release() noexcept;

  /// The shared state behind the handle, for code that guards a resource with it.
  [[nodiscard]] std::shared_ptr<grant> const& state() const;

 private:
  std::shared_ptr<grant> state_;
};

/// Several leases that were acquired together, in byte order of their resources. Destroying it
/// releases them all.
class lease_set {
 public:
  explicit lease_set(std::vector<lease> leases) noexcept : leases_{std::move(leases)} {}

  [[nodiscard]] auto begin() const noexcept { return leases_.begin(); }
  [[nodiscard]] auto end() const noexcept { return leases_.end(); }
  [[nodiscard]] std::size_t size() const noexcept { return leases_.size(); }
  [[nodiscard]] lease const& operator[](std::size_t index) const { return leases_.at(index); }

  /// The lease on `resource`; throws invalid_request where the set has none.
  [[nodiscard]] lease const& at(std::string const& resource) const;

  /// Releases all; `released` where each was, else the worst of the outcomes
  /// (unknown, then already_lost). Never throws.
  release_outcome release() noexcept;

 private:
  std::vector<lease> leases_;
};

}  // namespace fenceguard
