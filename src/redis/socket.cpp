#include "redis/socket.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "redis/tls.hpp"

namespace fenceguard::redis {
namespace {

using namespace std::chrono_literals;

// A blocking recv(2) saves the poll(2) before it; the kernel ends it after this time (and at a
// signal), and the absolute deadline is looked at again. Near the deadline poll(2) is exact.
constexpr std::chrono::microseconds receive_tick = 20ms;

// Connecting is waited for in pieces, because another thread may cancel it.
constexpr std::chrono::nanoseconds longest_connecting_poll = 20ms;

// Taken from the kernel at once where there is TLS: a record of the longest kind.
constexpr std::size_t most_ciphertext = 17 * 1024;

std::string reason(int number) { return std::generic_category().message(number); }

short poll_once(int fd, short events, std::chrono::nanoseconds time) noexcept {
  time = std::max(time, std::chrono::nanoseconds{0});
  auto const seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  timespec const timeout{static_cast<time_t>(seconds.count()),
                         static_cast<long>((time - seconds).count())};
  pollfd watched{fd, events, 0};
  return ::ppoll(&watched, 1, &timeout, nullptr) > 0 ? watched.revents : short{0};
}

bool would_block() noexcept { return errno == EAGAIN || errno == EWOULDBLOCK; }

// A loopback port that nobody listens on can be the very port that the kernel picks for our end:
// TCP's simultaneous open then connects the socket to itself.
bool connected_to_itself(int fd) noexcept {
  sockaddr_storage ours{};
  sockaddr_storage theirs{};
  socklen_t our_size = sizeof ours;
  socklen_t their_size = sizeof theirs;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&ours), &our_size) == 0 &&
         ::getpeername(fd, reinterpret_cast<sockaddr*>(&theirs), &their_size) == 0 &&
         ours.ss_family != AF_UNIX && our_size == their_size &&
         std::memcmp(&ours, &theirs, our_size) == 0;
}

// 0, or the errno of the failure
int finish_connect(int fd, connect_bound const& bound) noexcept {
  for (;;) {
    auto const left = bound.until - boottime::now();
    if (bound.cancelled) return ECANCELED;
    if (left <= 0ns) return ETIMEDOUT;
    if (poll_once(fd, POLLOUT, std::min<std::chrono::nanoseconds>(left, longest_connecting_poll)) !=
        0) {
      break;
    }
  }
  int fault = 0;
  socklen_t size = sizeof fault;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &fault, &size) != 0) return errno;
  return fault == 0 && connected_to_itself(fd) ? ECONNREFUSED : fault;
}

int connect_once(int fd, std::string const& to, connect_bound const& bound) noexcept {
  auto const* const name = reinterpret_cast<sockaddr const*>(to.data());
  for (;;) {
    if (::connect(fd, name, static_cast<socklen_t>(to.size())) == 0) {
      return connected_to_itself(fd) ? ECONNREFUSED : 0;
    }
    if (errno == EINPROGRESS || errno == EINTR) return finish_connect(fd, bound);
    if (errno != EAGAIN) return errno;
    // A Unix socket whose backlog is full: there is nothing to poll for.
    if (bound.cancelled) return ECANCELED;
    if (boottime::now() >= bound.until) return ETIMEDOUT;
    poll_once(-1, 0, 1ms);
  }
}

bool configure(int fd, bool tcp) noexcept {
  int const on = 1;
  timeval const tick{0, static_cast<suseconds_t>(receive_tick.count())};
  if (tcp && (::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
              ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) != 0)) {
    return false;
  }
  int const flags = ::fcntl(fd, F_GETFL);
  return ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tick, sizeof tick) == 0 && flags >= 0 &&
         ::fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0;
}

std::string unix_name(std::string const& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof name.sun_path - 1);
  return {reinterpret_cast<char const*>(&name), sizeof name};
}

socket connect_to(std::string const& name, connect_bound const& bound, int& fault) noexcept {
  int const family = reinterpret_cast<sockaddr const*>(name.data())->sa_family;
  socket result{::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!result) {
    fault = errno;
    return {};
  }
  fault = connect_once(result.descriptor(), name, bound);
  if (fault != 0) return {};
  if (!configure(result.descriptor(), family != AF_UNIX)) {
    fault = errno;
    return {};
  }
  return result;
}

socket::status send_plain(int fd, std::string_view bytes, std::size_t& sent) noexcept {
  while (sent < bytes.size()) {
    auto const count =
        ::send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<std::size_t>(count);
    } else if (count < 0 && would_block()) {
      return socket::status::blocked;
    } else if (count == 0 || errno != EINTR) {
      return socket::status::closed;
    }
  }
  return socket::status::ok;
}

socket::status receive_plain_arrived(int fd, char* bytes, std::size_t size,
                                     std::size_t& received) noexcept {
  for (;;) {
    auto const count = ::recv(fd, bytes, size, MSG_DONTWAIT);
    if (count > 0) {
      received = static_cast<std::size_t>(count);
      return socket::status::ok;
    }
    if (count < 0 && errno == EINTR) continue;
    return count < 0 && would_block() ? socket::status::blocked : socket::status::closed;
  }
}

socket::status receive_plain(int fd, char* bytes, std::size_t size, std::size_t& received,
                             bool writable, time_point until) noexcept {
  auto const left = until - boottime::now();
  if (writable || left <= 2 * receive_tick) {
    short const events = static_cast<short>(writable ? POLLIN | POLLOUT : POLLIN);
    auto const ready =
        poll_once(fd, events, std::min<std::chrono::nanoseconds>(left, 2 * receive_tick));
    if (ready == 0) return socket::status::blocked;
    if (ready == POLLOUT) return socket::status::ok;
    return receive_plain_arrived(fd, bytes, size, received);
  }
  auto const count = ::recv(fd, bytes, size, 0);
  if (count > 0) {
    received = static_cast<std::size_t>(count);
    return socket::status::ok;
  }
  return count < 0 && (would_block() || errno == EINTR) ? socket::status::blocked
                                                        : socket::status::closed;
}

}  // namespace

// What stands between the two ends where there is TLS. One thread may send while another receives,
// and both change the session.
struct socket::encryption {
  encryption(tls_context const& shared, std::string const& host) : session{shared, host} {}

  std::mutex mutex;
  tls_session session;
  std::size_t record = 0;  // how many of the caller's bytes are in what is being sent

  status flush(int fd) noexcept;
  status read(char* bytes, std::size_t size, std::size_t& received) noexcept;
  void take(std::string_view received) noexcept;
  status send(int fd, std::string_view bytes, std::size_t& sent) noexcept;
};

socket::status socket::encryption::flush(int fd) noexcept {
  for (auto left = session.outgoing(); !left.empty(); left = session.outgoing()) {
    std::size_t sent = 0;
    auto const reached = send_plain(fd, left, sent);
    session.sent(sent);
    if (reached != status::ok) return reached;
  }
  return status::ok;
}

socket::status socket::encryption::send(int fd, std::string_view bytes,
                                        std::size_t& sent) noexcept {
  std::lock_guard const held{mutex};
  for (;;) {
    if (auto const reached = flush(fd); reached != status::ok) return reached;
    sent += std::exchange(record, 0);
    if (sent == bytes.size()) return status::ok;
    record = session.write(bytes.substr(sent));
    if (record == 0) return status::closed;
  }
}

// What the session has of the peer's words.
socket::status socket::encryption::read(char* bytes, std::size_t size,
                                        std::size_t& received) noexcept {
  std::lock_guard const held{mutex};
  switch (session.read(bytes, size, received)) {
    case tls_session::state::ok:
      return status::ok;
    case tls_session::state::incomplete:
      return status::blocked;
    case tls_session::state::over:
      break;
  }
  return status::closed;
}

void socket::encryption::take(std::string_view received) noexcept {
  std::lock_guard const held{mutex};
  session.take(received);
}

socket::socket(int fd) noexcept : fd_{fd} {}
socket::socket() noexcept = default;

socket socket::connect(address const& to, resolver& names, connect_bound const& bound,
                       tls_context const* tls) {
  auto const candidates = to.path.empty() ? names.resolve(to.host, to.port, bound)
                                          : std::vector<std::string>{unix_name(to.path)};
  int fault = ETIMEDOUT;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    // One address that swallows packets leaves time for those after it.
    auto const now = boottime::now();
    auto const share = (bound.until - now) / static_cast<int>(candidates.size() - i);
    auto result = connect_to(candidates[i], {now + share, bound.cancelled}, fault);
    if (result) {
      if (tls != nullptr) result.encrypt(*tls, to, bound);
      return result;
    }
    if (bound.cancelled) throw unreachable{"the connection was shut down", false};
  }
  if (fault == ETIMEDOUT && boottime::now() >= bound.until) {
    throw unreachable{"connecting to " + to.to_string() + " took too long", true};
  }
  throw unreachable{"connecting to " + to.to_string() + ": " + reason(fault), false};
}

void socket::encrypt(tls_context const& shared, address const& to, connect_bound const& bound) {
  encryption_ = std::make_unique<encryption>(shared, to.host);
  auto& session = encryption_->session;
  for (;;) {
    auto const reached = session.shake_hands();
    // What is said at the end, an alert, is sent as well.
    auto const flushed = encryption_->flush(fd_);
    if (reached == tls_session::state::over) {
      throw unreachable{"connecting to " + to.to_string() + ": " + session.error(), false};
    }
    if (reached == tls_session::state::ok && flushed == status::ok) return;
    if (bound.cancelled) throw unreachable{"the connection was shut down", false};
    auto const left = bound.until - boottime::now();
    if (left <= 0ns) {
      throw unreachable{
          "the TLS handshake with " + to.to_string() + " took too long (does it speak TLS?)", true};
    }
    poll_once(fd_, flushed == status::blocked ? POLLIN | POLLOUT : POLLIN,
              std::min<std::chrono::nanoseconds>(left, longest_connecting_poll));
    std::array<char, most_ciphertext> bytes;
    std::size_t arrived = 0;
    if (receive_plain_arrived(fd_, bytes.data(), bytes.size(), arrived) == status::closed) {
      throw unreachable{to.to_string() + " closed the connection during the TLS handshake", false};
    }
    session.take({bytes.data(), arrived});
  }
}

socket::socket(socket&& other) noexcept
    : fd_{std::exchange(other.fd_, -1)}, encryption_{std::move(other.encryption_)} {}

socket& socket::operator=(socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
    encryption_ = std::move(other.encryption_);
  }
  return *this;
}

socket::~socket() { close(); }

void socket::close() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  encryption_.reset();
}

void socket::interrupt() noexcept {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
}

socket::status socket::send(std::string_view bytes, std::size_t& sent) noexcept {
  return encryption_ ? encryption_->send(fd_, bytes, sent) : send_plain(fd_, bytes, sent);
}

socket::status socket::receive(char* bytes, std::size_t size, std::size_t& received, bool writable,
                               time_point until) noexcept {
  if (!encryption_) return receive_plain(fd_, bytes, size, received, writable, until);
  // What one record held beyond the room that the last caller had is there already.
  if (auto const known = encryption_->read(bytes, size, received); known != status::blocked) {
    return known;
  }
  std::array<char, most_ciphertext> arrived;
  std::size_t count = 0;
  auto const reached = receive_plain(fd_, arrived.data(), arrived.size(), count, writable, until);
  if (count == 0) return reached;
  encryption_->take({arrived.data(), count});
  return encryption_->read(bytes, size, received);
}

socket::status socket::receive_arrived(char* bytes, std::size_t size,
                                       std::size_t& received) noexcept {
  if (!encryption_) return receive_plain_arrived(fd_, bytes, size, received);
  for (;;) {
    if (auto const known = encryption_->read(bytes, size, received); known != status::blocked) {
      return known;
    }
    std::array<char, most_ciphertext> arrived;
    std::size_t count = 0;
    auto const reached = receive_plain_arrived(fd_, arrived.data(), arrived.size(), count);
    if (reached != status::ok) return reached;
    encryption_->take({arrived.data(), count});
  }
}

std::string socket::why_closed() const {
  if (!encryption_) return {};
  std::lock_guard const held{encryption_->mutex};
  auto const& why = encryption_->session.error();
  return why.empty() ? why : ": " + why;
}

}  // namespace fenceguard::redis
