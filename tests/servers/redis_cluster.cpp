#include "servers/redis_cluster.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "servers/free_port.hpp"
#include "servers/wait.hpp"

namespace fenceguard::test_servers {
namespace {

constexpr int slots = 16'384;

redis_reply require(redis_reply reply) {
  if (reply.is_error()) throw std::runtime_error("redis cluster: " + reply.text);
  return reply;
}

bool has(redis_server const& node, std::string const& line) {
  return node.command({"CLUSTER", "INFO"}).text.find(line) != std::string::npos;
}

}  // namespace

redis_cluster::redis_cluster() : redis_cluster(options{}) {}

redis_cluster::redis_cluster(options how) : options_{std::move(how)} {
  auto const count = options_.replicas ? 2 * primaries : primaries;
  for (std::size_t i = 0; i < count; ++i) {
    bus_ports_.push_back(free_port());
    nodes_.emplace_back(redis_server::options{
        .arguments = {"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
                      "--cluster-port", std::to_string(bus_ports_.back()),
                      // Without replicas nobody replaces a node that is stopped for a while.
                      "--cluster-node-timeout", options_.replicas ? "2000" : "20000",
                      "--cluster-require-full-coverage", "no"},
        .encrypted = options_.encrypted});
  }
  for (std::size_t i = 0; i < primaries; ++i) {
    auto const first = static_cast<int>(i) * slots / static_cast<int>(primaries);
    auto const last = static_cast<int>(i + 1) * slots / static_cast<int>(primaries) - 1;
    require(nodes_[i].command(
        {"CLUSTER", "ADDSLOTSRANGE", std::to_string(first), std::to_string(last)}));
    require(nodes_[i].command({"CLUSTER", "SET-CONFIG-EPOCH", std::to_string(i + 1)}));
  }
  for (std::size_t i = 1; i < count; ++i) {
    require(nodes_[i].command({"CLUSTER", "MEET", "127.0.0.1", std::to_string(nodes_[0].port()),
                               std::to_string(bus_ports_[0])}));
  }
  wait_until("all nodes to know each other", [&] {
    return std::all_of(nodes_.begin(), nodes_.end(), [&](auto const& one) {
      return has(one, "cluster_known_nodes:" + std::to_string(count));
    });
  });
  for (std::size_t i = primaries; i < count; ++i) {
    auto const id = id_of(i - primaries);
    wait_until("a primary to be known to its replica", [&] {
      return !nodes_[i].command({"CLUSTER", "REPLICATE", id}).is_error();
    });
    wait_until("a replica's link to its primary",
               [&] { return nodes_[i].info("replication", "master_link_status") == "up"; });
  }
  wait_until_whole();
}

std::string redis_cluster::url() const {
  std::string text{options_.encrypted ? "rediss+cluster://" : "redis+cluster://"};
  for (std::size_t i = 0; i < primaries; ++i) {
    text += (i == 0 ? "127.0.0.1:" : ",127.0.0.1:") + std::to_string(nodes_[i].port());
  }
  if (options_.encrypted) text += "?cacert=" + options_.encrypted->authority.string();
  return text;
}

std::string redis_cluster::id_of(std::size_t node) const {
  return require(nodes_[node].command({"CLUSTER", "MYID"})).text;
}

std::size_t redis_cluster::with_port(std::string const& port) const {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (std::to_string(nodes_[i].port()) == port) return i;
  }
  throw std::runtime_error("redis cluster: no node has port " + port);
}

void redis_cluster::wait_until_whole() {
  wait_until("the cluster to be whole", [&] {
    return std::all_of(nodes_.begin(), nodes_.end(), [&](auto& one) {
      return !one.running() || (has(one, "cluster_state:ok") && has(one, "cluster_slots_ok:16384"));
    });
  });
}

// Each node is asked for itself: what it says of others may be older.
std::size_t redis_cluster::owner_of(int slot) {
  std::size_t owner = 0;
  wait_until("a node to say that it has slot " + std::to_string(slot), [&] {
    for (owner = 0; owner < nodes_.size(); ++owner) {
      if (!nodes_[owner].running()) continue;
      for (auto const& range : require(nodes_[owner].command({"CLUSTER", "SLOTS"})).elements) {
        auto const& port = range.elements[2].elements[1].integer;
        if (port != nodes_[owner].port()) continue;
        if (slot >= range.elements[0].integer && slot <= range.elements[1].integer) return true;
      }
    }
    return false;
  });
  return owner;
}

void redis_cluster::begin_move(int slot, std::size_t from, std::size_t to) {
  auto const number = std::to_string(slot);
  require(nodes_[to].command({"CLUSTER", "SETSLOT", number, "IMPORTING", id_of(from)}));
  require(nodes_[from].command({"CLUSTER", "SETSLOT", number, "MIGRATING", id_of(to)}));
}

void redis_cluster::move_keys(int slot, std::size_t from, std::size_t to) {
  for (;;) {
    auto const keys =
        require(nodes_[from].command({"CLUSTER", "GETKEYSINSLOT", std::to_string(slot), "50"}));
    if (keys.elements.empty()) return;
    for (auto const& key : keys.elements) move_key(key.text, from, to);
  }
}

void redis_cluster::move_key(std::string const& key, std::size_t from, std::size_t to) {
  auto const port = std::to_string(nodes_[to].port());
  require(nodes_[from].command({"MIGRATE", "127.0.0.1", port, key, "0", "5000"}));
}

void redis_cluster::cancel_move(int slot, std::size_t from, std::size_t to) {
  auto const number = std::to_string(slot);
  require(nodes_[from].command({"CLUSTER", "SETSLOT", number, "STABLE"}));
  move_keys(slot, to, from);
  require(nodes_[to].command({"CLUSTER", "SETSLOT", number, "STABLE"}));
}

// The new owner first: while it does not own the slot it would send back whom the old one sends.
void redis_cluster::end_move(int slot, std::size_t to) {
  std::vector<std::string> const words{"CLUSTER", "SETSLOT", std::to_string(slot), "NODE",
                                       id_of(to)};
  require(nodes_[to].command(words));
  for (std::size_t i = 0; i < primaries; ++i) {
    if (i != to) require(nodes_[i].command(words));
  }
  wait_until_all_know(slot, to);
}

// A node that does not know the new owner's epoch yet may take the slot next under a lower one, and
// lose it again to an old message: then nobody has it.
void redis_cluster::wait_until_all_know(int slot, std::size_t owner) const {
  auto const id = id_of(owner);
  auto const epoch_by = [&](std::size_t witness) {
    std::istringstream lines{nodes_[witness].command({"CLUSTER", "NODES"}).text};
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words{line};
      // id address flags primary ping pong epoch
      std::vector<std::string> const all{std::istream_iterator<std::string>{words}, {}};
      if (all.size() > 6 && all[0] == id) return all[6];
    }
    return std::string{"none"};
  };
  auto const owner_by = [&](std::size_t witness) {
    for (auto const& range : require(nodes_[witness].command({"CLUSTER", "SLOTS"})).elements) {
      if (slot < range.elements[0].integer || slot > range.elements[1].integer) continue;
      return range.elements[2].elements[1].integer;
    }
    return -1LL;
  };
  wait_until("all to know whose slot " + std::to_string(slot) + " is", [&] {
    auto const epoch = epoch_by(owner);
    for (std::size_t i = 0; i < primaries; ++i) {
      if (epoch_by(i) != epoch || owner_by(i) != nodes_[owner].port()) return false;
    }
    return true;
  });
}

void redis_cluster::move_slot(int slot, std::size_t from, std::size_t to) {
  begin_move(slot, from, to);
  move_keys(slot, from, to);
  end_move(slot, to);
}

// The servers give up after five seconds, and where they are slow that may be too soon.
void redis_cluster::fail_over_to(std::size_t replica) {
  auto const done = [&] { return nodes_[replica].info("replication", "role") == "master"; };
  for (int attempt = 0; attempt < 6; ++attempt) {
    require(nodes_[replica].command({"CLUSTER", "FAILOVER"}));
    if (eventually(done, std::chrono::seconds{6})) return;
  }
  throw std::runtime_error("redis cluster: no failover was agreed upon");
}

redis_reply redis_cluster::command(std::vector<std::string> const& words) const {
  redis_reply last;
  wait_until("a node to have the key of " + words.at(0), [&] {
    for (auto const& node : nodes_) {
      last = node.command(words);
      if (last.text.starts_with("ASK ")) {
        auto const port = last.text.substr(last.text.rfind(':') + 1);
        last = nodes_[with_port(port)].command_asking(words);
      }
      if (!last.is_error() || !last.text.starts_with("MOVED ")) return true;
    }
    return false;
  });
  return last;
}

long long redis_cluster::errors(std::string const& code) {
  long long sum = 0;
  for (auto& node : nodes_) {
    if (!node.running()) continue;
    auto const text = node.info("errorstats", "errorstat_" + code).value_or("count=0");
    sum += std::stoll(text.substr(text.find('=') + 1));
  }
  return sum;
}

}  // namespace fenceguard::test_servers
