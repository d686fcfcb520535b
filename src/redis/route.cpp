#include "redis/route.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace fenceguard::redis {
namespace {

// More than any topology that is at rest takes.
constexpr int most_hops = 6;

// Sends a script to one server, as a route does.
auto sends(script const& what, script_call const& with, time_point deadline) {
  return [&what, &with, deadline](connection& to, bool asking) {
    return asking ? evaluate_asking(to, what, with, deadline)
                  : redis::evaluate(to, what, with, deadline);
  };
}

}  // namespace

route::route(std::shared_ptr<topology> where, unsigned partitions)
    : topology_{std::move(where)}, places_{std::make_unique<place[]>(partitions)} {}

route::~route() = default;

result route::evaluate(script const& what, script_call const& with, unsigned partition,
                       time_point deadline) {
  return send(partition, deadline, sends(what, with, deadline));
}

auto route::evaluate_then(script const& what, script_call const& with, unsigned partition,
                          time_point deadline,
                          std::function<std::vector<command>(result const&)> const& next)
    -> followed {
  followed all;
  connection* last = nullptr;
  auto const request = sends(what, with, deadline);
  all.first = send(partition, deadline, [&](connection& to, bool asking) {
    last = &to;
    return request(to, asking);
  });
  if (!all.first.replied()) return all;
  auto const commands = next(all.first);
  all.asked = !commands.empty();
  if (!all.asked) return all;
  // Nobody else calls, so the connection is the one that the script ran on unless it is made anew
  // for what follows.
  auto const connects = last->counters().connects;
  all.then = last->call_all(commands, deadline);
  all.same_connection = last->counters().connects == connects;
  return all;
}

result route::call(command const& what, unsigned partition, time_point deadline) {
  return send(partition, deadline,
              [&](connection& to, bool /*asking*/) { return to.call(what, deadline); });
}

template <class Send>
result route::send(unsigned partition, time_point deadline, Send const& request) {
  result outcome;
  auto* to = find(partition, deadline, outcome);
  bool asking = false;
  for (int hop = 0; to != nullptr; ++hop) {
    outcome = request(to->link, asking);
    to->answering = outcome.replied();
    auto const step = topology_->learn(partition, to->link.server(), outcome);
    if (step.what == topology::next_step::kind::keep || hop == most_hops) break;
    asking = step.what == topology::next_step::kind::ask_once;
    result not_found;
    // Where the answer names a server, that one: what other callers have learned meanwhile may be
    // older.
    bool const named = asking || step.what == topology::next_step::kind::follow;
    auto* const next = named ? &open(step.server) : find(partition, deadline, not_found);
    // The same server again would say the same.
    if (next == nullptr || (next == to && !named)) break;
    to = next;
  }
  return outcome;
}

std::vector<result> route::evaluate_all(script const& what, std::span<routed_call const> calls,
                                        time_point deadline) {
  std::vector<result> results(calls.size());
  std::map<server*, std::vector<std::size_t>> by_server;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (auto* const at = find(calls[i].partition, deadline, results[i])) by_server[at].push_back(i);
  }
  std::vector<std::pair<server*, std::vector<std::size_t>>> groups{by_server.begin(),
                                                                   by_server.end()};
  std::stable_partition(groups.begin(), groups.end(),
                        [](auto const& group) { return group.first->answering.load(); });
  std::vector<script_call> portion;
  for (auto const& [at, indices] : groups) {
    portion.clear();
    for (auto i : indices) portion.push_back(calls[i].with);
    auto outcomes = redis::evaluate_all(at->link, what, portion, deadline);
    at->answering = std::any_of(outcomes.begin(), outcomes.end(),
                                [](result const& one) { return one.replied(); });
    for (std::size_t n = 0; n < indices.size(); ++n) {
      auto const& call = calls[indices[n]];
      auto const step = topology_->learn(call.partition, at->link.server(), outcomes[n]);
      results[indices[n]] = to_another(*at, step, call.partition, deadline)
                                ? evaluate(what, call.with, call.partition, deadline)
                                : std::move(outcomes[n]);
    }
  }
  return results;
}

bool route::to_another(server const& last, topology::next_step const& step, unsigned partition,
                       time_point deadline) {
  if (step.what == topology::next_step::kind::keep) return false;
  if (step.what != topology::next_step::kind::look_again) return true;
  result not_found;
  auto const* const next = find(partition, deadline, not_found);
  return next != nullptr && next != &last;
}

route::server* route::find(unsigned partition, time_point deadline, result& failed) {
  auto& known = places_[partition];
  auto const version = topology_->version();
  if (known.version.load(std::memory_order_acquire) == version) return known.at.load();
  auto here = topology_->locate(partition, deadline);
  if (!here.found) {
    failed.why = failure::unreachable;
    failed.error = std::move(here.error);
    return nullptr;
  }
  auto& found = open(here.server);
  std::lock_guard const held{mutex_};
  if (known.version.load() < version) {  // else another caller has found out more meanwhile
    known.at = &found;
    known.version.store(version, std::memory_order_release);
  }
  return &found;
}

route::server& route::open(address const& where) {
  std::lock_guard const held{mutex_};
  for (auto const& one : servers_) {
    if (one->link.server() == where) return *one;
  }
  auto options = topology_->connecting();
  options.server = where;
  servers_.push_back(std::make_unique<server>(std::move(options)));
  if (closed_) servers_.back()->link.shutdown();
  return *servers_.back();
}

void route::shutdown() noexcept {
  std::lock_guard const held{mutex_};
  closed_ = true;
  for (auto const& one : servers_) one->link.shutdown();
}

}  // namespace fenceguard::redis
