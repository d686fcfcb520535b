#include "postgres/lease_backend.hpp"

#include <algorithm>
#include <fenceguard/core/errors.hpp>
#include <string>
#include <utility>

#include "core/request_validation.hpp"
#include "core/sleep_by_clock.hpp"
#include "postgres/statement.hpp"

namespace fenceguard::postgres {
namespace {

using std::chrono::milliseconds;
using kind = bounded_connection::outcome::kind;

constexpr unsigned most_late = 4;
constexpr std::size_t most_connections = 64;

lease_backend::settings checked(lease_backend::settings how) {
  if (how.connections < 1 || how.connections > most_connections) {
    throw invalid_request{"lease_store_options.connections must be 1 to " +
                          std::to_string(most_connections) + ", not " +
                          std::to_string(how.connections)};
  }
  if (how.url.find('\0') != std::string::npos) {
    throw invalid_request{"lease_store_options.url holds a NUL character"};
  }
  return how;
}

std::string word_of(bounded_connection::outcome const& answer) {
  if (answer.what != kind::answered || answer.answer.empty()) return {};
  return answer.answer[0].at(0).value_or("");
}

// PostgreSQL's text of an array of texts.
std::string array_of(std::vector<std::string_view> const& texts) {
  std::string array = "{";
  for (auto text : texts) {
    array += array.size() > 1 ? ",\"" : "\"";
    for (char c : text) {
      if (c == '"' || c == '\\') array += '\\';
      array += c;
    }
    array += '"';
  }
  return array + "}";
}

}  // namespace

// A connection of the pool, for one call; none where all were in use to the deadline.
class lease_backend::checkout {
 public:
  checkout(lease_backend& from, time_point deadline) : from_{from} {
    std::unique_lock held{from_.pool_mutex_};
    for (;;) {
      if (!from_.idle_.empty()) {
        mine_ = from_.idle_.back();
        from_.idle_.pop_back();
        return;
      }
      if (from_.connections_.size() < from_.how_.connections) {
        from_.connections_.push_back(std::make_unique<bounded_connection>(from_.url_));
        mine_ = from_.connections_.back().get();
        if (from_.closed_) mine_->shutdown();
        return;
      }
      if (from_.closed_ || boottime::now() >= deadline) return;
      sleep_by_clock(held, from_.returned_, deadline);
    }
  }
  ~checkout() {
    if (mine_ == nullptr) return;
    std::lock_guard const held{from_.pool_mutex_};
    // One that did not answer may still be at it: the others come first.
    from_.idle_.insert(answered_ ? from_.idle_.end() : from_.idle_.begin(), mine_);
    from_.returned_.notify_one();
  }
  checkout(checkout const&) = delete;
  checkout& operator=(checkout const&) = delete;

  [[nodiscard]] bounded_connection* get() const noexcept { return mine_; }
  void note(outcome const& answer) noexcept {
    answered_ = answer.what == kind::answered || answer.what == kind::refused;
  }

 private:
  lease_backend& from_;
  bounded_connection* mine_ = nullptr;
  bool answered_ = false;
};

lease_backend::lease_backend(settings how, token_source& tokens)
    : how_{checked(std::move(how))},
      url_{bounded_url(how_.url, how_.command_timeout, "fenceguard-leases")},
      renewals_{url_},
      last_{url_},
      listener_{url_,
                [this](std::string const& message) {
                  tell(events::store_error{"hear of releases", message});
                }},
      numbering_{tokens, how_.observer} {
  connections_.reserve(how_.connections);
  idle_.reserve(how_.connections);
}

lease_backend::~lease_backend() = default;

void lease_backend::close() noexcept {
  {
    std::lock_guard const held{pool_mutex_};
    closed_ = true;
    for (auto const& one : connections_) one->shutdown();
    returned_.notify_all();
  }
  renewals_.shutdown();
  listener_.close();
  numbering_.close();
}

auto lease_backend::try_acquire(attempt const& what) -> acquire_answer {
  validate_attempt(what.holder, what.ttl);
  if (closed_) return not_applied{"the lease store is closed"};
  auto const deadline = real_time(*how_.clock, what.deadline);
  auto const waiter = listener_.waiter(what.resource);
  for (unsigned late = 0;; ++late) {
    auto const sent_at = how_.clock->now();
    auto const answer =
        ask("* FROM fenceguard.lease_acquire",
            {std::string{what.resource}, std::string{what.holder}, std::string{what.label},
             std::to_string(what.ttl.count()), std::to_string(server_clock_.at(deadline)),
             waiter ? std::optional{std::to_string(*waiter)} : std::nullopt},
            deadline);
    auto const word = word_of(answer);
    if (word.empty()) {
      server_clock_.forget();
      return refused(answer);
    }
    server_clock_.observe(answer.number(0, 1));
    if (word == "held") return number(what, sent_at, deadline);
    if (word == "busy") return busy{milliseconds{answer.number(0, 2)}};
    if (late == most_late) return not_applied{"acquire: the request came after its time"};
  }
}

// From here on the lease is held without a token, until it is numbered or taken back.
auto lease_backend::number(attempt const& what, time_point sent_at, time_point deadline)
    -> acquire_answer {
  try {
    auto const now = boottime::now();
    auto const until = now + (deadline - now) * 7 / 8;  // the rest is for what follows
    auto const token = numbering_.reserve_one(until);
    auto const answer = confirm(what.resource, what.holder, token, deadline);
    auto const word = word_of(answer);
    if (word == "numbered") return granted{token, sent_at, what.ttl};
    if (word == "lost") {
      return not_applied{
          "the lease ran out while its token was being reserved: its ttl is too short"};
    }
    throw_lasting(answer);
    return unknown{answer.error.empty() ? "the grant was not numbered: " + word : answer.error};
  } catch (error const& failed) {
    if (release(what.resource, what.holder, what.deadline) != release_outcome::unknown) throw;
    return unknown{failed.what()};
  }
}

auto lease_backend::confirm(std::string_view resource, std::string_view holder, fencing_token token,
                            time_point deadline) -> outcome {
  return ask("fenceguard.lease_number",
             {std::string{resource}, std::string{holder}, std::to_string(token.value())}, deadline);
}

auto lease_backend::refused(outcome const& answer) const -> acquire_answer {
  throw_lasting(answer);
  if (answer.what == kind::unknown) return unknown{answer.error};
  return not_applied{answer.error.empty() ? "PostgreSQL gave an empty answer" : answer.error};
}

// What trying again cannot mend.
void lease_backend::throw_lasting(outcome const& answer) const {
  answer.throw_own();
  if (answer.what != kind::refused) return;
  try {
    std::rethrow_exception(answer.failure);
  } catch (std::exception const& failed) {
    if (libpqxx::sqlstate_of(failed) == "42501") {
      throw invalid_request{answer.error + " (the role needs sql/roles/application.sql)"};
    }
  }
}

void lease_backend::renew(std::span<renew_item> batch, time_point deadline) noexcept {
  try {
    renew_all(batch, real_time(*how_.clock, deadline));
  } catch (std::exception const& failed) {
    tell(events::store_error{"renew", failed.what()});
  }
}

void lease_backend::renew_all(std::span<renew_item> batch, time_point deadline) {
  std::vector<std::string_view> resources;
  std::vector<std::string_view> holders;
  std::string ttls = "{";
  for (auto& item : batch) {
    item.answer = renew_answer::unknown;
    resources.push_back(item.resource);
    holders.push_back(item.holder);
    ttls += (ttls.size() > 1 ? "," : "") + std::to_string(item.ttl.count());
  }
  ttls += "}";
  auto const sent_at = how_.clock->now();
  auto const answer = ask_through(renewals_, "* FROM fenceguard.lease_renew",
                                  {array_of(resources), array_of(holders), ttls}, deadline);
  if (answer.what != kind::answered) {
    tell(events::store_error{"renew", answer.error});
    return;
  }
  for (auto& item : batch) {
    item.answer = renew_answer::lost;
    item.sent_at = sent_at;
    item.validity = item.ttl;
  }
  for (std::size_t i = 0; i < answer.answer.size(); ++i) {
    auto const position = static_cast<std::size_t>(answer.number(i, 0));
    if (position >= 1 && position <= batch.size()) {
      batch[position - 1].answer = renew_answer::renewed;
    }
  }
}

release_outcome lease_backend::release(std::string_view resource, std::string_view holder,
                                       time_point deadline) noexcept {
  try {
    auto const answer =
        ask("fenceguard.lease_release", {std::string{resource}, std::string{holder}},
            real_time(*how_.clock, deadline));
    auto const word = word_of(answer);
    if (word == "released") return release_outcome::released;
    if (word == "already_lost") return release_outcome::already_lost;
    tell(events::store_error{"release", answer.error});
  } catch (std::exception const& failed) {
    tell(events::store_error{"release", failed.what()});
  }
  return release_outcome::unknown;
}

// The number first, the test of the hold after it: the other order would let a holder that was
// paused in between end up with a higher number than its successor.
auto lease_backend::advance(std::string_view resource, std::string_view holder,
                            std::optional<fencing_token> above, time_point deadline)
    -> advance_answer {
  validate_attempt(holder, milliseconds{1});
  if (closed_) return not_applied{"the lease store is closed"};
  auto const until = real_time(*how_.clock, deadline);
  auto const token = numbering_.reserve_above(above, until);
  auto const answer = confirm(resource, holder, token, until);
  auto const word = word_of(answer);
  if (word == "numbered") return advanced{token};
  if (word == "lost") return lost{};
  if (word == "overtaken") return not_applied{"another advance of the same grant came first"};
  throw_lasting(answer);
  if (answer.what == kind::unknown) return unknown{answer.error};
  return not_applied{answer.error};
}

std::optional<holder_info> lease_backend::inspect(std::string_view resource, time_point deadline) {
  auto const answer = ask("* FROM fenceguard.lease_inspect", {std::string{resource}},
                          real_time(*how_.clock, deadline));
  throw_lasting(answer);
  if (answer.what != kind::answered) throw lease_store_unavailable{"inspect: " + answer.error};
  if (answer.answer.empty()) return std::nullopt;
  auto const& row = answer.answer[0];
  holder_info info;
  info.holder = row.at(0).value_or("");
  if (row.at(1)) info.token.emplace(answer.number(0, 1));
  info.since = std::chrono::system_clock::time_point{
      std::chrono::duration_cast<std::chrono::system_clock::duration>(
          std::chrono::microseconds{answer.number(0, 2)})};
  info.remaining = milliseconds{answer.number(0, 3)};
  info.label = row.at(4).value_or("");
  return info;
}

void lease_backend::watch(std::string const& resource) { listener_.watch(resource); }

void lease_backend::unwatch(std::string const& resource) noexcept { listener_.unwatch(resource); }

std::optional<milliseconds> lease_backend::poll_interval(
    std::string_view /*resource*/) const noexcept {
  return listener_.poll_interval();
}

void lease_backend::set_hint_sink(hint_sink sink) { listener_.set_sink(std::move(sink)); }

auto lease_backend::ask(std::string const& call, arguments const& with, time_point deadline)
    -> outcome {
  if (closed_) return ask_through(last_, call, with, deadline);
  checkout mine{*this, deadline};
  if (mine.get() == nullptr) return {.error = "all connections to PostgreSQL are in use"};
  auto answer = ask_through(*mine.get(), call, with, deadline);
  mine.note(answer);
  return answer;
}

// Timeouts end with the transaction, so that a pooler's next client does not find them, and no
// backend goes on waiting for what nobody asks for any more. The server gives up before its caller
// does: then it is known that nothing was done, and the connection is kept.
auto lease_backend::ask_through(bounded_connection& through, std::string const& call,
                                arguments const& with, time_point deadline) const -> outcome {
  // By value: the connection's thread may look at it after this caller has gone.
  auto const build = [call, with, deadline](libpqxx::connection_base& db) {
    auto const left = std::chrono::ceil<milliseconds>(deadline - boottime::now());
    auto const limit = std::to_string(std::max<std::int64_t>(left.count() * 7 / 8, 1));
    std::string text =
        std::string{own_transaction} +
        "SET LOCAL synchronous_commit = off; SET LOCAL statement_timeout = " + limit + "; SELECT " +
        call + "(";
    for (std::size_t i = 0; i < with.size(); ++i) {
      text += i > 0 ? ", " : "";
      text += with[i] ? libpqxx::quoted(db, *with[i]) : "NULL";
    }
    return text + ")";
  };
  return through.execute(build, deadline);
}

void lease_backend::tell(event const& what) const noexcept {
  if (how_.observer != nullptr) how_.observer->on_event(what);
}

}  // namespace fenceguard::postgres
