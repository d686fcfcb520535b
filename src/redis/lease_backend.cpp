#include "redis/lease_backend.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <exception>
#include <fenceguard/core/errors.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/holder_id.hpp"
#include "core/request_validation.hpp"
#include "core/sleep_by_clock.hpp"
#include "redis/lease_value.hpp"
#include "redis/server_version.hpp"

namespace fenceguard::redis {
namespace {

using std::chrono::milliseconds;

// So often a data set that asks for blocks again and again is obliged within one call.
constexpr unsigned most_fetches = 4;
constexpr unsigned most_late = 4;
constexpr std::chrono::seconds ask_identity_again{60};

// A decimal number without a heap allocation.
class numeral {
 public:
  explicit numeral(std::int64_t value) noexcept
      : end_{std::to_chars(digits_.data(), digits_.data() + digits_.size(), value).ptr} {}
  numeral(numeral const&) = delete;
  numeral& operator=(numeral const&) = delete;

  operator std::string_view() const noexcept {
    return {digits_.data(), static_cast<std::size_t>(end_ - digits_.data())};
  }

 private:
  std::array<char, 24> digits_;
  char* end_;
};

// A word that no caller has used before: the holder is random, the number is not used again in this
// store. The holder alone would not do, since one acquisition may ask several data sets.
class fresh_ticket {
 public:
  fresh_ticket(std::string_view holder, std::uint64_t number) noexcept {
    char* at = std::copy(holder.begin(), holder.end(), text_.data());
    *at++ = '.';
    end_ = std::to_chars(at, text_.data() + text_.size(), number, 16).ptr;
  }
  fresh_ticket(fresh_ticket const&) = delete;
  fresh_ticket& operator=(fresh_ticket const&) = delete;

  operator std::string_view() const noexcept {
    return {text_.data(), static_cast<std::size_t>(end_ - text_.data())};
  }

 private:
  std::array<char, holder_size + 1 + 16> text_;
  char* end_;
};

std::optional<fencing_token> token_of(reply_view text) {
  auto const value = text.integer();
  if (!value || *value < fencing_token::min_value || *value > fencing_token::max_value) {
    return std::nullopt;
  }
  return fencing_token{*value};
}

fenceguard::lease_backend::busy busy_for(reply_view remaining) {
  auto const ms = remaining.integer().value_or(-1);
  if (ms < 0) return {milliseconds{0}};  // a key without an end: somebody else's doing
  return {milliseconds{std::max<std::int64_t>(ms, 1)}};
}

// The longer the others have been waiting, the less often they ask.
milliseconds pause_after(reply_view microseconds_waited) {
  auto const waited = microseconds_waited.integer().value_or(0) / 1'000;
  return milliseconds{std::clamp<std::int64_t>(waited, 1, 25)};
}

// A cluster is moving the slot, and the two keys of the script are not in one place (a key that
// does not exist is in none).
bool is_moving(result const& outcome) { return outcome.answer.error_code() == "TRYAGAIN"; }

constexpr char const* no_primary = "the server is a replica and cannot give leases";

[[noreturn]] void throw_partitions(reply_view stored, key_space const& keys) {
  throw invalid_request{"the leases of this prefix are spread over " + std::string{stored.text()} +
                        " partitions, and this store was told " +
                        std::string{keys.partitions_text()}};
}

}  // namespace

lease_backend::lease_backend(settings how, token_source& tokens)
    : how_{std::move(how)},
      scripts_{lease_scripts::get()},
      main_{how_.servers, how_.keys.partitions()},
      renewals_{how_.servers, how_.keys.partitions()},
      last_{how_.servers, how_.keys.partitions()},
      replication_{how_.servers, how_.keys.partitions(), how_.replication},
      server_clocks_{std::make_unique<server_clock[]>(how_.keys.partitions())},
      blocks_{tokens,
              {how_.block_size, how_.observer},
              [this](unsigned partition, std::string const& ticket, fencing_token first,
                     std::int64_t count) { return offer(partition, ticket, first, count); }},
      numbering_{tokens, how_.observer} {}

lease_backend::~lease_backend() = default;

void lease_backend::require_support() {
  replication_.require_support(boottime::now() + how_.command_timeout);
}

void lease_backend::close() noexcept {
  closed_ = true;
  main_.shutdown();
  renewals_.shutdown();
  replication_.shutdown();
  blocks_.close();
  numbering_.close();
  if (messages_) messages_->close();
}

void lease_backend::set_hint_sink(hint_sink sink) {
  messages_ = std::make_unique<release_messages>(
      release_messages::settings{.servers = how_.servers,
                                 .keys = how_.keys,
                                 .command_timeout = how_.command_timeout,
                                 .on_error =
                                     [this](std::string const& message) {
                                       tell(events::store_error{"hear of releases", message});
                                     }},
      std::move(sink));
}

void lease_backend::watch(std::string const& resource) {
  if (messages_) messages_->watch(resource);
}

void lease_backend::unwatch(std::string const& resource) noexcept {
  if (messages_) messages_->unwatch(resource);
}

std::optional<milliseconds> lease_backend::poll_interval(std::string_view resource) const noexcept {
  return messages_ ? messages_->poll_interval(resource) : std::nullopt;
}

auto lease_backend::try_acquire(attempt const& what) -> acquire_answer {
  validate_attempt(what.holder, what.ttl);
  if (closed_) return not_applied{"the lease store is closed"};
  auto const lease = how_.keys.lease(what.resource);
  auto const deadline = real_time(*how_.clock, what.deadline);
  if (auto refusal = disagreement(deadline)) return *std::move(refusal);
  if (numbers_each_grant()) return acquire_numbered(what, deadline, lease);
  return acquire_from_block(what, deadline, lease);
}

// Asked once by each store, before it takes its first lease. What this does not notice: two stores
// that agreed with nobody but each other's predecessors. The number is lost together with the data
// of its server (FLUSHALL, a restart without persistence, a failover that lost the last writes);
// the stores that have agreed go on, and the next new one writes its own.
auto lease_backend::disagreement(time_point deadline) -> std::optional<acquire_answer> {
  if (partitions_agreed_) return std::nullopt;
  auto const kept = how_.keys.partitions_key();
  std::array<std::string_view, 1> const keys{kept};
  std::array<std::string_view, 1> const arguments{how_.keys.partitions_text()};
  auto const outcome = run(scripts_.partitions, {keys, arguments}, 0, deadline);
  auto const& answer = outcome.answer;
  auto const word = answer[0].text();
  if (word == "PARTITIONS") throw_partitions(answer[1], how_.keys);
  if (word == "NOT_PRIMARY") return not_applied{no_primary};
  if (word != "AGREED") return not_applied{fail(outcome, "acquire").message};
  partitions_agreed_ = true;
  return std::nullopt;
}

auto lease_backend::acquire_from_block(attempt const& what, time_point deadline,
                                       std::string_view lease) -> acquire_answer {
  auto const partition = how_.keys.partition_of(what.resource);
  auto const tokens = how_.keys.tokens(partition);
  numeral const ttl{what.ttl.count()};
  unsigned fetches = 0;
  unsigned late = 0;
  for (;;) {
    fresh_ticket const ticket{what.holder, next_ticket_++};
    numeral const execute_by{server_clocks_[partition].at(deadline)};
    std::array<std::string_view, 2> const keys{lease, tokens};
    std::array<std::string_view, 6> const arguments{
        what.holder, ttl, ticket, execute_by, how_.keys.partitions_text(), what.label};
    auto const sent_at = how_.clock->now();
    auto const made = grant(scripts_.acquire, {keys, arguments}, partition, deadline);
    auto const& outcome = made.answer;
    auto const& answer = outcome.answer;
    if (auto const now = answer[1].integer()) server_clocks_[partition].observe(*now);
    auto const word = answer[0].text();
    if (word == "GRANTED") {
      if (!made.shortfall.empty()) return undo(what, made.shortfall);
      auto const token = token_of(answer[2]);
      if (!token) return unknown{judge(outcome, "acquire").message};
      fetch_ahead(partition, answer[3].text());
      return granted{*token, sent_at, what.ttl};
    }
    if (word == "BUSY") return busy_for(answer[2]);
    if (word == "NEED_BLOCK") {
      if (fetches++ == most_fetches) return again{milliseconds{25}};
      fetch(partition, answer[2].text(), deadline);
    } else if (word == "WAIT_BLOCK") {
      blocks_.throw_recent_failure(partition,
                                   std::chrono::microseconds{answer[2].integer().value_or(0)});
      return again{pause_after(answer[2])};
    } else if (word == "LATE") {
      check_version(partition, deadline);
      if (late++ == most_late) return not_applied{"acquire: the request came after its time"};
    } else if (word == "NO_IDENTITY") {
      note_hidden_identity();
      return acquire_numbered(what, deadline, lease);
    } else if (is_moving(outcome)) {
      return acquire_numbered(what, deadline, lease);
    } else {
      return refused(outcome);
    }
  }
}

auto lease_backend::acquire_numbered(attempt const& what, time_point deadline,
                                     std::string_view lease) -> acquire_answer {
  auto const partition = how_.keys.partition_of(what.resource);
  numeral const ttl{what.ttl.count()};
  for (unsigned late = 0;; ++late) {
    numeral const execute_by{server_clocks_[partition].at(deadline)};
    std::array<std::string_view, 1> const keys{lease};
    std::array<std::string_view, 4> const arguments{what.holder, ttl, execute_by, what.label};
    auto const sent_at = how_.clock->now();
    auto const outcome = run_timed(scripts_.hold, {keys, arguments}, partition, deadline);
    auto const word = outcome.answer[0].text();
    if (word == "HELD") return number(what, sent_at, deadline, lease);
    if (word == "BUSY") return busy_for(outcome.answer[2]);
    if (word != "LATE") return refused(outcome);
    check_version(partition, deadline);
    if (late == most_late) return not_applied{"acquire: the request came after its time"};
  }
}

// From here on the lease is held without a token, until it is numbered or taken back.
auto lease_backend::number(attempt const& what, time_point sent_at, time_point deadline,
                           std::string_view lease) -> acquire_answer {
  auto const now = boottime::now();
  std::optional<fencing_token> token;
  try {
    token = numbering_.reserve_one(now + (deadline - now) * 7 / 8);  // the rest is for what follows
  } catch (error const& failed) {
    if (release(what.resource, what.holder, what.deadline) != release_outcome::unknown) throw;
    return unknown{failed.what()};
  }
  auto const made =
      confirm(what.resource, lease, what.holder, *token, deadline, acknowledged::by_replicas);
  auto const& outcome = made.answer;
  auto const word = outcome.answer[0].text();
  if (word == "GRANTED" && !made.shortfall.empty()) return undo(what, made.shortfall);
  if (word == "GRANTED") return granted{*token, sent_at, what.ttl};
  if (word == "LOST") {
    return not_applied{
        "the lease ran out while its token was being reserved: its ttl is too short"};
  }
  if (word == "NOT_PRIMARY") return unknown{no_primary};
  return unknown{fail(outcome, "acquire").message};
}

replication::outcome lease_backend::confirm(std::string_view resource, std::string_view lease,
                                            std::string_view holder, fencing_token token,
                                            time_point deadline, acknowledged by) {
  auto const partition = how_.keys.partition_of(resource);
  auto const tokens = how_.keys.tokens(partition);
  numeral const number{token.value()};
  std::array<std::string_view, 2> const keys{lease, tokens};
  std::array<std::string_view, 2> const arguments{holder, number};
  auto const send = [&](std::span<std::string_view const> which) -> replication::outcome {
    if (by == acknowledged::by_replicas) {
      return grant(scripts_.confirm, {which, arguments}, partition, deadline);
    }
    return {.answer = run(scripts_.confirm, {which, arguments}, partition, deadline)};
  };
  auto made = send(keys);
  if (!is_moving(made.answer)) return made;
  // One key at a time while the slot is moved, and the tokens first. A block that stands when the
  // grant is confirmed was then asked for after they were dropped, hence reserved after this token;
  // whoever takes the lease after this grant is given a higher number. A drop whose confirmation
  // never comes costs a block. A key that is missing is looked for at the other end (ASK), and
  // MIGRATE holds up its server until the key is at one end only, so the drop misses nothing.
  // Tokens that are moved and not dropped belong to another server's identity from then on.
  std::span<std::string_view const> const both{keys};
  auto dropped = run(scripts_.drop_tokens, {both.subspan(1), {}}, partition, deadline);
  if (dropped.answer[0].text() != "DROPPED") return {.answer = std::move(dropped)};
  return send(both.first(1));
}

replication::outcome lease_backend::grant(script const& what, script_call const& with,
                                          unsigned partition, time_point deadline) {
  if (!replication_.wanted()) return {.answer = run(what, with, partition, deadline)};
  auto made = replication_.evaluate(what, with, partition, deadline, [](result const& one) {
    return one.answer[0].text() == "GRANTED";
  });
  if (!made.answer.replied()) server_clocks_[partition].forget();
  return made;
}

auto lease_backend::undo(attempt const& what, std::string const& shortfall) -> acquire_answer {
  // The replicas may have used up the caller's time.
  auto const until =
      std::max<time_point>(what.deadline, how_.clock->now() + how_.command_timeout / 4);
  if (release(what.resource, what.holder, until) == release_outcome::unknown) {
    return unknown{shortfall + "; undoing the grant was not answered"};
  }
  return not_applied{shortfall + "; the grant was undone"};
}

auto lease_backend::refused(result const& outcome) -> acquire_answer {
  auto const word = outcome.answer[0].text();
  if (word == "NOT_PRIMARY") return not_applied{no_primary};
  if (word == "PARTITIONS") throw_partitions(outcome.answer[2], how_.keys);
  auto failed = fail(outcome, "acquire");
  if (failed.kind == refusal::unknown) return unknown{std::move(failed.message)};
  return not_applied{std::move(failed.message)};
}

void lease_backend::renew(std::span<renew_item> batch, time_point deadline) noexcept {
  try {
    renew_all(batch, real_time(*how_.clock, deadline));
  } catch (std::exception const& failed) {
    tell(events::store_error{"renew", failed.what()});
  }
}

void lease_backend::renew_all(std::span<renew_item> batch, time_point deadline) {
  struct words {
    std::string key;
    std::string ttl;
    std::array<std::string_view, 1> keys;
    std::array<std::string_view, 2> arguments;
  };
  std::vector<words> texts(batch.size());
  std::vector<route::routed_call> calls(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    auto& text = texts[i];
    text.key = how_.keys.lease(batch[i].resource);
    text.ttl = std::to_string(batch[i].ttl.count());
    text.keys = {text.key};
    text.arguments = {batch[i].holder, text.ttl};
    calls[i] = {how_.keys.partition_of(batch[i].resource), {text.keys, text.arguments}};
    batch[i].answer = renew_answer::unknown;
  }
  auto const sent_at = how_.clock->now();
  auto const outcomes = renewals_.evaluate_all(scripts_.renew, calls, deadline);
  result const* failed = nullptr;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    auto const word = outcomes[i].answer[0].text();
    batch[i].sent_at = sent_at;
    batch[i].validity = batch[i].ttl;
    if (word == "RENEWED") {
      batch[i].answer = renew_answer::renewed;
    } else if (word == "LOST") {
      batch[i].answer = renew_answer::lost;
    } else if (failed == nullptr) {
      failed = &outcomes[i];
    }
  }
  if (failed == nullptr) return;
  auto const not_primary = failed->answer[0].text() == "NOT_PRIMARY";
  tell(events::store_error{
      "renew", not_primary ? std::string{no_primary} : judge(*failed, "renew").message});
}

release_outcome lease_backend::release(std::string_view resource, std::string_view holder,
                                       time_point deadline) noexcept {
  try {
    auto const lease = how_.keys.lease(resource);
    auto const channel = how_.keys.released(resource);
    std::array<std::string_view, 1> const keys{lease};
    std::array<std::string_view, 2> const arguments{holder, channel};
    auto const outcome = run(scripts_.release, {keys, arguments}, how_.keys.partition_of(resource),
                             real_time(*how_.clock, deadline));
    auto const word = outcome.answer[0].text();
    if (word == "RELEASED") return release_outcome::released;
    if (word == "ALREADY_LOST") return release_outcome::already_lost;
    auto const message =
        word == "NOT_PRIMARY" ? std::string{no_primary} : judge(outcome, "release").message;
    tell(events::store_error{"release", message});
  } catch (std::exception const& failed) {
    tell(events::store_error{"release", failed.what()});
  }
  return release_outcome::unknown;
}

auto lease_backend::advance(std::string_view resource, std::string_view holder,
                            std::optional<fencing_token> above, time_point deadline)
    -> advance_answer {
  validate_attempt(holder, milliseconds{1});
  if (closed_) return not_applied{"the lease store is closed"};
  advance_call const call{resource, holder, how_.keys.lease(resource), above,
                          real_time(*how_.clock, deadline)};
  if (numbers_each_grant()) return advance_numbered(call);
  return advance_from_block(call);
}

auto lease_backend::advance_from_block(advance_call const& call) -> advance_answer {
  auto const partition = how_.keys.partition_of(call.resource);
  auto const tokens = how_.keys.tokens(partition);
  numeral const above{call.above ? call.above->value() : 0};
  for (;;) {
    fresh_ticket const ticket{call.holder, next_ticket_++};
    std::array<std::string_view, 2> const keys{call.lease, tokens};
    std::array<std::string_view, 4> const arguments{call.holder, ticket, above,
                                                    how_.keys.partitions_text()};
    auto const outcome = run_timed(scripts_.advance, {keys, arguments}, partition, call.deadline);
    auto const& answer = outcome.answer;
    auto const word = answer[0].text();
    if (word == "GRANTED") {
      auto const token = token_of(answer[2]);
      if (!token) return unknown{judge(outcome, "advance").message};
      fetch_ahead(partition, answer[3].text());
      return advanced{*token};
    }
    if (word == "LOST") return lost{};
    if (word == "NEED_BLOCK") {
      fetch(partition, answer[2].text(), call.deadline);
    } else if (word == "WAIT_BLOCK") {
      blocks_.throw_recent_failure(partition,
                                   std::chrono::microseconds{answer[2].integer().value_or(0)});
      auto const left = call.deadline - boottime::now();
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(left, pause_after(answer[2])));
    } else if (word == "NO_IDENTITY") {
      note_hidden_identity();
      return advance_numbered(call);
    } else if (is_moving(outcome)) {
      return advance_numbered(call);
    } else {
      return not_advanced(outcome);
    }
  }
}

// The number first, the test of the hold after it: the other order would let a holder that was
// paused in between end up with a higher number than its successor.
auto lease_backend::advance_numbered(advance_call const& call) -> advance_answer {
  auto const token = numbering_.reserve_above(call.above, call.deadline);
  auto const outcome = confirm(call.resource, call.lease, call.holder, token, call.deadline,
                               acknowledged::by_primary)
                           .answer;
  auto const word = outcome.answer[0].text();
  if (word == "GRANTED") return advanced{token};
  if (word == "LOST") return lost{};
  if (word == "OVERTAKEN") return not_applied{"another advance of the same grant came first"};
  return not_advanced(outcome);
}

auto lease_backend::not_advanced(result const& outcome) -> advance_answer {
  auto const word = outcome.answer[0].text();
  if (word == "NOT_PRIMARY") return not_applied{no_primary};
  if (word == "PARTITIONS") throw_partitions(outcome.answer[2], how_.keys);
  auto failed = fail(outcome, "advance");
  if (failed.kind == refusal::unknown) return unknown{std::move(failed.message)};
  return not_applied{std::move(failed.message)};
}

std::optional<holder_info> lease_backend::inspect(std::string_view resource, time_point deadline) {
  auto const lease = how_.keys.lease(resource);
  std::array<std::string_view, 1> const keys{lease};
  auto const outcome = run(scripts_.inspect, {keys, {}}, how_.keys.partition_of(resource),
                           real_time(*how_.clock, deadline));
  auto const word = outcome.answer[0].text();
  if (word == "FREE") return std::nullopt;
  if (word == "NOT_PRIMARY") throw lease_store_unavailable{no_primary};
  if (word != "HELD") throw lease_store_unavailable{fail(outcome, "inspect").message};
  auto info = parse_lease(outcome.answer[1].text());
  if (!info) throw lease_store_unavailable{"inspect: the key " + lease + " holds no lease"};
  auto const remaining = outcome.answer[2].integer().value_or(0);
  info->remaining = milliseconds{std::max<std::int64_t>(remaining, 0)};
  return info;
}

result lease_backend::run(script const& what, script_call const& with, unsigned partition,
                          time_point deadline) {
  auto outcome = (closed_ ? last_ : main_).evaluate(what, with, partition, deadline);
  if (!outcome.replied()) server_clocks_[partition].forget();
  return outcome;
}

result lease_backend::run_timed(script const& what, script_call const& with, unsigned partition,
                                time_point deadline) {
  auto outcome = run(what, with, partition, deadline);
  if (auto const now = outcome.answer[1].integer()) server_clocks_[partition].observe(*now);
  return outcome;
}

void lease_backend::fetch(unsigned partition, std::string_view ticket, time_point deadline) {
  tell(events::tokens_needed{numeral{partition}});
  blocks_.fetch(partition, ticket, deadline);
}

// A grant that is held already must not be lost to a failure in here.
void lease_backend::fetch_ahead(unsigned partition, std::string_view ticket) noexcept {
  if (ticket.empty()) return;
  try {
    blocks_.fetch_ahead(partition, ticket);
  } catch (std::exception const& failed) {
    tell(events::store_error{"fetch tokens ahead", failed.what()});
  }
}

token_blocks::offer_answer lease_backend::offer(unsigned partition, std::string const& ticket,
                                                fencing_token first, std::int64_t count) {
  using answer = token_blocks::offer_answer;
  auto const tokens = how_.keys.tokens(partition);
  auto const end = first.value() + count;
  numeral const from{first.value()};
  numeral const limit{end};
  numeral const low{end - count / 10};
  std::array<std::string_view, 1> const keys{tokens};
  std::array<std::string_view, 4> const arguments{ticket, from, limit, low};
  auto const outcome =
      run(scripts_.offer, {keys, arguments}, partition, boottime::now() + how_.command_timeout);
  auto const word = outcome.answer[0].text();
  if (word == "TAKEN") return answer::taken;
  if (word == "BEHIND") return answer::behind;
  if (word == "REFUSED" || word == "NOT_PRIMARY" || word == "NO_IDENTITY") {
    return answer::refused;
  }
  tell(events::store_error{"offer tokens", judge(outcome, "offer tokens").message});
  return answer::unanswered;
}

// What trying again cannot mend is thrown at once.
server_error lease_backend::fail(result const& from, std::string_view operation) {
  if (from.why == failure::forked) {
    throw invalid_request{"a lease store cannot be used in a forked child process"};
  }
  auto verdict = judge(from, operation);
  if (verdict.kind == refusal::misconfigured) throw invalid_request{verdict.message};
  return verdict;
}

void lease_backend::check_version(unsigned partition, time_point deadline) {
  if (version_checked_) return;
  auto const version =
      ask_version([&](command const& what) { return main_.call(what, partition, deadline); });
  if (version.answered) version_checked_ = true;
  if (!version.too_old) return;
  version_checked_ = false;
  server_clocks_[partition].forget();  // so that the next request comes by here as well
  throw invalid_request{"Redis " + version.text + " is too old: fenceguard needs 6.2 or later"};
}

bool lease_backend::numbers_each_grant() const noexcept {
  if (how_.number_each_grant) return true;
  auto const hidden_at = identity_hidden_at_.load();
  if (hidden_at == 0) return false;
  return boottime::now().time_since_epoch() - boottime::duration{hidden_at} < ask_identity_again;
}

void lease_backend::note_hidden_identity() noexcept {
  identity_hidden_at_ = boottime::now().time_since_epoch().count();
}

void lease_backend::tell(event const& what) noexcept {
  if (how_.observer != nullptr) how_.observer->on_event(what);
}

}  // namespace fenceguard::redis
