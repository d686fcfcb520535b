#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <fenceguard/core/events.hpp>
#include <memory>
#include <string>
#include <vector>

#include "redis/backend_fixture.hpp"
#include "redis/redlock_backend.hpp"
#include "servers/redis_server.hpp"
#include "servers/relay.hpp"

namespace fenceguard::redis_tests {

using redis::redlock_backend;

// Five private servers, and a relay in front of each.
class quorum {
 public:
  explicit quorum(test_servers::redis_server::options const& one = {}) {
    for (int i = 0; i < 5; ++i) {
      servers_.push_back(std::make_unique<test_servers::redis_server>(one));
      relays_.push_back(std::make_unique<test_servers::relay>(servers_.back()->port()));
    }
  }

  test_servers::redis_server& server(std::size_t i) { return *servers_[i]; }
  test_servers::relay& relay(std::size_t i) { return *relays_[i]; }
  void kill(std::size_t i) { server(i).stop(test_servers::redis_server::stop_mode::kill); }

  struct options {
    bool relayed = false;
    std::chrono::milliseconds command_timeout{1'000};
    observer* log = nullptr;
    std::string user = {};
    std::string password = {};
  };
  std::unique_ptr<redlock_backend> open(token_source& tokens, options const& made) {
    std::vector<redis::connection_options> links;
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      auto& one = links.emplace_back();
      one.server.host = "127.0.0.1";
      one.server.port =
          static_cast<std::uint16_t>(made.relayed ? relays_[i]->port() : servers_[i]->port());
      one.login = {made.user, made.password};
      one.connect_timeout = one.silence_limit = made.command_timeout;
    }
    return std::make_unique<redlock_backend>(
        redlock_backend::settings{.servers = std::move(links),
                                  .keys = redis::key_space{"fenceguard"},
                                  .command_timeout = made.command_timeout,
                                  .observer = made.log},
        tokens);
  }
  std::unique_ptr<redlock_backend> open(token_source& tokens) { return open(tokens, options{}); }

  static std::string key(std::string const& resource) { return "fenceguard:{0}:lease:" + resource; }
  bool has(std::size_t i, std::string const& resource) {
    return server(i).command({"EXISTS", key(resource)}).integer == 1;
  }
  // How many of the servers that run have the lease's key.
  int copies(std::string const& resource) {
    int count = 0;
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      if (server(i).running() && has(i, resource)) ++count;
    }
    return count;
  }
  bool drop(std::size_t i, std::string const& resource) {
    return server(i).command({"DEL", key(resource)}).integer == 1;
  }
  // What another program's competitor would have there.
  void put(std::size_t i, std::string const& resource, std::string const& holder,
           std::chrono::milliseconds ttl = 60s) {
    auto const said = server(i).command({"SET", key(resource), holder + " 0 1700000000000000 x",
                                         "PX", std::to_string(ttl.count())});
    REQUIRE(!said.is_error());
  }

 private:
  std::vector<std::unique_ptr<test_servers::redis_server>> servers_;
  std::vector<std::unique_ptr<test_servers::relay>> relays_;
};

// Why nothing was granted. Whether all is known to be given back by then depends on how fast the
// servers are.
inline std::string reason_of(backend::acquire_answer const& answer) {
  INFO(describe(answer));
  if (auto const* refused = std::get_if<backend::not_applied>(&answer)) return refused->reason;
  REQUIRE(std::holds_alternative<backend::unknown>(answer));
  return std::get<backend::unknown>(answer).reason;
}

template <class Call>
std::chrono::milliseconds time_of(Call const& call) {
  auto const before = boottime::now();
  call();
  return std::chrono::duration_cast<std::chrono::milliseconds>(boottime::now() - before);
}

}  // namespace fenceguard::redis_tests
