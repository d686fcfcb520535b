#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/token_source.hpp>
#include <mutex>
#include <optional>
#include <thread>

#include "postgres/libpqxx.hpp"
#include "postgres/server_errors.hpp"
#include "postgres/statement.hpp"

namespace fenceguard::postgres {
namespace {

using steady = std::chrono::steady_clock;

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

// The caller's URL with bounds for what libpq does on its own. Where the caller has set one of
// them, it stays: the deadline of a reservation holds in any case.
std::string bounded_url(token_source_options const& options) {
  std::string url = options.url;
  bool const is_uri = url.starts_with("postgresql://") || url.starts_with("postgres://");
  auto const add = [&](std::string const& name, std::string const& value) {
    if (url.find(name + "=") != std::string::npos) return;
    if (is_uri) {
      url += url.find('?') == std::string::npos ? "?" : "&";
    } else if (!url.empty()) {
      url += " ";
    }
    url += name + "=" + value;
  };
  auto const seconds = std::chrono::ceil<std::chrono::seconds>(options.timeout).count();
  add("connect_timeout", std::to_string(std::max<std::int64_t>(2, seconds)));
  add("tcp_user_timeout", std::to_string(options.timeout.count()));
  add("fallback_application_name", "fenceguard-tokens");
  return url;
}

}  // namespace

// One thread talks to the server, callers wait for it until their own deadline: libpq's calls have
// none. A caller whose time is up shuts the socket down, which ends the call under way, whatever
// the server does. What a reservation that was given up has reserved remains as a gap.
struct token_source::state {
  explicit state(token_source_options how)
      : options{checked(std::move(how))}, url{bounded_url(options)}, owner{::getpid()} {}

  ~state() {
    {
      std::lock_guard const lock{mutex};
      stopping = true;
      shut_down_socket();
    }
    changed.notify_all();
    if (worker.joinable()) worker.join();
  }

  struct request {
    std::int64_t count;
    std::optional<fencing_token> first{};
    std::exception_ptr failed{};
    bool done = false;
    bool given_up = false;
  };

  void work();
  fencing_token reserve(std::int64_t count);
  void give_up(std::shared_ptr<request> const& what);
  void serve(request& what);
  bool is_wanted(request const& what);
  static std::exception_ptr reported(std::exception const& failed);
  fencing_token ask(std::int64_t count);
  void connect();
  void disconnect();
  // The mutex is held, so the socket cannot be closed and its number given to another meanwhile.
  void shut_down_socket() const {
    if (socket >= 0) ::shutdown(socket, SHUT_RDWR);
  }

  token_source_options const options;
  std::string const url;
  pid_t const owner;

  std::mutex mutex{};
  std::condition_variable changed{};
  std::deque<std::shared_ptr<request>> queue{};
  std::shared_ptr<request> current{};
  int socket = -1;
  bool stopping = false;

  std::optional<pqxx::connection> db{};  // the worker's own; its last use is in disconnect()
  std::thread worker{};                  // started with the first reservation
};

void token_source::state::work() {
  std::unique_lock lock{mutex};
  for (;;) {
    changed.wait(lock, [&] { return stopping || !queue.empty(); });
    if (stopping) break;
    current = queue.front();
    queue.pop_front();
    auto const mine = current;
    lock.unlock();
    serve(*mine);
    lock.lock();
    mine->done = true;
    current.reset();
    changed.notify_all();
  }
  lock.unlock();
  disconnect();
}

void token_source::state::serve(request& what) {
  for (;;) {
    bool const kept = db.has_value();
    try {
      if (!db) connect();
      what.first = ask(what.count);
      what.failed = nullptr;
      return;
    } catch (std::exception const& failed) {
      what.failed = reported(failed);
      if (db && db->is_open()) return;
      disconnect();
      // A kept connection may have died unseen. A reservation may be repeated.
      if (!kept || !is_wanted(what)) return;
    }
  }
}

std::exception_ptr token_source::state::reported(std::exception const& failed) {
  if (auto const own = own_error(failed, failed_call::own_function)) return own;
  return std::make_exception_ptr(
      token_source_unavailable{"PostgreSQL gave no tokens: " + server_message(failed)});
}

bool token_source::state::is_wanted(request const& what) {
  std::lock_guard const lock{mutex};
  return !what.given_up && !stopping;
}

fencing_token token_source::state::ask(std::int64_t count) {
  pqxx::nontransaction with{*db, "fenceguard"};
  // One message is one transaction. Its timeouts end with it, so that a pooler's next client does
  // not find them, and no backend goes on waiting for what nobody asks for any more.
  std::string const limit = std::to_string(options.timeout.count());
  auto const rows = libpqxx::send_message(
      with, std::string{own_transaction} + "SELECT pg_catalog.set_config('statement_timeout', '" +
                limit + "', true); SELECT fenceguard.reserve_tokens(" + std::to_string(count) +
                ")");
  return fencing_token{rows[0][0].as<std::int64_t>()};
}

void token_source::state::connect() {
  db.emplace(url);
  std::lock_guard const lock{mutex};
  socket = db->sock();
}

void token_source::state::disconnect() {
  {
    std::lock_guard const lock{mutex};
    socket = -1;
  }
  db.reset();
}

fencing_token token_source::state::reserve(std::int64_t count) {
  auto const deadline = steady::now() + options.timeout;
  auto const mine = std::make_shared<request>(request{.count = count});
  std::unique_lock lock{mutex};
  if (!worker.joinable()) worker = std::thread{[this] { work(); }};
  queue.push_back(mine);
  changed.notify_all();
  if (!changed.wait_until(lock, deadline, [&] { return mine->done; })) {
    give_up(mine);
    throw token_source_unavailable{"PostgreSQL gave no tokens within " +
                                   std::to_string(options.timeout.count()) + " ms"};
  }
  if (mine->failed) std::rethrow_exception(mine->failed);
  return *mine->first;
}

void token_source::state::give_up(std::shared_ptr<request> const& what) {
  what->given_up = true;
  if (current == what) {
    shut_down_socket();
  } else {
    std::erase(queue, what);
  }
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
