#include "redis/sentinel_topology.hpp"

#include <algorithm>
#include <utility>

namespace fenceguard::redis {

sentinel_topology::sentinel_topology(url const& from, connection_options connecting)
    : service_{from.service}, connecting_{std::move(connecting)} {
  for (auto const& one : from.addresses) {
    auto options = connecting_;
    options.server = one;
    options.login = from.sentinel_login;
    options.database = 0;
    sentinels_.push_back(std::make_unique<connection>(std::move(options)));
  }
}

auto sentinel_topology::locate(unsigned /*partition*/, time_point deadline) -> location {
  std::unique_lock held{mutex_};
  if (!discovery_.await(held, deadline, [this] { return !doubted_; })) {
    return {.error = "the sentinels of " + service_ + " have not answered in time"};
  }
  if (!doubted_) return known_;
  auto here = discovery_.run(held, [&] { return discover(deadline); });
  if (!here.found) return here;
  doubted_ = false;
  if (known_.server != here.server) {
    known_ = here;
    changed();
  }
  return here;
}

auto sentinel_topology::learn(unsigned /*partition*/, address const& from, result const& outcome)
    -> next_step {
  bool const denied = outcome.replied() && is_denial(outcome.answer);
  if (!denied && !is_broken(outcome)) return {};
  {
    std::lock_guard const held{mutex_};
    if (!doubted_ && known_.server == from) {
      doubted_ = true;
      changed();
    }
  }
  bool const surely_not_applied = denied || outcome.outcome == fate::not_sent;
  return {.what = surely_not_applied ? next_step::kind::look_again : next_step::kind::keep};
}

// Each sentinel has its share of the time, so that one that hangs leaves some for the others.
auto sentinel_topology::discover(time_point deadline) -> location {
  std::string errors;
  for (std::size_t i = 0; i < sentinels_.size(); ++i) {
    auto const now = boottime::now();
    auto const share = (deadline - now) / static_cast<int>(sentinels_.size() - i);
    auto here = ask(*sentinels_[i], now + share);
    if (here.found) {
      std::rotate(sentinels_.begin(), sentinels_.begin() + static_cast<std::ptrdiff_t>(i),
                  sentinels_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      return here;
    }
    errors += (errors.empty() ? "" : "; ") + here.error;
  }
  return {.error = "no primary of " + service_ + ": " + errors};
}

auto sentinel_topology::ask(connection& sentinel, time_point deadline) -> location {
  auto const whom = "the sentinel " + sentinel.server().to_string() + ' ';
  auto const outcome =
      sentinel.call(command{"SENTINEL", "get-master-addr-by-name", service_}, deadline);
  if (!outcome.replied()) {
    return {.error = whom + (outcome.error.empty() ? "has not answered in time" : outcome.error)};
  }
  auto const& answer = outcome.answer;
  if (answer.is_error()) return {.error = whom + "says: " + std::string{answer.text()}};
  if (answer.is_nil()) return {.error = whom + "knows no such service"};
  auto const port = parse_port(answer[1].text());
  if (answer[0].text().empty() || !port) {
    return {.error = whom + "gave no address: " + answer.describe()};
  }
  location here{.found = true, .server = {std::string{answer[0].text()}, *port, {}}};
  auto reason = denial(here.server, deadline);
  if (reason.empty()) return here;
  return {.error = whom + "named " + here.server.to_string() + ", which " + std::move(reason)};
}

// Why the server that a sentinel named is not to be used; empty where it is. A sentinel goes on
// naming the old primary until the failover has been agreed upon.
std::string sentinel_topology::denial(address const& candidate, time_point deadline) const {
  auto options = connecting_;
  options.server = candidate;
  connection server{std::move(options)};
  auto const outcome = server.call(command{"ROLE"}, deadline);
  if (!outcome.replied()) {
    // A refused login is for the caller's own request to report.
    if (outcome.why == failure::refused) return {};
    return "cannot be reached" + (outcome.error.empty() ? "" : ": " + outcome.error);
  }
  // A user without the right to ask: the scripts look at the role as well as they can.
  if (outcome.answer.is_error()) return {};
  auto const role = outcome.answer[0].text();
  if (role == "master") return {};
  return "says that it is no primary but: " + std::string{role};
}

}  // namespace fenceguard::redis
