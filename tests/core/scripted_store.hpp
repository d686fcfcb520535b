#pragma once

#include <atomic>
#include <fenceguard/core/lease_store.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "testing/memory_backend.hpp"

namespace fenceguard::tests {

/// What a scripted backend does instead of serving from its memory, and what it has been asked.
/// Scripts run on the calling thread and may block; they may be set at any time.
class script {
 public:
  using acquire = std::function<lease_backend::acquire_answer(lease_backend::attempt const&)>;
  using renew = std::function<void(std::span<lease_backend::renew_item>, time_point)>;
  using release = std::function<release_outcome(std::string_view, std::string_view, time_point)>;
  using advance = std::function<lease_backend::advance_answer(std::optional<fencing_token>)>;
  using watch = std::function<void(std::string const&, bool)>;

  explicit script(std::shared_ptr<testing::lease_memory> memory) : memory_{std::move(memory)} {}

  void on_acquire(acquire act) { set(acquire_, std::move(act)); }
  void on_renew(renew act) { set(renew_, std::move(act)); }
  void on_release(release act) { set(release_, std::move(act)); }
  void on_advance(advance act) { set(advance_, std::move(act)); }
  void on_watch(watch act) { set(watch_, std::move(act)); }

  template <class Act>
  Act get(Act script::*which) const {
    std::lock_guard const guard{mutex_};
    return this->*which;
  }

  [[nodiscard]] testing::lease_memory& memory() const noexcept { return *memory_; }
  [[nodiscard]] std::shared_ptr<testing::lease_memory> const& shared_memory() const noexcept {
    return memory_;
  }

  std::atomic<int> acquires{0};
  std::atomic<int> renewals{0};  ///< Leases, not batches.
  std::atomic<int> releases{0};
  std::atomic<int> watches{0};
  std::atomic<int> unwatches{0};
  std::atomic<bool> closed{false};
  lease_backend::hint_sink hint{};  ///< Set before the store can be used.

  acquire acquire_{};
  renew renew_{};
  release release_{};
  advance advance_{};
  watch watch_{};

 private:
  template <class Act>
  void set(Act& which, Act act) {
    std::lock_guard const guard{mutex_};
    which = std::move(act);
  }

  std::shared_ptr<testing::lease_memory> memory_;
  mutable std::mutex mutex_;
};

class scripted_backend final : public lease_backend {
 public:
  explicit scripted_backend(std::shared_ptr<script> acts)
      : script_{std::move(acts)},
        memory_{script_->shared_memory(), testing::memory_backend::hints::none} {}

  acquire_answer try_acquire(attempt const& what) override {
    ++script_->acquires;
    if (auto const act = script_->get(&script::acquire_)) return act(what);
    return memory_.try_acquire(what);
  }
  void renew(std::span<renew_item> batch, time_point deadline) noexcept override {
    script_->renewals += static_cast<int>(batch.size());
    if (auto const act = script_->get(&script::renew_)) return act(batch, deadline);
    memory_.renew(batch, deadline);
  }
  release_outcome release(std::string_view resource, std::string_view holder,
                          time_point deadline) noexcept override {
    ++script_->releases;
    if (auto const act = script_->get(&script::release_)) return act(resource, holder, deadline);
    return memory_.release(resource, holder, deadline);
  }
  advance_answer advance(std::string_view resource, std::string_view holder,
                         std::optional<fencing_token> above, time_point deadline) override {
    if (auto const act = script_->get(&script::advance_)) return act(above);
    return memory_.advance(resource, holder, above, deadline);
  }
  std::optional<holder_info> inspect(std::string_view resource, time_point deadline) override {
    return memory_.inspect(resource, deadline);
  }
  void watch(std::string const& resource) override {
    ++script_->watches;
    if (auto const act = script_->get(&script::watch_)) act(resource, true);
  }
  void unwatch(std::string const& resource) noexcept override {
    ++script_->unwatches;
    if (auto const act = script_->get(&script::watch_)) act(resource, false);
  }
  void set_hint_sink(hint_sink sink) override { script_->hint = std::move(sink); }
  void close() noexcept override { script_->closed = true; }

 private:
  std::shared_ptr<script> script_;
  testing::memory_backend memory_;
};

/// A store whose server can be told what to answer. Several may share one memory.
class scripted_store final : public lease_store {
 public:
  scripted_store(std::shared_ptr<script> acts, lease_store_settings const& settings)
      : lease_store{std::make_unique<scripted_backend>(std::move(acts)), settings} {}
};

/// A token source, a memory, a script and a store over them, in the order of their lives.
struct scripted_world {
  explicit scripted_world(lease_store_settings const& settings = {})
      : memory{std::make_shared<testing::lease_memory>(tokens, *settings.clock)},
        acts{std::make_shared<script>(memory)},
        store{std::make_unique<scripted_store>(acts, settings)} {}

  testing::token_source tokens{};
  std::shared_ptr<testing::lease_memory> memory;
  std::shared_ptr<script> acts;
  std::unique_ptr<scripted_store> store;
};

}  // namespace fenceguard::tests
