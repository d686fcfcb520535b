#include "testing/lease_memory.hpp"

#include <fenceguard/core/errors.hpp>
#include <utility>

#include "core/lease_schedule.hpp"
#include "core/sleep_by_clock.hpp"

namespace fenceguard::testing {
namespace {

constexpr char const* down = "the lease store was made unavailable";
constexpr char const* silence = "the lease store did not answer in time";

}  // namespace

lease_memory::state lease_memory::serve(lock& held, time_point deadline) {
  while (hanging_ && clock_.now() < deadline) {
    sleep_by_clock(held, resumed_, clock_, deadline);
  }
  if (hanging_) return state::silent;
  return available_ ? state::serving : state::unavailable;
}

lease_memory::stored* lease_memory::find(std::string_view resource) {
  auto const found = leases_.find(resource);
  if (found == leases_.end()) return nullptr;
  if (found->second.expires > clock_.now()) return &found->second;
  leases_.erase(found);
  return nullptr;
}

void lease_memory::tell_listeners(std::string_view resource) {
  for (auto const& [owner, tell] : listeners_) tell(resource);
}

lease_backend::acquire_answer lease_memory::try_acquire(lease_backend::attempt const& what) {
  auto const sent_at = clock_.now();
  lock held{mutex_};
  switch (serve(held, what.deadline)) {
    case state::unavailable:
      return lease_backend::not_applied{down};
    case state::silent:
      return lease_backend::unknown{silence};
    case state::serving:
      break;
  }
  auto const now = clock_.now();
  if (auto const* present = find(what.resource)) {
    return lease_backend::busy{
        std::chrono::ceil<std::chrono::milliseconds>(present->expires - now)};
  }
  auto const token = tokens_.reserve(1);
  leases_.insert_or_assign(std::string{what.resource},
                           stored{.holder = std::string{what.holder},
                                  .label = std::string{what.label},
                                  .token = token,
                                  .expires = now + what.ttl,
                                  .since = std::chrono::system_clock::now()});
  return lease_backend::granted{.token = token, .sent_at = sent_at, .validity = what.ttl};
}

void lease_memory::renew(lease_backend::renew_item& item, time_point deadline) {
  using answer = lease_backend::renew_answer;
  item.sent_at = clock_.now();
  item.validity = item.ttl;
  lock held{mutex_};
  item.answer = answer::unknown;
  if (serve(held, deadline) != state::serving) return;
  auto* const present = find(item.resource);
  bool const ours = present != nullptr && present->holder == item.holder;
  item.answer = ours ? answer::renewed : answer::lost;
  if (ours) present->expires = clock_.now() + item.ttl;
}

release_outcome lease_memory::release(std::string_view resource, std::string_view holder,
                                      time_point deadline) {
  lock held{mutex_};
  if (serve(held, deadline) != state::serving) return release_outcome::unknown;
  auto const* const present = find(resource);
  if (present == nullptr || present->holder != holder) return release_outcome::already_lost;
  leases_.erase(leases_.find(resource));
  tell_listeners(resource);
  return release_outcome::released;
}

lease_backend::advance_answer lease_memory::advance(std::string_view resource,
                                                    std::string_view holder,
                                                    std::optional<fencing_token> above,
                                                    time_point deadline) {
  lock held{mutex_};
  switch (serve(held, deadline)) {
    case state::unavailable:
      return lease_backend::not_applied{down};
    case state::silent:
      return lease_backend::unknown{silence};
    case state::serving:
      break;
  }
  auto* const present = find(resource);
  if (present == nullptr || present->holder != holder) return lease_backend::lost{};
  auto const token = tokens_.reserve(1);
  if (above && token <= *above) {
    return lease_backend::not_applied{"the token source is behind the token that is to be beaten"};
  }
  present->token = token;
  return lease_backend::advanced{token};
}

std::optional<holder_info> lease_memory::inspect(std::string_view resource, time_point deadline) {
  lock held{mutex_};
  switch (serve(held, deadline)) {
    case state::unavailable:
      throw lease_store_unavailable{down};
    case state::silent:
      throw lease_store_unavailable{silence};
    case state::serving:
      break;
  }
  auto const* const present = find(resource);
  if (present == nullptr) return std::nullopt;
  return holder_info{
      .holder = present->holder,
      .token = present->token,
      .since = present->since,
      .remaining = std::chrono::ceil<std::chrono::milliseconds>(present->expires - clock_.now()),
      .label = present->label};
}

void lease_memory::add_listener(void const* owner, lease_backend::hint_sink listener) {
  lock const held{mutex_};
  listeners_[owner] = std::move(listener);
}

void lease_memory::remove_listener(void const* owner) {
  lock const held{mutex_};
  listeners_.erase(owner);
}

void lease_memory::expire(std::string const& resource) {
  lock const held{mutex_};
  leases_.erase(resource);
}

void lease_memory::forget_all() {
  lock const held{mutex_};
  leases_.clear();
}

void lease_memory::set_available(bool available) {
  lock const held{mutex_};
  available_ = available;
}

void lease_memory::set_hanging(bool hanging) {
  lock const held{mutex_};
  hanging_ = hanging;
  resumed_.notify_all();
}

}  // namespace fenceguard::testing
