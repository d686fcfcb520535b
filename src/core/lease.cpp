#include <fenceguard/core/errors.hpp>
#include <fenceguard/core/lease.hpp>
#include <utility>

#include "core/grant_record.hpp"
#include "core/lease_engine.hpp"

namespace fenceguard {
namespace {

void release_in_destructor(std::shared_ptr<grant> const& state) noexcept {
  if (!state) return;
  state->state().engine->release(state->state(), lease_engine::released_by::destructor);
}

}  // namespace

lease::lease(std::shared_ptr<grant> state) noexcept : state_{std::move(state)} {}

lease& lease::operator=(lease&& other) noexcept {
  if (this != &other) {
    auto const before = std::exchange(state_, std::move(other.state_));
    release_in_destructor(before);
  }
  return *this;
}

lease::~lease() { release_in_destructor(state_); }

std::shared_ptr<grant> const& lease::state() const {
  if (!state_) throw invalid_request{"a moved-from lease was used"};
  return state_;
}

std::string const& lease::resource() const { return state()->resource(); }
std::string const& lease::holder() const { return state()->holder(); }
fencing_token lease::token() const { return state()->token(); }

std::chrono::milliseconds lease::remaining() const noexcept {
  return state_ ? state_->remaining() : std::chrono::milliseconds{0};
}

std::stop_token lease::lost() const noexcept { return state_ ? state_->lost() : lost_token(); }

fencing_token lease::advance() { return state()->advance(); }

release_outcome lease::release() noexcept {
  return state_ ? state_->release() : release_outcome::already_lost;
}

}  // namespace fenceguard
