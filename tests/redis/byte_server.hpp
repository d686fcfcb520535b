#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

namespace fenceguard::redis_tests {

// A TCP server that says what no Redis would: `talk` gets each connection in turn, and its end. For
// what the protocol allows a peer to do and redis-server never does.
class byte_server {
 public:
  explicit byte_server(std::function<void(int descriptor)> talk) : talk_{std::move(talk)} {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof name;
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&name), size) != 0 ||
        ::listen(listener_, 16) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&name), &size) != 0) {
      throw std::runtime_error{"no listener"};
    }
    port_ = ntohs(name.sin_port);
    thread_ = std::thread{[this] {
      for (;;) {
        int const descriptor = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (descriptor < 0) return;
        current_ = descriptor;
        if (!stop_) talk_(descriptor);
        current_ = -1;
        ::close(descriptor);
      }
    }};
  }
  ~byte_server() {
    stop_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    if (int const descriptor = current_; descriptor >= 0) ::shutdown(descriptor, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  byte_server(byte_server const&) = delete;
  byte_server& operator=(byte_server const&) = delete;

  std::uint16_t port() const { return port_; }

  // False at the end of the connection.
  static bool say(int descriptor, std::string_view bytes) {
    return ::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // What arrives next; empty at the end of the connection.
  static std::string hear(int descriptor) {
    std::string bytes(64 * 1024, '\0');
    auto const size = ::recv(descriptor, bytes.data(), bytes.size(), 0);
    bytes.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
    return bytes;
  }

 private:
  std::function<void(int)> talk_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<int> current_ = -1;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace fenceguard::redis_tests
