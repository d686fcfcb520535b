#pragma once

#include <chrono>
#include <cstdint>
#include <fenceguard/core/clock.hpp>
#include <fenceguard/core/events.hpp>
#include <fenceguard/core/lease.hpp>
#include <fenceguard/core/lease_backend.hpp>
#include <fenceguard/core/lease_request.hpp>
#include <memory>
#include <optional>
#include <string>

namespace fenceguard {

class lease_engine;

/// What every lease store can be told, whatever its servers.
struct lease_store_settings {
  /// Bounds each conversation with the servers: 10 ms … 60 s.
  std::chrono::milliseconds command_timeout{1'000};
  /// Bounds what a lease's destructor may wait for its release: 0 … 60 s. Once a store has not
  /// answered, further destructors do not wait at all until it answers again.
  std::chrono::milliseconds release_timeout{250};
  /// Taken off every ttl for the difference in speed between this machine's clock and the
  /// server's, in parts of the ttl: 0 … 0.5. Two milliseconds are taken off besides.
  double clock_drift = 0.01;
  /// Told of everything that happens; must outlive the store and its leases. None by default.
  fenceguard::observer* observer = nullptr;
  /// Must outlive the store and its leases.
  fenceguard::clock* clock = &fenceguard::clock::system();
};

/// Numbers since the store was made; each only rises. `held` is a level.
struct lease_store_counters {
  std::uint64_t granted = 0;
  std::uint64_t busy = 0;
  std::uint64_t attempts = 0;
  std::uint64_t renewed = 0;
  std::uint64_t lost = 0;
  std::uint64_t released = 0;
  std::uint64_t undone = 0;
  std::uint64_t store_errors = 0;
  std::uint64_t held = 0;
};

/// A lease store: gives time-limited rights to try, each with a fencing token. Implemented by
/// redis::lease_store and its siblings and by testing::lease_store; write a lease_backend to make
/// another.
///
/// Every member may be called from any thread. The destructor may not run while another thread is
/// inside a member; it makes the store's leases lost and does not release them. In a forked child
/// every call throws invalid_request.
class lease_store {
 public:
  virtual ~lease_store();
  lease_store(lease_store const&) = delete;
  lease_store& operator=(lease_store const&) = delete;

  /// Takes the lease, waiting at most `request.wait` (and one command_timeout for the try that is
  /// under way when it ends). Nothing is the answer "busy", or that `request.stop` was requested;
  /// it is not an error.
  ///
  /// Callers of one store who wait for one resource are served in the order in which they came, and
  /// only the first of them asks the servers.
  ///
  /// Throws invalid_request for a bad request; lease_store_unavailable where the store did not
  /// serve to the end of the wait, or granted too late for the ttl to be of use;
  /// token_source_unavailable or schema_mismatch where a token was needed and there was none. After
  /// a throw nothing is held: what may have been applied is undone in the background.
  [[nodiscard]] std::optional<lease> acquire(lease_request const& request);

  /// Takes all the leases or none. Waits, answers and throws as acquire() does.
  [[nodiscard]] std::optional<lease_set> acquire_all(lease_set_request const& request);

  /// Who holds the resource, since when, for how long; nothing where nobody does. For people and
  /// for monitoring: by the time it returns, it may be otherwise. Throws invalid_request,
  /// lease_store_unavailable.
  [[nodiscard]] std::optional<holder_info> inspect(std::string const& resource);

  [[nodiscard]] lease_store_counters counters() const noexcept;

 protected:
  /// Throws invalid_request where a setting is out of its range.
  lease_store(std::unique_ptr<lease_backend> backend, lease_store_settings const& settings);

 private:
  std::shared_ptr<lease_engine> engine_;
};

}  // namespace fenceguard
