#include "redis/redlock_ballot.hpp"

#include <algorithm>
#include <utility>

#include "redis/lease_scripts.hpp"

namespace fenceguard::redis {
namespace {

constexpr parking::word told_decided = 1;

bool is_yes(redlock_request what, std::string_view word) {
  switch (what) {
    case redlock_request::hold:
    case redlock_request::inspect:
      return word == "HELD";
    case redlock_request::confirm:
      return word == "GRANTED" || word == "OVERTAKEN";  // it still holds
    case redlock_request::renew:
      return word == "RENEWED";
    case redlock_request::release:
      break;
  }
  return word == "RELEASED";
}

void count(redlock_tally& into, redlock_vote const& one, redlock_request what) {
  switch (one.what) {
    case redlock_vote::kind::pending:
      ++into.pending;
      break;
    case redlock_vote::kind::not_asked:
      break;
    case redlock_vote::kind::answered:
      ++(is_yes(what, one.word()) ? into.yes : into.no);
      break;
    case redlock_vote::kind::failed:
      ++into.failed;
      break;
  }
}

}  // namespace

script const& script_of(redlock_request what) noexcept {
  auto const& all = lease_scripts::get();
  switch (what) {
    case redlock_request::hold:
      return all.hold;
    case redlock_request::confirm:
      return all.confirm;
    case redlock_request::renew:
      return all.renew;
    case redlock_request::release:
      return all.release;
    case redlock_request::inspect:
      break;
  }
  return all.inspect;
}

std::string_view to_string(redlock_request what) noexcept {
  switch (what) {
    case redlock_request::hold:
      return "acquire";
    case redlock_request::confirm:
      return "confirm";
    case redlock_request::renew:
      return "renew";
    case redlock_request::release:
      return "release";
    case redlock_request::inspect:
      break;
  }
  return "inspect";
}

redlock_ballot::redlock_ballot(question asked, std::size_t servers)
    : asked_{std::move(asked)},
      left_out_(servers, 0),
      waited_for_(servers, 1),
      votes_(servers),
      tallies_(asked_.calls.size(), redlock_tally{.pending = servers}),
      answering_(servers, 1) {
  for (auto& of_one : votes_) of_one.resize(asked_.calls.size());
}

void redlock_ballot::leave_out(std::size_t server) {
  left_out_[server] = 1;
  for (std::size_t i = 0; i < tallies_.size(); ++i) {
    votes_[server][i].what = redlock_vote::kind::not_asked;
    --tallies_[i].pending;
  }
}

void redlock_ballot::do_not_wait_for(std::size_t server) {
  std::lock_guard const held{mutex_};
  waited_for_[server] = 0;
  check();
}

auto redlock_ballot::take() -> votes {
  std::lock_guard const held{mutex_};
  over_ = true;
  return std::move(votes_);
}

void redlock_ballot::record(std::size_t server, std::vector<redlock_vote> said) {
  std::lock_guard const held{mutex_};
  if (over_) return;
  for (std::size_t i = 0; i < said.size(); ++i) {
    --tallies_[i].pending;
    count(tallies_[i], said[i], asked_.what);
  }
  votes_[server] = std::move(said);
  check();
}

void redlock_ballot::note_answering(std::size_t server, bool answering) {
  std::lock_guard const held{mutex_};
  if (over_ || answering_[server] == static_cast<char>(answering)) return;
  answering_[server] = static_cast<char>(answering);
  if (!answering) check();
}

void redlock_ballot::check() {
  if (!decided()) return;
  // The caller may take the votes, and the ballot may end with it, from here on: who records holds
  // a share of it.
  if (caller_.tell(told_decided)) parking::unpark(&caller_);
}

bool redlock_ballot::decided() const {
  std::size_t awaited = 0;
  for (std::size_t s = 0; s < votes_.size(); ++s) {
    if (!votes_[s].empty() && votes_[s][0].what == redlock_vote::kind::pending) {
      awaited += static_cast<std::size_t>(answering_[s] & waited_for_[s]);
    }
  }
  for (std::size_t i = 0; i < tallies_.size(); ++i) {
    if (!decided(i, awaited)) return false;
  }
  return true;
}

bool redlock_ballot::decided(std::size_t item, std::size_t awaited) const {
  auto const& so_far = tallies_[item];
  auto const quorum = majority_of(servers());
  auto const minority = servers() - quorum;
  if (so_far.pending == 0) return true;
  bool const enough = so_far.yes + so_far.no >= quorum;
  switch (asked_.until) {
    case rule::majority:
      break;
    case rule::every_answer:
      return awaited == 0 && (enough || so_far.failed > minority);
    case rule::awaited:
      return awaited == 0;
  }
  return so_far.yes >= quorum || so_far.no > minority || so_far.failed > minority ||
         (awaited == 0 && enough);
}

redlock_tally tally(redlock_ballot::votes const& from, std::size_t item, redlock_request what) {
  redlock_tally sum;
  for (auto const& of_one : from) count(sum, of_one[item], what);
  return sum;
}

}  // namespace fenceguard::redis
