#include <chrono>
#include <fenceguard/core/errors.hpp>
#include <set>
#include <string>

#include "cli/lease_servers.hpp"
#include "cli/redis_checks.hpp"
#include "cli/redis_fields.hpp"
#include "redis/url.hpp"

namespace fenceguard::cli {
namespace {

using findings = std::vector<diagnosis>;

constexpr std::chrono::seconds patience{5};

void append(findings& to, findings more) {
  std::move(more.begin(), more.end(), std::back_inserter(to));
}

// Several servers are looked at: each finding says of which one it is.
findings check_each(std::vector<redis::connection_options> const& servers, examination const& how) {
  findings found;
  for (auto const& one : servers) {
    for (auto& finding : check_redis_server(one, how)) {
      finding.subject = one.server.to_string() + ' ' + finding.subject;
      found.push_back(std::move(finding));
    }
  }
  return found;
}

diagnosis does_not_answer(redis::address const& who, redis::result const& outcome,
                          std::string const& what) {
  auto const reason = outcome.replied() ? std::string{outcome.answer.text()} : outcome.error;
  return {severity::warning, what + ' ' + who.to_string(), "does not answer: " + reason,
          "it cannot be asked when it is needed", "start it, or take it out of the URL"};
}

// What one sentinel knows of the service.
void check_sentinel(redis::connection& sentinel, std::string const& service, findings& found,
                    std::set<std::string>& primaries) {
  auto const who = "sentinel " + sentinel.server().to_string();
  auto const until = boottime::now() + patience;
  auto const about = sentinel.call(redis::command{"SENTINEL", "MASTER", service}, until);
  if (!about.replied() || about.answer.is_error()) {
    found.push_back(does_not_answer(sentinel.server(), about, "sentinel"));
    return;
  }
  auto const known = redis_fields::from_pairs(about.answer);
  if (known.has("ip") && known.has("port")) primaries.insert(known["ip"] + ':' + known["port"]);
  if (known.number("num-other-sentinels") < 2) {
    found.push_back({severity::warning, who,
                     "knows " + std::to_string(known.number("num-other-sentinels")) +
                         " other sentinels of " + service,
                     "with fewer than three, the failure of one may leave no majority to make "
                     "another server the primary",
                     "run three sentinels or more, on machines of their own"});
  }
  if (known.number("num-slaves") < 1) {
    found.push_back({severity::warning, who, "knows no replica of " + service,
                     "when the primary fails there is none to take its place", "attach a replica"});
  }
  auto const quorum = sentinel.call(redis::command{"SENTINEL", "CKQUORUM", service}, until);
  if (quorum.replied() && quorum.answer.is_error()) {
    found.push_back({severity::error, who, std::string{quorum.answer.text()},
                     "no failover is possible now", "bring the sentinels back that are missing"});
  }
}

findings check_sentinels(redis::url const& parsed, std::string const& url, examination const& how) {
  findings found;
  std::set<std::string> primaries;
  for (auto const& one : parsed.addresses) {
    redis::connection_options options;
    options.server = one;
    options.login = parsed.sentinel_login;
    if (parsed.tls) options.tls = std::make_shared<redis::tls_context>(parsed.files);
    redis::connection sentinel{options};
    check_sentinel(sentinel, parsed.service, found, primaries);
  }
  if (primaries.size() > 1) {
    std::string names;
    for (auto const& one : primaries) names += (names.empty() ? "" : ", ") + one;
    found.push_back({severity::error, "sentinels", "name different primaries: " + names,
                     "two stores may be given leases by two servers",
                     "wait for a failover to end; else see SENTINEL MASTERS on each"});
  }
  append(found, check_each(lease_servers(url), how));
  return found;
}

redis_fields info_of(redis::connection& node) {
  auto const answer = node.call(redis::command{"CLUSTER", "INFO"}, boottime::now() + patience);
  if (!answer.replied()) throw lease_store_unavailable{"CLUSTER INFO: " + answer.error};
  return redis_fields::from_lines(answer.answer.text());
}

findings check_cluster(std::string const& url, examination const& how) {
  findings found;
  auto const servers = lease_servers(url);
  for (auto const& one : servers) {
    redis::connection node{one};
    auto const info = info_of(node);
    if (info.has("cluster_state") && info["cluster_state"] != "ok") {
      found.push_back({severity::error, one.server.to_string() + " cluster_state",
                       "is " + info["cluster_state"],
                       "no lease is given for slots that nobody serves",
                       "redis-cli --cluster check " + one.server.to_string()});
    }
    if (info.number("cluster_slots_assigned") != 0 &&
        info.number("cluster_slots_assigned") < 16384) {
      found.push_back(
          {severity::error, one.server.to_string() + " slots",
           std::to_string(info.number("cluster_slots_assigned")) + " of 16384 are assigned",
           "resources in the others cannot be leased",
           "redis-cli --cluster fix " + one.server.to_string()});
    }
  }
  append(found, check_each(servers, how));
  return found;
}

}  // namespace

findings check_redis(std::string const& url, examination const& how) {
  auto const parsed = redis::parse_url(url);
  switch (parsed.kind) {
    case redis::deployment::sentinel:
      return check_sentinels(parsed, url, how);
    case redis::deployment::cluster:
      return check_cluster(url, how);
    case redis::deployment::standalone:
      break;
  }
  return check_redis_server(redis::connection_options::from_url(parsed), how);
}

}  // namespace fenceguard::cli
