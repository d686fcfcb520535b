#include "servers/redis_sentinels.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "servers/free_port.hpp"
#include "servers/wait.hpp"

namespace fenceguard::test_servers {
namespace {

using tls = std::optional<redis_server::tls>;

redis_server follower_of(redis_server const& primary, tls const& encrypted) {
  redis_server made{{.encrypted = encrypted}};
  made.replica_of(primary);
  return made;
}

std::string field(redis_reply const& pairs, std::string const& name) {
  for (std::size_t i = 0; i + 1 < pairs.elements.size(); i += 2) {
    if (pairs.elements[i].text == name) return pairs.elements[i + 1].text;
  }
  return {};
}

// Nothing also where the server hangs up, as it does on all its clients when a sentinel gives it
// another role.
std::optional<std::string> replication(redis_server const& server, std::string const& field) {
  try {
    return server.info("replication", field);
  } catch (std::runtime_error const&) {
    return std::nullopt;
  }
}

}  // namespace

redis_sentinels::redis_sentinels() : redis_sentinels{std::nullopt} {}

redis_sentinels::redis_sentinels(std::optional<redis_server::tls> encrypted)
    : encrypted_{std::move(encrypted)}, servers_{[this] {
        redis_server primary{{.encrypted = encrypted_}};
        auto first = follower_of(primary, encrypted_);
        auto second = follower_of(primary, encrypted_);
        return std::array<redis_server, 3>{std::move(primary), std::move(first), std::move(second)};
      }()} {
  for (auto& one : sentinels_) start(one);
  wait_until_settled();
}

void redis_sentinels::start(sentinel& one) {
  auto const config = one.directory.path() / "sentinel.conf";
  for (int attempt = 0; attempt < 20; ++attempt) {
    one.port = free_port();
    std::ofstream text{config};
    text << "port " << one.port << "\nbind 127.0.0.1\ndir " << one.directory.path().string()
         << "\nsentinel monitor " << service << " 127.0.0.1 " << servers_[0].port()
         << " 2\nsentinel down-after-milliseconds " << service << " 500\nsentinel failover-timeout "
         << service << " 2000\n";
    if (encrypted_) {
      one.tls_port = free_port();
      text << "tls-port " << one.tls_port << "\ntls-cert-file "
           << encrypted_->own.certificate.string() << "\ntls-key-file "
           << encrypted_->own.key.string() << "\ntls-ca-cert-file "
           << encrypted_->authority.string() << "\ntls-auth-clients no\ntls-replication yes\n";
    }
    text.close();
    one.process.clear();
    one.process.emplace_back(
        child_process::options{.command = {"redis-server", config.string(), "--sentinel"},
                               .log = one.directory.path() / "sentinel.log"});
    bool const settled = eventually([&] {
      if (!one.process[0].running()) return true;
      try {
        return redis_command(one.port, {"PING"}).text == "PONG";
      } catch (std::runtime_error const&) {
        return false;
      }
    });
    if (settled && one.process[0].running()) return;
  }
  throw std::runtime_error("a sentinel does not start: " +
                           tail(one.directory.path() / "sentinel.log"));
}

std::vector<int> redis_sentinels::sentinel_ports() const {
  std::vector<int> ports;
  for (auto const& one : sentinels_) ports.push_back(one.port);
  return ports;
}

std::string redis_sentinels::url() const {
  std::string text;
  std::string const scheme = encrypted_ ? "rediss+sentinel://" : "redis+sentinel://";
  for (auto const& one : sentinels_) {
    text += (text.empty() ? scheme : ",") +
            "127.0.0.1:" + std::to_string(encrypted_ ? one.tls_port : one.port);
  }
  text += std::string{"/"} + service;
  return encrypted_ ? text + "?cacert=" + encrypted_->authority.string() : text;
}

int redis_sentinels::named_port(int sentinel_port) const {
  auto const named = redis_command(sentinel_port, {"SENTINEL", "get-master-addr-by-name", service});
  return named.elements.size() == 2 ? std::stoi(named.elements[1].text) : 0;
}

redis_server& redis_sentinels::primary() {
  int const port = named_port(sentinels_[0].port);
  auto const found = std::find_if(servers_.begin(), servers_.end(),
                                  [&](redis_server const& one) { return one.port() == port; });
  if (found == servers_.end()) throw std::runtime_error("the sentinels name no server of ours");
  return *found;
}

void redis_sentinels::wait_for_another_than(int port) {
  wait_until("all sentinels to name another primary", [&] {
    return std::all_of(sentinels_.begin(), sentinels_.end(),
                       [&](auto const& one) { return named_port(one.port) != port; });
  });
  wait_until("the primary to know that it is one",
             [&] { return replication(primary(), "role") == "master"; });
}

void redis_sentinels::wait_until_settled() {
  wait_until("servers and sentinels to know each other", [&] {
    auto& first = primary();
    for (auto& one : servers_) {
      bool const is_primary = &one == &first;
      auto const role = replication(one, "role");
      if (role != (is_primary ? "master" : "slave")) return false;
      if (!is_primary && replication(one, "master_link_status") != "up") return false;
      if (!is_primary && replication(one, "master_port") != std::to_string(first.port())) {
        return false;
      }
    }
    for (auto const& one : sentinels_) {
      auto const known = redis_command(one.port, {"SENTINEL", "master", service});
      if (field(known, "num-slaves") != "2" || field(known, "num-other-sentinels") != "2" ||
          field(known, "flags") != "master" ||
          field(known, "port") != std::to_string(first.port())) {
        return false;
      }
      for (auto const& replica :
           redis_command(one.port, {"SENTINEL", "replicas", service}).elements) {
        if (field(replica, "master-link-status") != "ok" || field(replica, "flags") != "slave") {
          return false;
        }
      }
    }
    return true;
  });
}

void redis_sentinels::fail_over() {
  int const before = primary().port();
  // A sentinel refuses while it is not sure of a good replica, or shortly after a failover.
  wait_until("a sentinel to begin the failover", [&] {
    return !redis_command(sentinels_[0].port, {"SENTINEL", "failover", service}).is_error();
  });
  wait_for_another_than(before);
  wait_until_settled();
}

void redis_sentinels::kill_primary() {
  auto& old = primary();
  old.stop(redis_server::stop_mode::kill);
  wait_for_another_than(old.port());
}

void redis_sentinels::revive() {
  for (auto& one : servers_) one.start();
  wait_until_settled();
}

}  // namespace fenceguard::test_servers
