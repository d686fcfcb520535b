#include <fenceguard/core/errors.hpp>
#include <fenceguard/core/lease.hpp>

namespace fenceguard {
namespace {

int badness(release_outcome outcome) noexcept {
  switch (outcome) {
    case release_outcome::released:
      return 0;
    case release_outcome::already_lost:
      return 1;
    case release_outcome::unknown:
      return 2;
  }
  return 2;
}

}  // namespace

lease const& lease_set::at(std::string const& resource) const {
  for (auto const& one : leases_) {
    if (one.resource() == resource) return one;
  }
  throw invalid_request{"the lease set has no lease on " + resource};
}

release_outcome lease_set::release() noexcept {
  auto worst = release_outcome::released;
  for (auto& one : leases_) {
    auto const outcome = one.release();
    if (badness(outcome) > badness(worst)) worst = outcome;
  }
  return worst;
}

}  // namespace fenceguard
