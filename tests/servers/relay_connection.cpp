#include "servers/relay_connection.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace fenceguard::test_servers {
namespace {

constexpr std::size_t most_queued = std::size_t{1} << 20;
constexpr std::array both{direction::to_server, direction::to_client};

void close_with_reset(int& socket) noexcept {
  if (socket < 0) return;
  linger const at_once{1, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  ::close(std::exchange(socket, -1));
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

relay_connection::relay_connection(int client, int server) : client_(client), server_(server) {}

relay_connection::~relay_connection() { reset(); }

void relay_connection::reset() noexcept {
  close_with_reset(client_);
  close_with_reset(server_);
}

bool relay_connection::wants_to_read(direction d) const {
  auto const& p = pipes_[static_cast<std::size_t>(d)];
  int const from = d == direction::to_server ? client_ : server_;
  return from >= 0 && !p.read_ended && p.queued < most_queued;
}

bool relay_connection::wants_to_write(direction d, relay_rules const& rules,
                                      clock::time_point now) const {
  auto const& p = pipes_[static_cast<std::size_t>(d)];
  return !rules[d].stalled && !p.queue.empty() && p.queue.front().due <= now;
}

std::array<pollfd, 2> relay_connection::wanted(relay_rules const& rules,
                                               clock::time_point now) const {
  std::array<pollfd, 2> entries{pollfd{client_, 0, 0}, pollfd{server_, 0, 0}};
  for (direction const d : both) {
    auto const from = static_cast<std::size_t>(d);
    if (wants_to_read(d)) entries[from].events = short(entries[from].events | POLLIN);
    if (wants_to_write(d, rules, now))
      entries[1 - from].events = short(entries[1 - from].events | POLLOUT);
  }
  // Without events, poll would still report the end of a connection, again and again.
  for (auto& entry : entries) {
    if (entry.events == 0) entry.fd = -1;
  }
  return entries;
}

std::optional<relay_connection::clock::time_point> relay_connection::next_due(
    relay_rules const& rules) const {
  std::optional<clock::time_point> next;
  for (direction const d : both) {
    auto const& p = pipes_[static_cast<std::size_t>(d)];
    if (rules[d].stalled || p.queue.empty()) continue;
    if (!next || p.queue.front().due < *next) next = p.queue.front().due;
  }
  return next;
}

void relay_connection::step(relay_rules& rules) {
  for (direction const d : both) {
    if (wants_to_read(d)) read(d, rules);
  }
  for (direction const d : both) write(d, rules);
  if (pipe_of(direction::to_server).ended && pipe_of(direction::to_client).ended) {
    for (int* socket : {&client_, &server_}) {
      if (*socket >= 0) ::close(std::exchange(*socket, -1));
    }
  }
}

void relay_connection::read(direction d, relay_rules& rules) {
  std::array<char, 65536> buffer;
  ssize_t const got = ::recv(source(d), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got > 0) {
    take(d, rules, {buffer.data(), static_cast<std::size_t>(got)});
  } else if (got == 0 || !would_block()) {
    // A reset ends the connection too, but only after what had been sent before it.
    queue_end(d, rules);
  }
}

bool relay_connection::triggered(direction d, relay_rules& rules, std::string_view bytes) {
  auto& way = rules[d];
  auto& recent = pipe_of(d).recent;
  if (way.trigger.empty()) {
    recent.clear();
    return false;
  }
  recent.append(bytes);
  bool const seen = recent.find(way.trigger) != std::string::npos;
  if (recent.size() >= way.trigger.size()) recent.erase(0, recent.size() - way.trigger.size() + 1);
  if (seen) {
    way.trigger.clear();
    recent.clear();
    ++rules.fired;
  }
  return seen;
}

void relay_connection::take(direction d, relay_rules& rules, std::string_view bytes) {
  auto& way = rules[d];
  way.bytes += static_cast<std::int64_t>(bytes.size());
  if (d == direction::to_server && last_ != direction::to_server) ++rules.round_trips;
  last_ = d;

  if (triggered(d, rules, bytes)) {
    switch (way.what) {
      case reaction::cut_before:
        return reset();
      case reaction::cut_after:
        return forward_and_cut(d, rules, bytes);
      case reaction::stall:
        way.stalled = true;
        break;
    }
  }
  if (way.bytes_left) {
    if (bytes.size() >= *way.bytes_left) {
      auto const last = *std::exchange(way.bytes_left, std::nullopt);
      ++rules.fired;
      return forward_and_cut(d, rules, bytes.substr(0, last));
    }
    *way.bytes_left -= bytes.size();
  }
  queue(d, rules, bytes);
}

void relay_connection::queue(direction d, relay_rules const& rules, std::string_view bytes) {
  if (rules[d].swallowing || bytes.empty()) return;
  auto& p = pipe_of(d);
  p.queue.push_back({clock::now() + rules.delay, std::string{bytes}});
  p.queued += bytes.size();
}

void relay_connection::queue_end(direction d, relay_rules const& rules) {
  auto& p = pipe_of(d);
  p.read_ended = true;
  if (!rules[d].swallowing) p.queue.push_back({clock::now() + rules.delay, {}});
}

// The receiver gets the bytes and then an orderly end: a reset could overtake them. The sender is
// cut off at once, and what the receiver answers is read and thrown away.
void relay_connection::forward_and_cut(direction d, relay_rules const& rules,
                                       std::string_view bytes) {
  queue(d, rules, bytes);
  queue_end(d, rules);
  direction const back = d == direction::to_server ? direction::to_client : direction::to_server;
  close_with_reset(source(d));
  auto& answers = pipe_of(back);
  answers.queue.clear();
  answers.queued = 0;
}

void relay_connection::write(direction d, relay_rules const& rules) {
  auto& p = pipe_of(d);
  if (sink(d) < 0) {  // cut: nobody is there to read
    bool const end = !p.queue.empty() && p.queue.back().bytes.empty();
    p.queue.clear();
    p.queued = 0;
    p.ended = p.ended || end;
    return;
  }
  auto const now = clock::now();
  while (wants_to_write(d, rules, now)) {
    auto& front = p.queue.front();
    if (front.bytes.empty()) return pass_end(d);
    ssize_t const sent =
        ::send(sink(d), front.bytes.data(), front.bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (!would_block()) reset();
      return;
    }
    p.queued -= static_cast<std::size_t>(sent);
    front.bytes.erase(0, static_cast<std::size_t>(sent));
    if (front.bytes.empty()) p.queue.pop_front();
  }
}

void relay_connection::pass_end(direction d) {
  auto& p = pipe_of(d);
  p.queue.clear();
  p.ended = true;
  ::shutdown(sink(d), SHUT_WR);
}

}  // namespace fenceguard::test_servers
