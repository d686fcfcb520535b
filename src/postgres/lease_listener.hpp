#pragma once

#include <condition_variable>
#include <exception>
#include <fenceguard/core/lease_backend.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <pqxx/pqxx>
#include <set>
#include <string>

#include "core/background_thread.hpp"

namespace fenceguard::postgres {

// Hears of released leases by LISTEN, on a connection and a thread of its own, while something is
// watched. What it says is a hint: a connection that is lost, or that a pooler gives no
// notifications to, costs time and nothing else.
class lease_listener {
 public:
  explicit lease_listener(std::string url) : url_{std::move(url)} {}
  ~lease_listener();
  lease_listener(lease_listener const&) = delete;
  lease_listener& operator=(lease_listener const&) = delete;

  // Before any other call.
  void set_sink(lease_backend::hint_sink sink) { sink_ = std::move(sink); }

  // Neither waits for the server. Any thread.
  void watch(std::string const& resource);
  void unwatch(std::string const& resource) noexcept;

  // Ends the thread. Nothing is heard afterwards.
  void close() noexcept;

 private:
  void run() noexcept;
  void listen();
  void wake_watched();

  std::string const url_;
  lease_backend::hint_sink sink_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::string, std::less<>> watched_;
  int socket_ = -1;
  bool closing_ = false;
  background_thread thread_;
};

}  // namespace fenceguard::postgres
