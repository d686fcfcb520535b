#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <fenceguard/core/lease_backend.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/background_thread.hpp"
#include "redis/key_space.hpp"
#include "redis/topology.hpp"

namespace fenceguard::redis {

/// Hears of releases for those of one store who wait. Whoever releases a lease publishes on its
/// resource's channel how many subscribers that has (scripts/release.lua); this subscribes to the
/// channels of the resources that are watched, over one connection for each server, on a thread of
/// its own, which sleeps while there is nothing to hear.
///
/// A message is a hint and nothing more. Messages are lost with a connection, so each subscription
/// that has been confirmed, first or again, counts as one message. Where no server can be reached
/// or subscribing is refused, nothing is heard, and poll_interval() says so.
///
/// So that a hundred stores do not all ask for one lease that has become free, each of n > 8
/// subscribers passes a message on with a probability of 1.6/n (of 3/n where they are fewer): about
/// two ask, whatever n is. Where none does (0.2 at most), the next poll of any of them finds out.
/// The interval between polls therefore follows the time between releases: about one in eight is
/// followed by a poll of anybody, and while a lease is held for long, polls become rare.
///
/// Any thread; no call waits for a server, except close() for the end of the thread. Never used in
/// a forked child.
class release_messages {
 public:
  struct settings {
    std::shared_ptr<topology> servers;
    key_space keys;
    /// Bounds connecting, and how long a server may leave a PING unanswered.
    std::chrono::milliseconds command_timeout{1'000};
    /// Told once of each failure that ends or prevents hearing; may be empty.
    std::function<void(std::string const& message)> on_error{};
  };

  /// Does not connect. `on_release` is called from the thread, with no lock held.
  release_messages(settings how, lease_backend::hint_sink on_release);
  ~release_messages();
  release_messages(release_messages const&) = delete;
  release_messages& operator=(release_messages const&) = delete;

  /// Starts the thread, at first. Throws std::system_error where no thread or descriptor can be
  /// had.
  void watch(std::string const& resource);
  void unwatch(std::string const& resource) noexcept;

  /// How long a waiter may go without asking, because it would hear of a release; nothing where it
  /// would not.
  [[nodiscard]] std::optional<std::chrono::milliseconds> poll_interval(
      std::string_view resource) const noexcept;

  /// Ends the thread, whatever the servers do, within some 20 ms. May be called again.
  void close() noexcept;

 private:
  class listener;

  struct interest {
    bool heard = false;                  // the subscription stands
    std::int64_t rivals = 1;             // subscribers, by the last message
    time_point released_at{};            // when that came; zero: none has
    std::chrono::nanoseconds period{0};  // between messages, lately
  };
  struct name_hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view name) const noexcept {
      return std::hash<std::string_view>{}(name);
    }
  };

  void wake() const noexcept;

  settings const how_;
  lease_backend::hint_sink const on_release_;
  std::atomic<bool> closed_{false};

  mutable std::mutex mutex_;
  std::unordered_map<std::string, interest, name_hash, std::equal_to<>> watched_;
  std::vector<std::string> changed_;  // watched or unwatched since the thread last looked
  int wake_ = -1;                     // an eventfd

  background_thread thread_;
};

}  // namespace fenceguard::redis
