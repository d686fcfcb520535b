#include "redis/topology.hpp"

#include "redis/cluster_topology.hpp"
#include "redis/sentinel_topology.hpp"
#include "redis/server_error.hpp"

namespace fenceguard::redis {

bool topology::is_denial(reply_view answer) {
  return answer[0].text() == "NOT_PRIMARY" || has_code(answer, "READONLY") ||
         has_code(answer, "MASTERDOWN") || has_code(answer, "LOADING");
}

bool topology::is_broken(result const& outcome) noexcept {
  return outcome.why == failure::unreachable || outcome.why == failure::disconnected ||
         outcome.why == failure::deadline;
}

auto standalone_topology::locate(unsigned /*partition*/, time_point /*deadline*/) -> location {
  return {.found = true, .server = server_.server};
}

auto standalone_topology::learn(unsigned /*partition*/, address const& /*from*/,
                                result const& /*outcome*/) -> next_step {
  return {};
}

std::shared_ptr<topology> make_topology(url const& from, unsigned partitions,
                                        std::chrono::milliseconds command_timeout) {
  connection_options connecting;
  connecting.login = from.login;
  connecting.database = from.database;
  if (from.tls) connecting.tls = std::make_shared<tls_context>(from.files);
  connecting.connect_timeout = command_timeout;
  connecting.silence_limit = command_timeout;
  switch (from.kind) {
    case deployment::standalone:
      connecting.server = from.addresses.front();
      return std::make_shared<standalone_topology>(std::move(connecting));
    case deployment::sentinel:
      return std::make_shared<sentinel_topology>(from, std::move(connecting));
    case deployment::cluster:
      break;
  }
  return std::make_shared<cluster_topology>(from.addresses, partitions, std::move(connecting));
}

}  // namespace fenceguard::redis
