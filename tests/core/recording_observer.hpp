#pragma once

#include <fenceguard/core/events.hpp>
#include <functional>
#include <mutex>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

namespace fenceguard::tests {

/// Keeps what it is told, and may do something about it.
class recording_observer final : public observer {
 public:
  std::function<void(event const&)> also{};  ///< Set before the store is used.

  void on_event(event const& what) noexcept override {
    {
      std::lock_guard const guard{mutex_};
      kinds_.push_back(std::visit([](auto const& e) { return &typeid(e); }, what));
      if (auto const* lost = std::get_if<events::lost>(&what)) reasons_.push_back(lost->reason);
      if (auto const* end = std::get_if<events::released>(&what)) outcomes_.push_back(end->outcome);
      if (auto const* got = std::get_if<events::granted>(&what)) attempts_.push_back(got->attempts);
    }
    if (also) also(what);
  }

  template <class Event>
  [[nodiscard]] int count() const {
    std::lock_guard const guard{mutex_};
    int found = 0;
    for (auto const* kind : kinds_) found += *kind == typeid(Event) ? 1 : 0;
    return found;
  }
  [[nodiscard]] std::vector<events::loss_reason> reasons() const { return copy(reasons_); }
  [[nodiscard]] std::vector<release_outcome> outcomes() const { return copy(outcomes_); }
  [[nodiscard]] std::vector<unsigned> attempts() const { return copy(attempts_); }

 private:
  template <class Values>
  Values copy(Values const& values) const {
    std::lock_guard const guard{mutex_};
    return values;
  }

  mutable std::mutex mutex_;
  std::vector<std::type_info const*> kinds_;
  std::vector<events::loss_reason> reasons_;
  std::vector<release_outcome> outcomes_;
  std::vector<unsigned> attempts_;
};

}  // namespace fenceguard::tests
