#pragma once

#include <condition_variable>
#include <cstdint>
#include <fenceguard/core/clock.hpp>
#include <fenceguard/core/events.hpp>
#include <fenceguard/core/fencing_token.hpp>
#include <fenceguard/core/token_source.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/background_thread.hpp"
#include "core/reservation.hpp"

namespace fenceguard {

/// One token for one grant, for stores that number each grant after it was won.
///
/// The token source has a time limit of its own, longer perhaps than a caller's. So one thread,
/// started at the first need, does the asking; callers wait for it until their own deadlines.
/// Callers who wait at the same time share one reservation: each of them has won already, so each
/// of its tokens is higher than all that were given before.
///
/// Every member may be called from any thread. In a forked child reserve_one() throws
/// invalid_request and the destructor leaks.
class grant_numbering {
 public:
  /// `source` and `told` must outlive the object.
  grant_numbering(token_source& source, observer* told);
  grant_numbering(grant_numbering const&) = delete;
  grant_numbering& operator=(grant_numbering const&) = delete;
  /// Waits for a reservation that is under way.
  ~grant_numbering();

  /// Call it after the lease was won and before what is left of it is computed. `deadline` is on
  /// fenceguard's own clock (boottime). Throws token_source_unavailable, also where the deadline
  /// comes first, and schema_mismatch or invalid_request where the source did.
  [[nodiscard]] fencing_token reserve_one(time_point deadline);

  /// The same for a fresh token of a grant: throws token_source_unavailable where it is not higher
  /// than `above`, which the database has accepted.
  [[nodiscard]] fencing_token reserve_above(std::optional<fencing_token> above,
                                            time_point deadline);

  /// Ends waiting calls, refuses later ones, and waits for a reservation that is under way.
  void close() noexcept;

 private:
  struct job {
    reservation result{};
    bool done = false;
  };
  /// Leaked in a forked child, where the thread is not there to be joined and a condition variable
  /// that it waited on cannot be destroyed.
  struct state {
    std::mutex mutex{};
    std::condition_variable work{};
    std::condition_variable done{};
    bool closing = false;
    std::vector<std::shared_ptr<job>> waiting{};
    background_thread thread{};
  };

  void run() noexcept;

  token_source& source_;
  observer* const told_;
  std::uint64_t const process_;
  std::unique_ptr<state> state_ = std::make_unique<state>();
};

}  // namespace fenceguard
