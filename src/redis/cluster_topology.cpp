#include "redis/cluster_topology.hpp"

#include <algorithm>
#include <array>
#include <fenceguard/core/errors.hpp>
#include <utility>

#include "redis/server_error.hpp"

namespace fenceguard::redis {
namespace {

constexpr unsigned slots = 16'384;

std::vector<std::uint16_t> slots_of(unsigned partitions) {
  std::vector<std::uint16_t> all;
  for (unsigned i = 0; i < partitions; ++i) all.push_back(slot_of(std::to_string(i)));
  return all;
}

bool contains(std::vector<address> const& all, address const& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

void add(std::vector<address>& all, address const& one) {
  if (!contains(all, one)) all.push_back(one);
}

std::string_view take_word(std::string_view& text) {
  auto const word = text.substr(0, text.find(' '));
  text.remove_prefix(std::min(word.size() + 1, text.size()));
  return word;
}

// A node that does not know how it is reached leaves its host out: it is at the address where it
// answered. "?" stands for a host name that was never set.
bool is_usable(std::string_view host) { return host != "?"; }

struct redirection {
  enum class kind { none, moved, ask };
  kind what = kind::none;
  std::optional<address> to{};
};

// `MOVED slot host:port` and `ASK slot host:port`: said before a script begins, so the code always
// comes first.
redirection redirection_of(reply_view answer, address const& from) {
  redirection found;
  if (answer.error_code() == "MOVED") found.what = redirection::kind::moved;
  if (answer.error_code() == "ASK") found.what = redirection::kind::ask;
  if (found.what == redirection::kind::none) return found;
  auto text = answer.text();
  take_word(text);
  take_word(text);
  auto const where = take_word(text);
  auto const colon = std::min(where.rfind(':'), where.size());
  auto const host = where.substr(0, colon);
  auto const port = parse_port(where.substr(std::min(colon + 1, where.size())));
  if (port && is_usable(host)) {
    found.to = address{host.empty() ? from.host : std::string{host}, *port, {}};
  }
  return found;
}

// One node of a range of CLUSTER SLOTS: host, port, id and, from Redis 7.0 on, other names of it.
std::optional<address> node_of(reply_view entry, address const& answered) {
  auto const port = entry[1].integer().value_or(0);
  if (port < 1 || port > 65'535) return std::nullopt;
  auto host = entry[0].text();
  auto const others = entry[3];
  for (std::size_t i = 0; !is_usable(host) && i + 1 < others.size(); i += 2) {
    if (others[i].text() == "ip") host = others[i + 1].text();
  }
  if (!is_usable(host)) return std::nullopt;
  return address{
      host.empty() ? answered.host : std::string{host}, static_cast<std::uint16_t>(port), {}};
}

}  // namespace

std::uint16_t slot_of(std::string_view tag) noexcept {
  unsigned crc = 0;
  for (char const c : tag) {
    crc ^= static_cast<unsigned>(static_cast<unsigned char>(c)) << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1;
    crc &= 0xffff;
  }
  return static_cast<std::uint16_t>(crc % slots);
}

cluster_topology::cluster_topology(std::vector<address> nodes, unsigned partitions,
                                   connection_options connecting)
    : connecting_{std::move(connecting)},
      slots_{slots_of(partitions)},
      given_{std::move(nodes)},
      nodes_{given_},
      places_(partitions) {
  if (connecting_.database != 0) {
    throw invalid_request{"Redis Cluster has database 0 only"};
  }
}

auto cluster_topology::locate(unsigned partition, time_point deadline) -> location {
  std::unique_lock held{mutex_};
  auto const& here = places_[partition];
  if (!discovery_.await(held, deadline, [&] { return here.known; })) {
    return {.error = "the cluster has not answered in time"};
  }
  std::string error{"it has moved again"};
  if (!here.known) error = discovery_.run(held, [&] { return refresh(partition, deadline); });
  if (here.known) return {.found = true, .server = here.server};
  return {.error = "the cluster's slot " + std::to_string(slots_[partition]) +
                   " was not found: " + error};
}

auto cluster_topology::learn(unsigned partition, address const& from, result const& outcome)
    -> next_step {
  auto const to = redirection_of(outcome.answer, from);
  if (to.what == redirection::kind::ask && to.to) {
    return {.what = next_step::kind::ask_once, .server = *to.to};
  }
  bool const moved = to.what == redirection::kind::moved;
  bool const denied = outcome.replied() && is_denial(outcome.answer);
  bool const broken = is_broken(outcome);
  if (!moved && !denied && !broken && !has_code(outcome.answer, "CLUSTERDOWN")) return {};
  std::lock_guard const held{mutex_};
  // Where one slot has gone others may have gone as well. Who may not ask about them has to wait
  // for their own MOVED.
  bool const doubted = (!moved || !to.to || may_ask_) && doubt(from);
  if (moved && to.to) places_[partition] = {true, *to.to};
  if (moved || doubted) changed();
  if (moved && to.to) return {.what = next_step::kind::follow, .server = *to.to};
  bool const surely_not_applied = moved || denied || (broken && outcome.outcome == fate::not_sent);
  return {.what = surely_not_applied ? next_step::kind::look_again : next_step::kind::keep};
}

bool cluster_topology::doubt(address const& server) {
  bool any = false;
  for (auto& one : places_) {
    if (!one.known || one.server != server) continue;
    one.known = false;
    any = true;
  }
  return any;
}

// Why nothing was learned of the partition; empty where something was. Each node has its share of
// the time, and the next turn begins with the next one, so that neither a node that hangs nor one
// that is cut off from the others is asked first every time.
std::string cluster_topology::refresh(unsigned partition, time_point deadline) {
  auto const nodes = candidates();
  std::string errors;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    std::rotate(nodes_.begin(), nodes_.begin() + 1, nodes_.end());
    auto options = connecting_;
    options.server = nodes[i];
    connection node{std::move(options)};
    auto const now = boottime::now();
    auto const share = (deadline - now) / static_cast<int>(nodes.size() - i);
    auto const outcome = node.call(command{"CLUSTER", "SLOTS"}, now + share);
    if (!errors.empty()) errors += "; ";
    if (learn_map(partition, nodes[i], outcome, errors)) return {};
  }
  return errors;
}

std::vector<address> cluster_topology::candidates() {
  std::lock_guard const held{mutex_};
  for (auto const& one : places_) {
    if (!one.server.host.empty()) add(nodes_, one.server);
  }
  return nodes_;
}

bool cluster_topology::learn_map(unsigned partition, address const& node, result const& outcome,
                                 std::string& errors) {
  auto const& answer = outcome.answer;
  errors += node.to_string() + ' ';
  // Whom nobody tells the slots is sent somewhere, and hears MOVED. A refused login is for the
  // caller's own request to report.
  if (outcome.why == failure::refused || answer.error_code() == "NOPERM") {
    std::lock_guard const held{mutex_};
    may_ask_ = false;
    places_[partition] = {true, node};
    return true;
  }
  if (!outcome.replied()) {
    errors += outcome.error.empty() ? "has not answered in time" : outcome.error;
    return false;
  }
  if (!answer.is_array()) {
    errors += "says: " + (answer.is_error() ? std::string{answer.text()} : answer.describe());
    return false;
  }
  auto const map = read_map(node, answer);
  std::erase_if(nodes_, [&](address const& one) {
    return !contains(map.nodes, one) && !contains(given_, one);
  });
  for (auto const& one : map.nodes) add(nodes_, one);
  std::lock_guard const held{mutex_};
  may_ask_ = true;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (!places_[i].known && map.primaries[i]) places_[i] = {true, *map.primaries[i]};
  }
  if (places_[partition].known) return true;
  errors += "knows of no node that serves it";
  return false;
}

auto cluster_topology::read_map(address const& node, reply_view answer) const -> slot_map {
  slot_map map;
  map.primaries.resize(slots_.size());
  for (std::size_t i = 0; i < answer.size(); ++i) {
    auto const range = answer[i];
    auto const first = range[0].integer();
    auto const last = range[1].integer();
    if (!first || !last) continue;
    auto const primary = node_of(range[2], node);
    for (std::size_t n = 2; n < range.size(); ++n) {
      if (auto const one = node_of(range[n], node)) add(map.nodes, *one);
    }
    for (std::size_t p = 0; p < slots_.size(); ++p) {
      if (slots_[p] >= *first && slots_[p] <= *last) map.primaries[p] = primary;
    }
  }
  return map;
}

}  // namespace fenceguard::redis
