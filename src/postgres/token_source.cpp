#include <unistd.h>

#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/token_source.hpp>
#include <utility>

#include "postgres/bounded_connection.hpp"
#include "postgres/libpqxx.hpp"
#include "postgres/statement.hpp"

namespace fenceguard::postgres {
namespace {

using outcome = bounded_connection::outcome;

token_source_options checked(token_source_options options) {
  if (options.timeout < std::chrono::milliseconds{100} ||
      options.timeout > std::chrono::seconds{60}) {
    throw invalid_request{"token_source_options.timeout must be between 100 ms and 60 s"};
  }
  if (options.url.find('\0') != std::string::npos) {
    throw invalid_request{"token_source_options.url holds a NUL character"};
  }
  return options;
}

}  // namespace

// What a reservation that was given up has reserved remains as a gap.
struct token_source::state {
  explicit state(token_source_options how)
      : options{checked(std::move(how))},
        connection{bounded_url(options.url, options.timeout, "fenceguard-tokens")},
        owner{::getpid()} {}

  fencing_token reserve(std::int64_t count);
  outcome ask(std::int64_t count, time_point deadline);

  token_source_options const options;
  bounded_connection connection;
  pid_t const owner;
};

outcome token_source::state::ask(std::int64_t count, time_point deadline) {
  // One message is one transaction. Its timeouts end with it, so that a pooler's next client does
  // not find them, and no backend goes on waiting for what nobody asks for any more.
  std::string const limit = std::to_string(options.timeout.count());
  std::string const text =
      std::string{own_transaction} + "SELECT pg_catalog.set_config('statement_timeout', '" + limit +
      "', true); SELECT fenceguard.reserve_tokens(" + std::to_string(count) + ")";
  return connection.execute([text](libpqxx::connection_base&) { return text; }, deadline);
}

fencing_token token_source::state::reserve(std::int64_t count) {
  auto const deadline = boottime::now() + options.timeout;
  auto answer = ask(count, deadline);
  // A kept connection may have died unseen. A reservation may be repeated.
  if (answer.what == outcome::kind::unknown && boottime::now() < deadline) {
    answer = ask(count, deadline);
  }
  if (answer.what == outcome::kind::answered && !answer.answer.empty()) {
    return fencing_token{answer.number(0, 0)};
  }
  answer.throw_own();
  if (boottime::now() >= deadline) {
    throw token_source_unavailable{"PostgreSQL gave no tokens within " +
                                   std::to_string(options.timeout.count()) + " ms"};
  }
  throw token_source_unavailable{"PostgreSQL gave no tokens: " + answer.error};
}

token_source::token_source(std::string const& url)
    : token_source{token_source_options{.url = url}} {}

token_source::token_source(token_source_options options)
    : state_{std::make_unique<state>(std::move(options))} {}

token_source::~token_source() {
  // A forked child has neither the thread nor a right to the connection.
  if (state_->owner != ::getpid()) static_cast<void>(state_.release());
}

fencing_token token_source::reserve(std::int64_t count) {
  if (count < 1 || count > max_count) {
    throw invalid_request{"reserve(): count must be between 1 and " + std::to_string(max_count) +
                          ", not " + std::to_string(count)};
  }
  if (state_->owner != ::getpid()) {
    throw invalid_request{"a token source cannot be used in a forked child: make one of its own"};
  }
  return state_->reserve(count);
}

}  // namespace fenceguard::postgres
