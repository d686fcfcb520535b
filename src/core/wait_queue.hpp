#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <fenceguard/core/clock.hpp>
#include <fenceguard/core/lease_backend.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace fenceguard {

/// The callers of one store who wait for a resource, first come, first served. Only the head of a
/// line asks the server: by polling with growing pauses, and at once when somebody says that the
/// resource may be free. When the head leaves, the next one takes over where it stood, so that no
/// word of a release is lost with a caller who gave up.
class wait_queue {
 public:
  using error_sink = std::function<void(std::string_view operation, std::string_view message)>;

  static constexpr std::chrono::nanoseconds first_pause = std::chrono::milliseconds{2};
  static constexpr std::chrono::nanoseconds longest_pause = std::chrono::milliseconds{250};

  /// `backend` is told what to watch while somebody waits for it; what it throws then goes to
  /// `on_error`, for hints are optional. All of them outlive the queue.
  wait_queue(fenceguard::clock const& time, lease_backend& backend, error_sink on_error);

  /// Whether somebody waits for the resource.
  [[nodiscard]] bool has_line(std::string_view resource) const;

  /// The resource may have become free. Any thread; does not block.
  void wake(std::string_view resource);

  class place;

 private:
  struct waiter {
    std::condition_variable wake;
    waiter* next = nullptr;
    waiter* previous = nullptr;
    bool stopped = false;
  };
  struct line {
    waiter* first = nullptr;
    waiter* last = nullptr;
    time_point ask_at = time_point::min();  ///< max(): the head is asking.
    std::chrono::nanoseconds pause = first_pause;
    std::uint64_t answers = 0;  ///< How often the server has said something about the resource.
    std::string failure{};      ///< Why the last request failed; empty where it did not.
  };
  struct name_hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view name) const noexcept {
      return std::hash<std::string_view>{}(name);
    }
  };
  using lines = std::unordered_map<std::string, line, name_hash, std::equal_to<>>;
  struct shard {
    mutable std::mutex mutex{};
    lines by_name{};
  };

  [[nodiscard]] shard& shard_of(std::string_view resource) const;
  void update_watch(std::string const& resource) noexcept;

  fenceguard::clock const& clock_;
  lease_backend& backend_;
  error_sink on_error_;
  std::atomic<std::size_t> waiting_{0};
  std::unique_ptr<std::array<shard, 16>> const shards_ = std::make_unique<std::array<shard, 16>>();

  std::mutex watch_mutex_;
  std::unordered_set<std::string> watched_;
};

/// One caller's place in the line of a resource; belongs to one thread. Its end leaves the line.
class wait_queue::place {
 public:
  /// `has_asked`: the caller has just asked the server and will say here what came of it.
  place(wait_queue& queue, std::string const& resource, std::stop_token const& stop,
        bool has_asked);
  ~place();
  place(place const&) = delete;
  place& operator=(place const&) = delete;

  enum class turn { ask, time_over, stopped };

  /// Sleeps until it is this caller's turn to ask the server, its time is over, or it is stopped.
  [[nodiscard]] turn await(time_point end);

  // What came of asking.
  void busy(std::chrono::milliseconds holder_remaining);
  void again(std::chrono::milliseconds pause);
  void failed(std::string const& reason);
  /// The caller has the lease now; its own store will say when it ends.
  void granted(std::chrono::milliseconds ttl);

  /// Whether the server has said anything about the resource, to whomever in the line, since this
  /// caller joined it.
  [[nodiscard]] bool answered() const;
  /// Why the line's last request failed; empty where it was answered.
  [[nodiscard]] std::string failure() const;

 private:
  using lock = std::unique_lock<std::mutex>;

  void join(bool has_asked);
  void leave() noexcept;
  void ask_after(std::chrono::nanoseconds pause);
  [[nodiscard]] bool at_head() const noexcept { return line_->first == &self_; }

  wait_queue& queue_;
  std::string const resource_;
  shard& shard_;
  std::stop_token const stop_;
  line* line_ = nullptr;
  waiter self_;
  std::uint64_t answers_before_ = 0;
};

}  // namespace fenceguard
