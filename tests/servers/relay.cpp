#include "servers/relay.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

namespace fenceguard::test_servers {
namespace {

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void without_nagle(int socket) {
  int const on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

relay::relay(int target_port) : target_port_(target_port) { listen(); }

relay::relay(std::string const& target_path) : target_path_(target_path) {
  if (target_path.size() >= sizeof(sockaddr_un::sun_path)) {
    throw std::invalid_argument("path of a Unix socket too long: " + target_path);
  }
  listen();
}

relay::~relay() {
  {
    std::lock_guard lock{mutex_};
    stopping_ = true;
  }
  wake();
  thread_.join();
  ::close(listener_);
  ::close(wake_);
}

void relay::listen() {
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  if (wake_ < 0 || listener_ < 0 || ::bind(listener_, raw, size) != 0 ||
      ::listen(listener_, 512) != 0 || ::getsockname(listener_, raw, &size) != 0) {
    int const error = errno;
    ::close(listener_);
    ::close(wake_);
    throw std::system_error(error, std::generic_category(), "relay");
  }
  port_ = ntohs(address.sin_port);
  thread_ = std::thread{[this] { work(); }};
}

void relay::wake() const {
  std::uint64_t const one = 1;
  // It fails only when the counter is full, and then the thread is awake anyway.
  [[maybe_unused]] auto const written = ::write(wake_, &one, sizeof one);
}

int relay::connect_to_target() const {
  bool const unix_socket = !target_path_.empty();
  int const socket =
      ::socket(unix_socket ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return -1;
  int status = 0;
  if (unix_socket) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, target_path_.data(), target_path_.size());
    status = ::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address);
  } else {
    sockaddr_in address = loopback(target_port_);
    status = ::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address);
    without_nagle(socket);
  }
  if (status != 0 && errno != EINPROGRESS) {
    ::close(socket);
    return -1;
  }
  return socket;
}

void relay::accept_all() {
  for (;;) {
    int const client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0) return;
    ++accepted_;
    without_nagle(client);
    auto& made = connections_.emplace_back(client, severed_ ? -1 : connect_to_target());
    if (severed_) made.reset();
  }
}

std::optional<std::chrono::steady_clock::time_point> relay::next_due() const {
  std::optional<std::chrono::steady_clock::time_point> next;
  for (auto const& connection : connections_) {
    auto const due = connection.next_due(rules_);
    if (due && (!next || *due < *next)) next = due;
  }
  return next;
}

void relay::work() {
  ::prctl(PR_SET_TIMERSLACK, 1);  // a delay of 0.5 ms shall not become 0.55 ms
  std::vector<pollfd> entries;
  std::unique_lock lock{mutex_};
  while (!stopping_) {
    auto const now = std::chrono::steady_clock::now();
    entries.assign({{wake_, POLLIN, 0}, {listener_, POLLIN, 0}});
    for (auto const& connection : connections_) {
      auto const wanted = connection.wanted(rules_, now);
      entries.insert(entries.end(), wanted.begin(), wanted.end());
    }
    timespec limit{};
    auto const due = next_due();
    // What is due already and could not be written waits for its socket.
    bool const timed = due && *due > now;
    if (timed) {
      auto const left = std::chrono::duration_cast<std::chrono::nanoseconds>(*due - now).count();
      limit = {left / 1'000'000'000, left % 1'000'000'000};
    }
    lock.unlock();
    ::ppoll(entries.data(), entries.size(), timed ? &limit : nullptr, nullptr);
    lock.lock();

    std::uint64_t wakes = 0;
    while (::read(wake_, &wakes, sizeof wakes) > 0) {
    }
    accept_all();
    for (auto& connection : connections_) connection.step(rules_);
    connections_.remove_if([](auto const& connection) { return connection.finished(); });
  }
  connections_.clear();
}

void relay::delay(std::chrono::nanoseconds each_way) {
  std::lock_guard lock{mutex_};
  rules_.delay = each_way;
}

void relay::stall(direction way) {
  std::lock_guard lock{mutex_};
  rules_[way].stalled = true;
}

void relay::swallow(direction way) {
  std::lock_guard lock{mutex_};
  rules_[way].swallowing = true;
}

void relay::flow(direction way) {
  std::lock_guard lock{mutex_};
  rules_[way].stalled = false;
  rules_[way].swallowing = false;
  wake();
}

void relay::flow() {
  flow(direction::to_server);
  flow(direction::to_client);
}

void relay::cut() {
  std::lock_guard lock{mutex_};
  for (auto& connection : connections_) connection.reset();
  wake();
}

void relay::sever() {
  std::lock_guard lock{mutex_};
  severed_ = true;
  for (auto& connection : connections_) connection.reset();
  wake();
}

void relay::restore() {
  std::lock_guard lock{mutex_};
  severed_ = false;
}

void relay::when_seen(direction way, std::string bytes, reaction what) {
  std::lock_guard lock{mutex_};
  rules_[way].trigger = std::move(bytes);
  rules_[way].what = what;
}

void relay::cut_after_bytes(direction way, std::size_t count) {
  std::lock_guard lock{mutex_};
  rules_[way].bytes_left = count;
}

int relay::fired() const {
  std::lock_guard lock{mutex_};
  return rules_.fired;
}

std::int64_t relay::round_trips() const {
  std::lock_guard lock{mutex_};
  return rules_.round_trips;
}

std::int64_t relay::bytes(direction way) const {
  std::lock_guard lock{mutex_};
  return rules_[way].bytes;
}

std::int64_t relay::accepted() const {
  std::lock_guard lock{mutex_};
  return accepted_;
}

void relay::reset_counters() {
  std::lock_guard lock{mutex_};
  rules_.round_trips = 0;
  rules_.fired = 0;
  for (auto& way : rules_.ways) way.bytes = 0;
  accepted_ = 0;
}

std::size_t relay::open_connections() const {
  std::lock_guard lock{mutex_};
  return connections_.size();
}

}  // namespace fenceguard::test_servers
