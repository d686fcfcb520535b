#include <netdb.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "redis/socket.hpp"

namespace fenceguard::redis {

// Shared with the thread that looks the name up and may outlive its resolver.
struct resolver::lookup {
  std::string host;
  std::string port;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  int fault = 0;
  std::vector<std::string> addresses;

  void run(int flags) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags | AI_NUMERICSERV;
    addrinfo* list = nullptr;
    int const answer = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
    std::vector<std::string> found;
    for (auto const* one = answer == 0 ? list : nullptr; one != nullptr; one = one->ai_next) {
      found.emplace_back(reinterpret_cast<char const*>(one->ai_addr), one->ai_addrlen);
    }
    if (answer == 0) ::freeaddrinfo(list);
    std::lock_guard const lock{mutex};
    addresses = std::move(found);
    fault = answer;
    done = true;
    changed.notify_all();
  }
};

namespace {

std::shared_ptr<resolver::lookup> start_lookup(std::string const& host, std::string const& port) {
  auto started = std::make_shared<resolver::lookup>();
  started->host = host;
  started->port = port;
  started->run(AI_NUMERICHOST);
  if (started->fault == 0) return started;
  started->done = false;
  try {
    std::thread{[started] { started->run(AI_ADDRCONFIG); }}.detach();
  } catch (std::system_error const& e) {
    throw unreachable{"no thread to look up '" + host + "': " + e.what(), false};
  }
  return started;
}

}  // namespace

std::vector<std::string> resolver::resolve(std::string const& host, std::uint16_t port,
                                           connect_bound const& bound) {
  using namespace std::chrono_literals;
  auto const port_text = std::to_string(port);
  if (!running_ || running_->host != host || running_->port != port_text) {
    running_ = start_lookup(host, port_text);
  }
  auto const mine = running_;
  std::unique_lock lock{mine->mutex};
  while (!mine->done) {
    auto const left = bound.until - boottime::now();
    if (left <= 0ns) throw unreachable{"looking up '" + host + "' took too long", true};
    if (bound.cancelled) throw unreachable{"the connection was shut down", false};
    mine->changed.wait_for(lock, std::min<std::chrono::nanoseconds>(left, 20ms));
  }
  running_.reset();  // the next attempt asks anew: a name moves after a failover
  if (mine->fault != 0 || mine->addresses.empty()) {
    auto const* const reason = mine->fault != 0 ? ::gai_strerror(mine->fault) : "no address";
    throw unreachable{"looking up '" + host + "': " + reason, false};
  }
  return mine->addresses;
}

}  // namespace fenceguard::redis
