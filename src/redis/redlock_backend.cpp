#include "redis/redlock_backend.hpp"

#include <algorithm>
#include <exception>
#include <fenceguard/core/errors.hpp>
#include <map>
#include <utility>

#include "core/fork_detection.hpp"
#include "core/request_validation.hpp"
#include "core/sleep_by_clock.hpp"
#include "redis/lease_value.hpp"

namespace fenceguard::redis {
namespace {

using std::chrono::milliseconds;
using kind = redlock_vote::kind;

constexpr milliseconds slow_servers{20};

void check(std::vector<connection_options> const& servers) {
  auto const count = std::to_string(servers.size());
  if (servers.size() < 3) {
    throw invalid_request{"Redlock needs at least 3 servers, not " + count +
                          ": with fewer no server may fail"};
  }
  if (servers.size() % 2 == 0) {
    throw invalid_request{"Redlock needs an odd number of servers, not " + count +
                          ": one more than an odd number adds a server that may fail and none that "
                          "may be missing"};
  }
  for (auto one = servers.begin(); one != servers.end(); ++one) {
    bool const twice = std::any_of(servers.begin(), one, [&](connection_options const& other) {
      return other.server == one->server;
    });
    if (twice) {
      throw invalid_request{"Redlock was given " + one->server.to_string() +
                            " twice: a server has one vote"};
    }
  }
}

std::size_t count_word(redlock_ballot::votes const& from, std::size_t item, std::string_view word) {
  return static_cast<std::size_t>(std::count_if(
      from.begin(), from.end(), [&](auto const& of_one) { return of_one[item].word() == word; }));
}

bool surely_not_held(redlock_vote const& hold) {
  if (hold.what == kind::answered) return hold.word() != "HELD";
  return hold.what == kind::failed && hold.error.kind != refusal::unknown;
}

// The copies of the lease of whom the most servers name, the longest lived first.
std::vector<holder_info> leading_holder(redlock_ballot::votes const& from) {
  std::map<std::string, std::vector<holder_info>> by_holder;
  for (auto const& of_one : from) {
    if (of_one[0].word() != "HELD") continue;
    auto info = parse_lease(of_one[0].answer[1].text());
    if (!info) continue;
    auto const left = of_one[0].answer[2].integer().value_or(0);
    info->remaining = milliseconds{std::max<std::int64_t>(left, 0)};
    by_holder[info->holder].push_back(std::move(*info));
  }
  std::vector<holder_info> leader;
  for (auto& [holder, copies] : by_holder) {
    if (copies.size() > leader.size()) leader = std::move(copies);
  }
  std::sort(leader.begin(), leader.end(),
            [](holder_info const& a, holder_info const& b) { return a.remaining > b.remaining; });
  return leader;
}

// How long until a majority may be free: so many of those who are busy must run out first.
milliseconds until_majority(redlock_ballot::votes const& holds, std::size_t quorum) {
  std::vector<std::int64_t> busy;
  std::size_t held = 0;
  for (auto const& of_one : holds) {
    auto const& one = of_one[0];
    if (one.word() == "HELD") ++held;
    if (one.word() == "BUSY") busy.push_back(one.answer[2].integer().value_or(-1));
  }
  std::sort(busy.begin(), busy.end());
  if (held >= quorum || quorum - held > busy.size()) return milliseconds{0};
  return milliseconds{std::max<std::int64_t>(busy[quorum - held - 1], 0)};
}

}  // namespace

redlock_backend::redlock_backend(settings how, token_source& tokens)
    : how_{std::move(how)},
      process_{process_generation()},
      quorum_{majority_of(how_.servers.size())},
      minority_{how_.servers.size() - quorum_},
      numbering_{tokens, how_.observer} {
  check(how_.servers);
  main_ = std::make_shared<redlock_panel>(how_.servers, how_.observer);
  renewals_ = std::make_shared<redlock_panel>(how_.servers, how_.observer);
  last_ = std::make_shared<redlock_panel>(how_.servers, how_.observer);
}

redlock_backend::~redlock_backend() {
  if (process_generation() != process_) {
    for (auto* const panel : {&main_, &renewals_, &last_}) abandon_in_child(std::move(*panel));
    return;
  }
  close();
  last_->close();
}

void redlock_backend::close() noexcept {
  if (process_generation() != process_) return;
  closed_ = true;
  numbering_.close();
  main_->close();
  renewals_->close();
}

auto redlock_backend::ask(redlock_panel& whom, redlock_ballot::question asked) -> votes {
  auto const until = asked.deadline;
  auto const ballot = std::make_shared<redlock_ballot>(std::move(asked), whom.size());
  whom.cast(ballot);
  static_cast<void>(ballot->sleep(until));
  return ballot->take();
}

auto redlock_backend::try_acquire(attempt const& what) -> acquire_answer {
  require_same_process();
  validate_attempt(what.holder, what.ttl);
  if (closed_) return not_applied{"the lease store is closed"};
  note_ttl(what.ttl);
  hold const mine{.key = how_.keys.lease(what.resource),
                  .holder = std::string{what.holder},
                  .ttl = what.ttl,
                  .sent_at = how_.clock->now(),
                  .deadline = real_time(*how_.clock, what.deadline)};
  auto const ballot = std::make_shared<redlock_ballot>(
      redlock_ballot::question{.what = redlock_request::hold,
                               .calls = {{mine.key,
                                          {mine.holder, std::to_string(mine.ttl.count()),
                                           std::string{}, std::string{what.label}}}},
                               .deadline = mine.deadline},
      main_->size());
  main_->cast(ballot);
  static_cast<void>(ballot->sleep(mine.deadline));
  auto const holds = ballot->take();
  if (count_word(holds, 0, "HELD") >= quorum_) return number(mine, holds);
  ballot->abandon();
  return not_held(mine, holds);
}

// The token is reserved after a majority was won, and a majority must still hold after that: a
// holder that was paused in between must not end up with a higher number than its successor.
auto redlock_backend::number(hold const& mine, votes const& holds) -> acquire_answer {
  std::optional<fencing_token> token;
  try {
    token = numbering_.reserve_one(mine.deadline);
  } catch (error const& failed) {
    if (take_back(mine, holds)) throw;
    return unknown{failed.what()};
  }
  auto const said = ask_to_confirm(mine.key, mine.holder, *token, mine.deadline);
  if (count_word(said, 0, "GRANTED") >= quorum_) return granted{*token, mine.sent_at, mine.ttl};
  bool const undone = take_back(mine, holds);
  std::string reason;
  if (count_word(said, 0, "LOST") > minority_) {
    reason = "the lease ran out while its token was being reserved: its ttl is too short";
  } else {
    reason = shortfall(redlock_request::confirm, said);
  }
  if (undone) return not_applied{std::move(reason)};
  return unknown{std::move(reason)};
}

// Nobody may find a part of a quorum left behind: a server that has not said that it holds nothing
// gives it back, in the background where it does not answer.
auto redlock_backend::not_held(hold const& mine, votes const& holds) -> acquire_answer {
  bool const undone = take_back(mine, holds);
  auto const held = count_word(holds, 0, "HELD");
  auto const taken = count_word(holds, 0, "BUSY");
  if (held + taken >= quorum_) return busy{until_majority(holds, quorum_)};
  throw_misconfigured(redlock_request::hold, holds);
  auto reason = shortfall(redlock_request::hold, holds);
  if (undone) return not_applied{std::move(reason)};
  return unknown{std::move(reason)};
}

// Whether nothing is left on any server. Waits for the servers that have said that they hold; for
// the others just as long as it takes one that is merely a little slower.
bool redlock_backend::take_back(hold const& mine, votes const& holds) {
  auto const ballot = std::make_shared<redlock_ballot>(
      redlock_ballot::question{.what = redlock_request::release,
                               .until = redlock_ballot::rule::awaited,
                               .calls = {{mine.key, {mine.holder}}},
                               .deadline = mine.deadline,
                               .expires = surely_expired()},
      main_->size());
  std::size_t asked = 0;
  for (std::size_t s = 0; s < holds.size(); ++s) {
    if (surely_not_held(holds[s][0])) {
      ballot->leave_out(s);
    } else {
      ++asked;
    }
  }
  if (asked == 0) return true;
  main_->cast(ballot);
  if (!ballot->sleep(std::min<time_point>(mine.deadline, boottime::now() + slow_servers))) {
    for (std::size_t s = 0; s < holds.size(); ++s) {
      if (holds[s][0].word() != "HELD") ballot->do_not_wait_for(s);
    }
    static_cast<void>(ballot->sleep(mine.deadline));
  }
  auto const said = ballot->take();
  for (std::size_t s = 0; s < holds.size(); ++s) {
    auto const word = said[s][0].word();
    bool const surely =
        word == "RELEASED" || (word == "ALREADY_LOST" && holds[s][0].what == kind::answered);
    if (said[s][0].what != kind::not_asked && !surely) return false;
  }
  return true;
}

auto redlock_backend::ask_to_confirm(std::string const& key, std::string_view holder,
                                     fencing_token token, time_point deadline) -> votes {
  return ask(*main_, {.what = redlock_request::confirm,
                      .calls = {{key, {std::string{holder}, std::to_string(token.value())}}},
                      .deadline = deadline});
}

void redlock_backend::renew(std::span<renew_item> batch, time_point deadline) noexcept {
  for (auto& item : batch) item.answer = renew_answer::unknown;
  if (process_generation() != process_ || batch.empty()) return;
  try {
    renew_all(batch, real_time(*how_.clock, deadline));
  } catch (std::exception const& failed) {
    tell("renew", failed.what());
  }
}

void redlock_backend::renew_all(std::span<renew_item> batch, time_point deadline) {
  redlock_ballot::question asked{.what = redlock_request::renew, .deadline = deadline};
  asked.calls.reserve(batch.size());
  for (auto const& item : batch) {
    asked.calls.push_back({how_.keys.lease(item.resource),
                           {std::string{item.holder}, std::to_string(item.ttl.count())}});
  }
  auto const sent_at = how_.clock->now();
  auto const said = ask(*renewals_, std::move(asked));
  bool told = false;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    auto const sum = tally(said, i, redlock_request::renew);
    batch[i].sent_at = sent_at;
    batch[i].validity = batch[i].ttl;
    if (sum.yes >= quorum_) {
      batch[i].answer = renew_answer::renewed;
    } else if (sum.no > minority_) {  // no majority can ever renew it: a renewal never takes again
      batch[i].answer = renew_answer::lost;
    } else if (!std::exchange(told, true)) {
      tell("renew", shortfall(redlock_request::renew, said));
    }
  }
}

release_outcome redlock_backend::release(std::string_view resource, std::string_view holder,
                                         time_point deadline) noexcept {
  if (process_generation() != process_) return release_outcome::unknown;
  try {
    return release_all(resource, holder, real_time(*how_.clock, deadline));
  } catch (std::exception const& failed) {
    tell("release", failed.what());
  }
  return release_outcome::unknown;
}

// Once a majority has answered, no majority can be this holder's any more. Whether it was until now
// is denied by a majority only; a server that was down when the lease was taken must not make a
// release look like a loss.
release_outcome redlock_backend::release_all(std::string_view resource, std::string_view holder,
                                             time_point deadline) {
  auto const said =
      ask(closed_ ? *last_ : *main_, {.what = redlock_request::release,
                                      .calls = {{how_.keys.lease(resource), {std::string{holder}}}},
                                      .deadline = deadline,
                                      .expires = surely_expired()});
  auto const sum = tally(said, 0, redlock_request::release);
  if (sum.yes >= quorum_) return release_outcome::released;
  if (sum.no > minority_) return release_outcome::already_lost;
  if (sum.yes + sum.no >= quorum_) return release_outcome::released;
  tell("release", shortfall(redlock_request::release, said));
  return release_outcome::unknown;
}

auto redlock_backend::advance(std::string_view resource, std::string_view holder,
                              std::optional<fencing_token> above, time_point deadline)
    -> advance_answer {
  require_same_process();
  validate_attempt(holder, milliseconds{1});
  if (closed_) return not_applied{"the lease store is closed"};
  auto const until = real_time(*how_.clock, deadline);
  auto const token = numbering_.reserve_above(above, until);
  auto const said = ask_to_confirm(how_.keys.lease(resource), holder, token, until);
  auto const given = count_word(said, 0, "GRANTED");
  if (given >= quorum_) return advanced{token};
  if (count_word(said, 0, "LOST") > minority_) return lost{};
  if (given + count_word(said, 0, "OVERTAKEN") >= quorum_) {
    return not_applied{"another advance of the same grant came first"};
  }
  throw_misconfigured(redlock_request::confirm, said);
  return unknown{shortfall(redlock_request::confirm, said)};
}

std::optional<holder_info> redlock_backend::inspect(std::string_view resource,
                                                    time_point deadline) {
  require_same_process();
  if (closed_) throw lease_store_unavailable{"the lease store is closed"};
  redlock_ballot::question asked{.what = redlock_request::inspect,
                                 .calls = {{how_.keys.lease(resource), {}}},
                                 .deadline = real_time(*how_.clock, deadline)};
  auto said = ask(*main_, asked);
  auto leader = leading_holder(said);
  bool const certain = count_word(said, 0, "FREE") > minority_ || leader.size() >= quorum_;
  if (!certain && boottime::now() < asked.deadline) {
    // Several holders have a part each, or some servers do not answer: each answer counts.
    asked.until = redlock_ballot::rule::every_answer;
    said = ask(*main_, std::move(asked));
    leader = leading_holder(said);
  }
  auto const sum = tally(said, 0, redlock_request::inspect);
  if (sum.yes + sum.no < quorum_) {
    throw_misconfigured(redlock_request::inspect, said);
    throw lease_store_unavailable{shortfall(redlock_request::inspect, said)};
  }
  // Those who did not answer count for the holder: who may hold is shown.
  auto const silent = said.size() - sum.yes - sum.no;
  bool const free = sum.no > minority_ || leader.size() + silent < quorum_;
  if (free || leader.empty()) return std::nullopt;
  auto info = leader[std::min(leader.size(), quorum_) - 1];  // until then a majority stands
  for (auto const& copy : leader) info.token = std::max(info.token, copy.token);
  return info;
}

void redlock_backend::require_same_process() const {
  if (process_generation() != process_) {
    throw invalid_request{"a lease store cannot be used in a forked child process"};
  }
}

// No lease that this store has asked for stands on any server after it, if it is not renewed.
time_point redlock_backend::surely_expired() const noexcept {
  milliseconds const ttl{longest_ttl_.load()};
  return boottime::now() + ttl + ttl / 10 + how_.command_timeout;
}

void redlock_backend::note_ttl(milliseconds ttl) noexcept {
  auto known = longest_ttl_.load();
  while (known < ttl.count() && !longest_ttl_.compare_exchange_weak(known, ttl.count())) {
  }
}

// Who did not say what was hoped for, and why.
std::string redlock_backend::shortfall(redlock_request what, votes const& from) const {
  std::string text{to_string(what)};
  std::string reasons;
  std::size_t answered = 0;
  for (std::size_t s = 0; s < from.size(); ++s) {
    // Of many calls, the first that failed speaks for its server.
    auto const failed = std::find_if(from[s].begin(), from[s].end(), [](redlock_vote const& one) {
      return one.what == kind::failed || one.what == kind::pending;
    });
    if (failed == from[s].end()) {
      ++answered;
      continue;
    }
    reasons += "; ";
    reasons += failed->what == kind::failed
                   ? failed->error.message
                   : how_.servers[s].server.to_string() + " had not answered";
  }
  text += ": " + std::to_string(answered) + " of " + std::to_string(from.size()) +
          " servers answered, a majority has " + std::to_string(quorum_);
  return text + reasons;
}

// What trying again cannot mend, where it keeps a majority from serving.
void redlock_backend::throw_misconfigured(redlock_request what, votes const& from) const {
  auto const count = std::count_if(from.begin(), from.end(), [](auto const& of_one) {
    return of_one[0].what == kind::failed && of_one[0].error.kind == refusal::misconfigured;
  });
  if (static_cast<std::size_t>(count) > minority_) throw invalid_request{shortfall(what, from)};
}

void redlock_backend::tell(std::string_view operation, std::string_view message) noexcept {
  if (how_.observer != nullptr) how_.observer->on_event(events::store_error{operation, message});
}

}  // namespace fenceguard::redis
