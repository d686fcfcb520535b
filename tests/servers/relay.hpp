#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "servers/relay_connection.hpp"

namespace fenceguard::test_servers {

// A TCP relay in this process, on a port of 127.0.0.1 of its own, that makes a network misbehave:
// delays, stalls, swallows, cuts, and counts round trips. What is set holds for all its
// connections, present and future. All members may be called from any thread.
class relay {
 public:
  explicit relay(int target_port);                 // to 127.0.0.1:target_port
  explicit relay(std::string const& target_path);  // to a Unix socket
  ~relay();
  relay(relay const&) = delete;
  relay& operator=(relay const&) = delete;

  int port() const noexcept { return port_; }
  std::string host() const { return "127.0.0.1"; }

  // Added each way to what is read from now on.
  void delay(std::chrono::nanoseconds each_way);
  // Bytes are held back (up to 1 MiB, then no more are read), the end of the connection too.
  void stall(direction way);
  // Half-open: bytes and the end of the connection vanish.
  void swallow(direction way);
  // Ends stall and swallow. What was held back is delivered, what was swallowed is lost.
  void flow(direction way);
  void flow();

  // Resets all connections, once.
  void cut();
  // Resets all connections and, until restore(), each new one.
  void sever();
  void restore();

  // When `bytes` pass (once; on any connection). What reaction::cut_after and cut_after_bytes()
  // forward does reach the other side before that side sees the connection end.
  void when_seen(direction way, std::string bytes, reaction what);
  // Forwards `count` more bytes and cuts.
  void cut_after_bytes(direction way, std::size_t count);
  // How often when_seen() and cut_after_bytes() have acted.
  int fired() const;

  // Bursts from clients that follow a reply or open a connection: round trips, seen from the
  // client.
  std::int64_t round_trips() const;
  std::int64_t bytes(direction way) const;
  std::int64_t accepted() const;
  void reset_counters();
  // Connections of which either side is still open. Zero: all that was forwarded has been seen.
  std::size_t open_connections() const;

 private:
  void listen();
  void work();
  void accept_all();
  int connect_to_target() const;
  std::optional<std::chrono::steady_clock::time_point> next_due() const;
  void wake() const;

  int const target_port_ = 0;
  std::string const target_path_;
  int port_ = 0;
  int listener_ = -1;
  int wake_ = -1;

  mutable std::mutex mutex_;
  bool stopping_ = false;
  bool severed_ = false;
  std::int64_t accepted_ = 0;
  relay_rules rules_;
  std::list<relay_connection> connections_;
  std::thread thread_;
};

}  // namespace fenceguard::test_servers
