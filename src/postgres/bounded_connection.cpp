#include "postgres/bounded_connection.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <fenceguard/core/errors.hpp>
#include <system_error>
#include <utility>

#include "core/sleep_by_clock.hpp"
#include "postgres/server_errors.hpp"

namespace fenceguard::postgres {
namespace {

bounded_connection::rows rows_of(pqxx::result const& result) {
  bounded_connection::rows all;
  for (auto const& row : result) {
    auto& fields = all.emplace_back();
    for (auto const& field : row) {
      if (field.is_null()) {
        fields.emplace_back(std::nullopt);
      } else {
        fields.emplace_back(field.c_str());
      }
    }
  }
  return all;
}

}  // namespace

void bounded_connection::outcome::throw_own() const {
  if (what != kind::refused) return;
  try {
    std::rethrow_exception(failure);
  } catch (invalid_request const&) {
    throw;
  } catch (std::exception const& failed) {
    if (auto const own = own_error(failed, failed_call::own_function)) std::rethrow_exception(own);
  }
}

std::int64_t bounded_connection::outcome::number(std::size_t row, std::size_t column) const {
  std::int64_t value = 0;
  if (row < answer.size() && column < answer[row].size() && answer[row][column]) {
    auto const& text = *answer[row][column];
    std::from_chars(text.data(), text.data() + text.size(), value);
  }
  return value;
}

std::string bounded_url(std::string url, std::chrono::milliseconds timeout,
                        std::string const& application_name) {
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
  auto const seconds = std::chrono::ceil<std::chrono::seconds>(timeout).count();
  add("connect_timeout", std::to_string(std::max<std::int64_t>(2, seconds)));
  add("tcp_user_timeout", std::to_string(timeout.count()));
  add("fallback_application_name", application_name);
  return url;
}

bounded_connection::bounded_connection(std::string url) : url_{std::move(url)} {}

bounded_connection::~bounded_connection() {
  shutdown();
  thread_.finish();
}

void bounded_connection::shutdown() noexcept {
  std::lock_guard const held{mutex_};
  closing_ = true;
  shut_down_socket();
  changed_.notify_all();
}

// The mutex is held, so the socket cannot be closed and its number given to another meanwhile.
void bounded_connection::shut_down_socket() const noexcept {
  if (socket_ >= 0) ::shutdown(socket_, SHUT_RDWR);
}

auto bounded_connection::execute(message const& build, time_point deadline) -> outcome {
  auto const mine = std::make_shared<job>(job{.build = build});
  std::unique_lock held{mutex_};
  auto const expired = [&] { return boottime::now() >= deadline; };
  // The thread may still be at what an earlier caller has given up.
  while (next_ && !closing_ && !expired()) sleep_by_clock(held, changed_, deadline);
  if (closing_) return {.error = "the lease store is closed"};
  if (next_) return {.error = "PostgreSQL has not answered in time"};
  try {
    if (!thread_.started()) thread_.start([this] { run(); });
  } catch (std::system_error const& e) {
    return {.error = std::string{"no thread for a connection: "} + e.what()};
  }
  next_ = mine;
  changed_.notify_all();
  while (!mine->done && !closing_ && !expired()) sleep_by_clock(held, changed_, deadline);
  if (mine->done) return std::move(mine->result);
  mine->given_up = true;
  if (mine->sent) shut_down_socket();
  return {.what = mine->sent ? outcome::kind::unknown : outcome::kind::not_sent,
          .error = closing_ ? "the lease store is closed" : "PostgreSQL has not answered in time"};
}

void bounded_connection::run() noexcept {
  std::unique_lock held{mutex_};
  for (;;) {
    changed_.wait(held, [this] { return closing_ || next_; });
    if (closing_) break;
    auto const mine = next_;
    if (!mine->given_up) {
      held.unlock();
      serve(*mine);
      held.lock();
    }
    mine->done = true;
    next_.reset();
    changed_.notify_all();
  }
  held.unlock();
  disconnect();
}

void bounded_connection::serve(job& one) {
  auto& result = one.result;
  try {
    if (db_ && !is_alive()) disconnect();
    if (!db_) connect();
    pqxx::nontransaction with{*db_, "fenceguard"};
    auto const text = one.build(libpqxx::connection_of(with));
    if (!begin_sending(one)) return;
    result.answer = rows_of(libpqxx::send_message(with, text));
    result.what = outcome::kind::answered;
  } catch (invalid_request const&) {
    result.what = outcome::kind::refused;
    result.failure = std::current_exception();
    result.error = "an argument cannot be sent";
  } catch (std::exception const& failed) {
    result.error = server_message(failed);
    bool const lost = !db_ || !db_->is_open() || libpqxx::is_connection_lost(failed);
    if (lost) {
      result.what = one.sent ? outcome::kind::unknown : outcome::kind::not_sent;
      disconnect();
    } else {
      result.what = one.sent ? outcome::kind::refused : outcome::kind::not_sent;
      result.failure = std::current_exception();
    }
  }
}

// A kept connection may have died unseen.
bool bounded_connection::is_alive() noexcept {
  try {
    if (!db_->is_open()) return false;
    pqxx::nontransaction look{*db_, "fenceguard"};
    if (!libpqxx::is_closed_by_server(look)) return true;
    look.abort();
  } catch (std::exception const&) {
    // So says libpqxx 6 where it finds the connection reset as a transaction begins.
  }
  return false;
}

// From here on the request counts as sent; false where its caller has gone.
bool bounded_connection::begin_sending(job& one) {
  std::lock_guard const held{mutex_};
  if (one.given_up || closing_) return false;
  one.sent = true;
  return true;
}

void bounded_connection::connect() {
  db_.emplace(url_);
  std::lock_guard const held{mutex_};
  socket_ = db_->sock();
}

void bounded_connection::disconnect() noexcept {
  {
    std::lock_guard const held{mutex_};
    socket_ = -1;
  }
  db_.reset();
}

}  // namespace fenceguard::postgres
