#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <fenceguard/core/lease_backend.hpp>
#include <functional>
#include <mutex>
#include <optional>
#include <pqxx/pqxx>
#include <set>
#include <string>
#include <string_view>

#include "core/background_thread.hpp"

namespace fenceguard::postgres {

// Hears of released leases by LISTEN, on a connection and a thread of its own, while something is
// watched. What it says is a hint: a connection that is lost costs time and nothing else.
//
// It has a channel of its own, on which a release tells this store and no other
// (fenceguard.lease_call_next), so that not all who wait ask for one lease. Through a pooler
// nothing is heard: LISTEN would stay with a server session that belongs to others.
class lease_listener {
 public:
  using error_sink = std::function<void(std::string const& message)>;

  // `on_error` is told once of what ends or prevents hearing, until it is mended; from the thread.
  // Throws std::system_error where the system has no random numbers.
  lease_listener(std::string url, error_sink on_error);
  ~lease_listener();
  lease_listener(lease_listener const&) = delete;
  lease_listener& operator=(lease_listener const&) = delete;

  // Before any other call.
  void set_sink(lease_backend::hint_sink sink) { sink_ = std::move(sink); }

  // Neither waits for the server. Any thread. The sink is called for a resource when a release of
  // it could be missed no more: so that it is asked for once with waiter(), which joins the line.
  void watch(std::string const& resource);
  void unwatch(std::string const& resource) noexcept;

  // Whom a release of a watched resource is to notify; nobody where nothing would be heard.
  [[nodiscard]] std::optional<std::int64_t> waiter(std::string_view resource) const;

  // How long a waiter may go without asking; nothing where no release would be heard.
  [[nodiscard]] std::optional<std::chrono::milliseconds> poll_interval() const noexcept;

  // Ends the thread. Nothing is heard afterwards. Waits for a connection that is being made.
  void close() noexcept;

 private:
  class session;
  class receiver;

  void run() noexcept;
  void listen();
  [[nodiscard]] bool stay(time_point& needed_at);
  void call_watched();
  void report(std::string const& message) noexcept;

  std::string const url_;
  std::int64_t const id_;
  error_sink const on_error_;
  lease_backend::hint_sink sink_;
  std::atomic<bool> hears_{false};
  bool reported_ = false;  // the thread's own, as is the next
  bool pooled_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::string, std::less<>> watched_;
  int socket_ = -1;
  bool closing_ = false;
  background_thread thread_;
};

}  // namespace fenceguard::postgres
