#include "redis/redlock_server.hpp"

#include <algorithm>
#include <exception>
#include <fenceguard/core/errors.hpp>
#include <optional>
#include <utility>

#include "core/sleep_by_clock.hpp"
#include "redis/server_version.hpp"

namespace fenceguard::redis {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr unsigned most_late = 4;
constexpr std::size_t longest_message = 2'048;  // calls
constexpr std::size_t leftovers_at_once = 512;
constexpr milliseconds first_pause{10};
constexpr milliseconds longest_pause{500};
constexpr milliseconds longest_absence{100};
// What the estimate of a server's clock may lag behind while it counts one command's time.
constexpr milliseconds limbo_margin{50};

redlock_vote failed_vote(refusal kind, std::string message) {
  return {.what = redlock_vote::kind::failed, .error = {kind, std::move(message)}};
}

}  // namespace

redlock_server::redlock_server(settings how) : how_{std::move(how)}, link_{how_.link} {}

redlock_server::~redlock_server() {
  begin_close();
  finish_close(boottime::now());
}

void redlock_server::ask(std::shared_ptr<redlock_ballot> what) {
  std::string refused;
  bool wake = false;
  {
    std::lock_guard const held{mutex_};
    if (closing_) {
      refused = "the lease store is closed";
    } else {
      try {
        if (!thread_.started()) thread_.start([this] { run(); });
        what->note_answering(how_.number, answering_);
        queue_.push_back(what);
        wake = !backing_off_;
      } catch (std::system_error const& failed) {
        refused = std::string{"no thread for "} + link_.server().to_string() + ": " + failed.what();
      }
    }
  }
  if (!refused.empty()) {
    fail(*what, refused);
  } else if (wake) {
    wake_.notify_one();
  }
}

void redlock_server::begin_close() noexcept {
  std::lock_guard const held{mutex_};
  closing_ = true;
  wake_.notify_one();
}

void redlock_server::finish_close(time_point until) noexcept {
  {
    guard held{mutex_};
    while (thread_.started() && !over_ && answering_ && boottime::now() < until) {
      ended_.wait_for(held, std::min<std::chrono::nanoseconds>(until - boottime::now(), 10ms));
    }
  }
  link_.shutdown();
  thread_.finish();
}

void redlock_server::run() noexcept {
  guard held{mutex_};
  while (await_work(held)) {
    take_queue(held);
    held.unlock();
    try {
      work();
    } catch (std::exception const& failed) {  // out of memory
      for (auto& one : todo_) fail(*one, failed.what());
      todo_.clear();
    }
    held.lock();
  }
  held.unlock();
  last_leftovers();
  held.lock();
  over_ = true;
  held.unlock();
  ended_.notify_all();
}

// False where the end has come and nothing is queued.
bool redlock_server::await_work(guard& held) {
  back_off(held);
  while (queue_.empty()) {
    if (closing_) return false;
    auto const due = leftovers_.empty()
                         ? time_point::max()
                         : std::max(leftovers_.begin()->first, leftovers_wait_until_);
    if (due <= boottime::now()) return true;
    sleep_by_clock(held, wake_, due);
  }
  return true;
}

// What is queued meanwhile is sent afterwards: only callers who cannot do without this server wait
// so long.
void redlock_server::back_off(guard& held) {
  backing_off_ = true;
  while (!closing_ && boottime::now() < ask_again_at_) sleep_by_clock(held, wake_, ask_again_at_);
  backing_off_ = false;
}

// At the end only what gives back is still sent.
void redlock_server::take_queue(guard& held) {
  todo_.swap(queue_);
  bool const last = closing_;
  bool const answering = answering_;
  held.unlock();
  if (last) {
    for (auto& one : todo_) {
      if (one->asked().what == redlock_request::release && answering) continue;
      fail(*one, "the lease store is closed");
      one.reset();
    }
    std::erase(todo_, nullptr);
  }
  held.lock();
}

void redlock_server::work() {
  do {
    auto calls = next_message();
    add_leftovers(calls);
    if (!calls.empty()) send(calls);
  } while (!todo_.empty());
}

auto redlock_server::next_message() -> message {
  message calls;
  while (!todo_.empty() && calls.size() < longest_message) {
    auto const next = todo_.front();
    auto const& asked = next->asked();
    if (!drop_unsent(*next)) {
      for (std::size_t i = 0; i < asked.calls.size(); ++i) {
        calls.push_back({.of = next, .item = i});
      }
    }
    todo_.pop_front();
  }
  return calls;
}

// Nobody waits any more. What is to be given back is remembered, within bounds, so that what waits
// for a server which hangs or is slow does not grow for as long as that lasts.
bool redlock_server::drop_unsent(redlock_ballot& one) {
  auto const& asked = one.asked();
  if (!one.abandoned() && boottime::now() < asked.deadline) return false;
  if (asked.what == redlock_request::release) {
    for (auto const& call : asked.calls) {
      keep({call.key, call.arguments.front(), asked.expires}, boottime::now());
    }
  }
  fail(one, "not sent to " + link_.server().to_string() + " in time");
  return true;
}

void redlock_server::add_leftovers(message& to) {
  auto const now = boottime::now();
  std::erase_if(in_limbo_, [&](auto const& one) { return one.second <= now; });
  if (now < leftovers_wait_until_) return;
  std::size_t taken = 0;
  while (!leftovers_.empty() && leftovers_.begin()->first <= now && taken < leftovers_at_once) {
    auto what = std::move(leftovers_.begin()->second);
    leftovers_.erase(leftovers_.begin());
    leftover_holders_.erase(what.holder);
    if (what.expires <= now) continue;
    to.push_back({.back = std::move(what)});
    ++taken;
  }
}

void redlock_server::send(message& calls) {
  std::vector<redlock_vote> said(calls.size());
  std::vector<std::size_t> open(calls.size());
  for (std::size_t i = 0; i < open.size(); ++i) open[i] = i;
  while (!open.empty()) {
    auto results = transmit(calls, open);
    std::vector<std::size_t> again;
    for (std::size_t n = 0; n < open.size(); ++n) {
      auto& one = calls[open[n]];
      auto const what = one.of ? one.of->asked().what : redlock_request::release;
      if (what == redlock_request::hold && send_again(one, results[n])) {
        again.push_back(open[n]);
      } else {
        bool const replied = results[n].replied();
        said[open[n]] = judge_vote(what, std::move(results[n]));
        if (replied) tell_refusal(what, said[open[n]]);
      }
    }
    open = std::move(again);
  }
  settle(calls, std::move(said));
}

std::vector<result> redlock_server::transmit(message const& calls,
                                             std::vector<std::size_t> const& which) {
  struct words {
    std::array<std::string_view, 1> keys;
    std::vector<std::string_view> arguments;
    std::string execute_by;
  };
  auto const now = boottime::now();
  auto deadline = now;
  std::vector<words> texts(which.size());
  std::vector<scripted_call> scripted(which.size());
  for (std::size_t n = 0; n < which.size(); ++n) {
    auto const& one = calls[which[n]];
    auto& text = texts[n];
    auto what = redlock_request::release;
    auto until = now + how_.link.silence_limit;
    if (one.of) {
      auto const& asked = one.of->asked();
      auto const& call = asked.calls[one.item];
      what = asked.what;
      if (what != redlock_request::release) until = asked.deadline;
      text.keys = {call.key};
      text.arguments.assign(call.arguments.begin(), call.arguments.end());
      if (what == redlock_request::hold) {
        text.execute_by = std::to_string(clock_.at(asked.deadline));
        text.arguments[2] = text.execute_by;
      }
    } else {
      text.keys = {one.back.key};
      text.arguments = {one.back.holder};
    }
    deadline = std::max(deadline, until);
    // The channel for those who wait: nobody listens to the servers of a quorum.
    if (what == redlock_request::release) text.arguments.emplace_back();
    scripted[n] = {&script_of(what), {text.keys, text.arguments}};
  }
  auto results = evaluate_all(link_, scripted, deadline);
  auto const replied =
      std::find_if(results.begin(), results.end(), [](result const& one) { return one.replied(); });
  bool const answering = replied != results.end();
  failures_ = answering ? 0 : failures_ + 1;
  // Not after the first: a connection that broke is made again at once.
  ask_again_at_ =
      failures_ < 2 ? time_point{} : boottime::now() + std::min(failures_ * 10ms, longest_absence);
  set_answering(answering, answering ? std::string_view{} : results.front().error);
  return results;
}

// A server whose clock is not known, or was set, refuses a hold and says what time it is.
bool redlock_server::send_again(sent_call& hold, result const& outcome) {
  if (auto const now = outcome.answer[1].integer()) clock_.observe(*now);
  if (outcome.answer[0].text() != "LATE") return false;
  auto const deadline = hold.of->asked().deadline;
  check_version(deadline);
  return too_old_.empty() && hold.late++ < most_late && boottime::now() < deadline;
}

redlock_vote redlock_server::judge_vote(redlock_request what, result from) const {
  auto const name = link_.server().to_string();
  auto const word = from.answer[0].text();
  if (word == "LATE") {
    if (!too_old_.empty()) return failed_vote(refusal::misconfigured, name + ": " + too_old_);
    return failed_vote(refusal::not_applied, name + ": the request came after its time");
  }
  if (word == "NOT_PRIMARY") {
    return failed_vote(refusal::not_applied,
                       name + " is a replica; the servers of a quorum must be primaries");
  }
  if (!word.empty()) {
    return {.what = redlock_vote::kind::answered, .answer = std::move(from.answer)};
  }
  auto verdict = judge(from, to_string(what));
  if (verdict.message.find(name) == std::string::npos) {
    verdict.message = name + ": " + verdict.message;
  }
  return {.what = redlock_vote::kind::failed, .error = std::move(verdict)};
}

// A quorum goes on without a server that refuses, so nobody else would say that there is one.
void redlock_server::tell_refusal(redlock_request what, redlock_vote const& said) {
  bool const refused = said.what == redlock_vote::kind::failed;
  bool const before = std::exchange(refused_[static_cast<std::size_t>(what)], refused);
  if (refused && !before) tell(said.error.message);
}

// A hold that the server refused at first (it did not know the script, or its clock was not known
// here) was repeated behind what belongs to it: that came too early and is no word about the lease.
void redlock_server::mistrust_early(message& calls, std::vector<redlock_vote>& said) {
  std::unordered_set<std::string_view> held;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].of) continue;
    auto const& asked = calls[i].of->asked();
    auto const& call = asked.calls[calls[i].item];
    if (asked.what == redlock_request::hold) {
      if (said[i].word() == "HELD") held.insert(call.arguments.front());
    } else if (asked.what == redlock_request::confirm || asked.what == redlock_request::release) {
      bool const denied = said[i].word() == "LOST" || said[i].word() == "ALREADY_LOST";
      if (denied && held.contains(call.arguments.front())) {
        said[i] = failed_vote(refusal::not_applied,
                              link_.server().to_string() + ": asked before the lease was there");
      }
    }
  }
}

void redlock_server::settle(message& calls, std::vector<redlock_vote> said) {
  mistrust_early(calls, said);
  bool undone = true;
  for (std::size_t begin = 0; begin < calls.size();) {
    auto const of = calls[begin].of;
    if (!of) {
      undone = settle_release(std::move(calls[begin].back), said[begin]) && undone;
      ++begin;
      continue;
    }
    auto const& asked = of->asked();
    std::vector<redlock_vote> votes;
    for (auto const& call : asked.calls) {
      auto& vote = said[begin++];
      if (asked.what == redlock_request::release) {
        undone = settle_release({call.key, call.arguments.front(), asked.expires}, vote) && undone;
      } else if (asked.what == redlock_request::hold && vote.what == redlock_vote::kind::failed &&
                 vote.error.kind == refusal::unknown) {
        in_limbo_[call.arguments.front()] = asked.deadline + limbo_margin;
      }
      votes.push_back(std::move(vote));
    }
    of->record(how_.number, std::move(votes));
  }
  if (leftovers_.empty()) too_many_told_ = false;
  if (undone) {
    leftover_pause_ = first_pause;
    leftovers_wait_until_ = {};
  } else {
    leftovers_wait_until_ = boottime::now() + leftover_pause_;
    leftover_pause_ = std::min<std::chrono::nanoseconds>(leftover_pause_ * 2, longest_pause);
  }
}

// Whether the server answered.
bool redlock_server::settle_release(leftover what, redlock_vote const& said) {
  if (said.what != redlock_vote::kind::answered) {
    keep(std::move(what), boottime::now());
    return false;
  }
  auto const limbo = in_limbo_.find(what.holder);
  if (limbo == in_limbo_.end()) return true;
  if (said.word() == "RELEASED") {
    in_limbo_.erase(limbo);
  } else if (boottime::now() < limbo->second) {
    keep(std::move(what), limbo->second);
  }
  return true;
}

void redlock_server::keep(leftover what, time_point due) {
  if (what.expires <= due) return;
  if (leftovers_.size() >= how_.most_leftovers) {
    if (!std::exchange(too_many_told_, true)) {
      tell(link_.server().to_string() +
           ": more is to be given back than is remembered; the rest "
           "runs out with its ttl");
    }
    return;
  }
  if (leftover_holders_.insert(what.holder).second) leftovers_.emplace(due, std::move(what));
}

// What is left at the end is tried once more.
void redlock_server::last_leftovers() {
  try {
    {
      guard const held{mutex_};
      if (!answering_) return;
    }
    std::multimap<time_point, leftover> due;
    for (auto& one : leftovers_) due.emplace(time_point{}, std::move(one.second));
    leftovers_ = std::move(due);
    leftovers_wait_until_ = {};
    work();
  } catch (std::exception const&) {  // they run out with their ttl
  }
}

void redlock_server::set_answering(bool answering, std::string_view why) {
  {
    guard const held{mutex_};
    if (answering == answering_) return;
    answering_ = answering;
    for (auto& one : queue_) one->note_answering(how_.number, answering);
  }
  for (auto& one : todo_) one->note_answering(how_.number, answering);
  if (answering) return;
  clock_.forget();
  tell(link_.server().to_string() + " does not answer: " + std::string{why});
}

void redlock_server::tell(std::string_view what) noexcept {
  if (how_.observer != nullptr) how_.observer->on_event(events::store_error{"redlock", what});
}

void redlock_server::check_version(time_point deadline) {
  if (version_checked_) return;
  auto const version = ask_version([&](command const& what) { return link_.call(what, deadline); });
  version_checked_ = version.answered;
  too_old_.clear();
  if (!version.too_old) return;
  version_checked_ = false;
  clock_.forget();  // so that the next request comes by here as well
  too_old_ = "Redis " + version.text + " is too old: fenceguard needs 6.2 or later";
}

void redlock_server::fail(redlock_ballot& one, std::string const& why) {
  std::vector<redlock_vote> votes;
  for (std::size_t i = 0; i < one.asked().calls.size(); ++i) {
    votes.push_back(failed_vote(refusal::not_applied, why));
  }
  one.record(how_.number, std::move(votes));
}

}  // namespace fenceguard::redis
