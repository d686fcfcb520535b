#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "redis/connection.hpp"
#include "redis/reply.hpp"
#include "redis/socket.hpp"

namespace fenceguard::redis {

/// One connection in the subscribed state (RESP2) and the channels that it is to hear. Never
/// waits, except in connect(). Belongs to one thread.
class subscription {
 public:
  /// What comes in. The names are those given to subscribe().
  struct events {
    std::function<void(std::string const& name)> subscribed;
    std::function<void(std::string const& name, std::string_view text)> message;
  };

  subscription(connection_options options, unsigned partition)
      : options_{std::move(options)}, partition_{partition} {}

  [[nodiscard]] address const& server() const noexcept { return options_.server; }
  /// One of those that the server serves.
  [[nodiscard]] unsigned partition() const noexcept { return partition_; }
  [[nodiscard]] bool connected() const noexcept { return static_cast<bool>(peer_); }
  [[nodiscard]] bool idle() const noexcept { return names_.empty(); }
  /// By channel.
  [[nodiscard]] std::unordered_map<std::string, std::string> const& names() const noexcept {
    return names_;
  }

  /// Connects, logs in and asks for all channels. Throws unreachable, invalid_request.
  void connect(resolver& known, connect_bound const& bound);
  void disconnect() noexcept;

  void subscribe(std::string const& channel, std::string const& name);
  void unsubscribe(std::string const& channel);

  /// What to poll(2) for; meaningful while connected.
  [[nodiscard]] int descriptor() const noexcept { return peer_.descriptor(); }
  [[nodiscard]] bool has_more_to_send() const noexcept { return sent_ < out_.size(); }

  /// Sends and takes what can be without waiting. Says why the connection is of no use any more;
  /// nothing where it is. `refused`: the server does not allow it.
  struct fault {
    std::string message{};  ///< Empty: none.
    bool refused = false;
  };
  [[nodiscard]] fault exchange(events const& told);

  /// Asks for a sign of life where there was none for `quiet`. False where none came within
  /// `patience` of being asked for.
  [[nodiscard]] bool check_alive(std::chrono::nanoseconds quiet, std::chrono::nanoseconds patience);

 private:
  void append(std::initializer_list<std::string_view> words);
  [[nodiscard]] fault take(reply_view what, events const& told);

  connection_options options_;
  unsigned partition_;
  socket peer_;
  std::unique_ptr<reply_parser> parser_;
  std::unordered_map<std::string, std::string> names_;
  std::string out_;
  std::size_t sent_ = 0;
  time_point heard_{};  // when something was last received
  time_point asked_{};  // when a sign of life was asked for; zero: not since heard_
};

}  // namespace fenceguard::redis
