#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "testing/lease_memory.hpp"

namespace fenceguard::testing {

/// The engine's way to a lease_memory. Without hints, releases by other stores are found by
/// polling.
class memory_backend final : public lease_backend {
 public:
  enum class hints { given, none };

  explicit memory_backend(std::shared_ptr<lease_memory> memory, hints given = hints::given)
      : memory_{std::move(memory)}, hints_{given} {}
  memory_backend(memory_backend const&) = delete;
  memory_backend& operator=(memory_backend const&) = delete;
  ~memory_backend() override { memory_->remove_listener(this); }

  acquire_answer try_acquire(attempt const& what) override { return memory_->try_acquire(what); }
  void renew(std::span<renew_item> batch, time_point deadline) noexcept override {
    for (auto& item : batch) memory_->renew(item, deadline);
  }
  release_outcome release(std::string_view resource, std::string_view holder,
                          time_point deadline) noexcept override {
    return memory_->release(resource, holder, deadline);
  }
  advance_answer advance(std::string_view resource, std::string_view holder,
                         std::optional<fencing_token> above, time_point deadline) override {
    return memory_->advance(resource, holder, above, deadline);
  }
  std::optional<holder_info> inspect(std::string_view resource, time_point deadline) override {
    return memory_->inspect(resource, deadline);
  }
  void set_hint_sink(hint_sink sink) override {
    if (hints_ == hints::given) memory_->add_listener(this, std::move(sink));
  }

 private:
  std::shared_ptr<lease_memory> memory_;
  hints hints_;
};

}  // namespace fenceguard::testing
