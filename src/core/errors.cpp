#include <fenceguard/core/errors.hpp>
#include <fenceguard/core/grant.hpp>
#include <utility>

namespace fenceguard {

char const* to_string(next_step step) noexcept {
  switch (step) {
    case next_step::give_up:
      return "give_up";
    case next_step::retry:
      return "retry";
    case next_step::retry_same_key:
      return "retry_same_key";
    case next_step::reacquire:
      return "reacquire";
  }
  return "invalid";
}

char const* to_string(release_outcome outcome) noexcept {
  switch (outcome) {
    case release_outcome::released:
      return "released";
    case release_outcome::already_lost:
      return "already_lost";
    case release_outcome::unknown:
      return "unknown";
  }
  return "invalid";
}

stale_token::stale_token(std::string resource, fencing_token presented, fencing_token current,
                         next_step advice)
    : error{"stale token: presented " + std::to_string(presented.value()) + ", current " +
                std::to_string(current.value()) + ", resource " + resource,
            advice},
      resource_{std::move(resource)},
      presented_{presented},
      current_{current} {}

}  // namespace fenceguard
