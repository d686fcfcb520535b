#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <fenceguard/core/clock.hpp>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "redis/url.hpp"

namespace fenceguard::redis {

/// No connection could be made. `own_deadline` where only the caller's own time was up: another
/// caller with more time may succeed.
class unreachable : public std::runtime_error {
 public:
  unreachable(std::string const& message, bool own_deadline)
      : std::runtime_error{message}, own_deadline_{own_deadline} {}

  [[nodiscard]] bool own_deadline() const noexcept { return own_deadline_; }

 private:
  bool own_deadline_;
};

/// How long an attempt may take, and the flag that ends it early from another thread.
struct connect_bound {
  time_point until;
  std::atomic<bool> const& cancelled;
};

/// Looks host names up with getaddrinfo(3), which has no time limit of its own: on a thread that is
/// left behind when the time is up and whose answer the next call takes. Literal addresses need no
/// thread. One thread at a time may use a resolver.
class resolver {
 public:
  struct lookup;

  /// The addresses in the order of preference, as sockaddr bytes. Throws unreachable.
  [[nodiscard]] std::vector<std::string> resolve(std::string const& host, std::uint16_t port,
                                                 connect_bound const& bound);

 private:
  std::shared_ptr<lookup> running_;
};

class tls_context;

/// A connected stream socket, plain or with TLS. All calls are bounded by absolute times: what
/// arrives, or a signal, does not extend them. Belongs to one thread at a time, except interrupt(),
/// and that one may send while another receives.
class socket {
 public:
  enum class status { ok, blocked, closed };

  socket() noexcept;
  explicit socket(int fd) noexcept;
  socket(socket&& other) noexcept;
  socket& operator=(socket&& other) noexcept;
  socket(socket const&) = delete;
  socket& operator=(socket const&) = delete;
  ~socket();

  /// `tls`: null for none; else the handshake is part of it. Throws unreachable.
  [[nodiscard]] static socket connect(address const& to, resolver& names,
                                      connect_bound const& bound, tls_context const* tls);

  [[nodiscard]] explicit operator bool() const noexcept { return fd_ >= 0; }
  [[nodiscard]] int descriptor() const noexcept { return fd_; }
  void close() noexcept;
  /// Ends the stream, so that a thread inside receive() returns at once. Any thread, while no other
  /// closes the socket.
  void interrupt() noexcept;

  /// Sends what the kernel takes at once and counts it in `sent`; the next call must come with the
  /// same bytes there. What is not counted the peer never sees unless send() is called again. Never
  /// raises SIGPIPE.
  [[nodiscard]] status send(std::string_view bytes, std::size_t& sent) noexcept;
  /// Waits for bytes until `until`, and for 40 ms at most, or, with `writable`, until more can be
  /// sent; `blocked` where neither came. `received` > 0 only with `ok`.
  [[nodiscard]] status receive(char* bytes, std::size_t size, std::size_t& received, bool writable,
                               time_point until) noexcept;
  /// Takes what has arrived and never waits.
  [[nodiscard]] status receive_arrived(char* bytes, std::size_t size,
                                       std::size_t& received) noexcept;
  /// After `closed`: why, where TLS knows, with a colon before it.
  [[nodiscard]] std::string why_closed() const;

 private:
  struct encryption;

  void encrypt(tls_context const& shared, address const& to, connect_bound const& bound);

  int fd_ = -1;
  std::unique_ptr<encryption> encryption_;  // null: none
};

}  // namespace fenceguard::redis
