#pragma once

#include <chrono>
#include <cstdint>
#include <fenceguard/core/fencing_token.hpp>
#include <fenceguard/core/grant.hpp>
#include <string_view>
#include <variant>

namespace fenceguard {

/// What a store or a guard tells its observer. Views are valid during the call only.
namespace events {

struct granted {
  std::string_view resource;
  fencing_token token;
  std::chrono::microseconds waited;  ///< From the call of acquire() to the grant.
  unsigned attempts;                 ///< Requests to the store for this grant, at least 1.
};
struct busy {
  std::string_view resource;
  std::chrono::microseconds waited;  ///< The caller gave up after this time.
  unsigned attempts;
};
/// One round of the renewal thread.
struct renewed {
  std::size_t count;                          ///< Leases that were renewed in the round.
  std::chrono::microseconds smallest_margin;  ///< Least time that was left before the deadline.
};
/// Why a lease was lost.
enum class loss_reason { refused_by_store, ran_out, held_too_long, store_closed };
struct lost {
  std::string_view resource;
  fencing_token token;
  loss_reason reason;
};
struct released {
  std::string_view resource;
  fencing_token token;
  release_outcome outcome;
};
struct advanced {
  std::string_view resource;
  fencing_token from;
  fencing_token to;
};
/// An acquisition whose answer did not come in time was taken back (or was found not to hold).
struct undone {
  std::string_view resource;
};
/// A store's data set had no tokens left, or was not the one they were reserved for.
struct tokens_needed {
  std::string_view partition;
};
struct tokens_reserved {
  std::string_view partition;
  fencing_token first;
  std::int64_t count;
  bool accepted;  ///< Whether the data set that asked for them still stood.
};
/// A call to the store failed and will be tried again or was reported to the caller.
struct store_error {
  std::string_view operation;
  std::string_view message;
};
/// The database refused a claim.
struct stale_claim {
  std::string_view resource;
  fencing_token presented;
  fencing_token current;
};
struct replayed {
  std::string_view scope;
};
struct commit_unknown {
  std::string_view resource;
};

}  // namespace events

using event = std::variant<events::granted, events::busy, events::renewed, events::lost,
                           events::released, events::advanced, events::undone,
                           events::tokens_needed, events::tokens_reserved, events::store_error,
                           events::stale_claim, events::replayed, events::commit_unknown>;

/// Receives events. Called without any lock held, from whichever thread the event happened on,
/// several at once; it may call back into the store. It should be quick: a slow observer delays
/// the caller or the renewal of other leases.
class observer {
 public:
  virtual ~observer() = default;
  virtual void on_event(event const& what) noexcept = 0;

 protected:
  observer() = default;
  observer(observer const&) = default;
  observer& operator=(observer const&) = default;
};

}  // namespace fenceguard
