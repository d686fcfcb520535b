#include "postgres/lease_listener.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <exception>
#include <utility>
#include <vector>

#include "core/holder_id.hpp"
#include "postgres/libpqxx.hpp"
#include "postgres/server_errors.hpp"

namespace fenceguard::postgres {
namespace {

using namespace std::chrono_literals;

constexpr auto first_pause = 50ms;
constexpr auto longest_pause = 2'000ms;
// So long a connection is kept that nobody needs.
constexpr auto idle_limit = 30s;
// Less than the 5 s for which a place in the line is at least good.
constexpr auto poll_when_heard = 2'000ms;

std::int64_t new_id() {
  auto const digits = new_holder_id().substr(0, 15);  // below 2^60
  std::int64_t id = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), id, 16);
  return id;
}

// As to_hex() of SQL writes it.
std::string channel_of(std::int64_t id) {
  std::array<char, 16> digits{};
  auto const end = std::to_chars(digits.data(), digits.data() + digits.size(), id, 16).ptr;
  return "fenceguard_lease_" + std::string{digits.data(), end};
}

}  // namespace

// A connection whose socket close() may shut down, as long as it is open and no longer.
class lease_listener::session {
 public:
  explicit session(lease_listener& owner) : owner_{owner}, db_{owner.url_} {
    std::lock_guard const held{owner_.mutex_};
    owner_.socket_ = db_.sock();
  }
  ~session() {
    std::lock_guard const held{owner_.mutex_};
    owner_.socket_ = -1;
    owner_.hears_ = false;
  }
  session(session const&) = delete;
  session& operator=(session const&) = delete;

  pqxx::connection& db() noexcept { return db_; }

 private:
  lease_listener& owner_;
  pqxx::connection db_;
};

class lease_listener::receiver final : public pqxx::notification_receiver {
 public:
  receiver(pqxx::connection& db, std::int64_t id, lease_backend::hint_sink const& sink)
      : notification_receiver{db, channel_of(id)}, sink_{sink} {}

  void operator()(std::string const& payload, int /*backend_pid*/) override {
    if (sink_) sink_(payload);
  }

 private:
  lease_backend::hint_sink const& sink_;
};

lease_listener::lease_listener(std::string url, error_sink on_error)
    : url_{std::move(url)}, id_{new_id()}, on_error_{std::move(on_error)} {}

lease_listener::~lease_listener() { close(); }

void lease_listener::close() noexcept {
  {
    std::lock_guard const held{mutex_};
    closing_ = true;
    if (socket_ >= 0) ::shutdown(socket_, SHUT_RDWR);
    changed_.notify_all();
  }
  thread_.finish();
}

void lease_listener::watch(std::string const& resource) {
  {
    std::lock_guard const held{mutex_};
    if (closing_) return;
    watched_.insert(resource);
    if (!thread_.started()) thread_.start([this] { run(); });
    changed_.notify_all();
  }
  // Where it hears already: from here on waiter() names this store.
  if (hears_ && sink_) sink_(resource);
}

void lease_listener::unwatch(std::string const& resource) noexcept {
  std::lock_guard const held{mutex_};
  auto const found = watched_.find(resource);
  if (found != watched_.end()) watched_.erase(found);
}

std::optional<std::int64_t> lease_listener::waiter(std::string_view resource) const {
  if (!hears_) return std::nullopt;
  std::lock_guard const held{mutex_};
  if (!watched_.contains(resource)) return std::nullopt;
  return id_;
}

std::optional<std::chrono::milliseconds> lease_listener::poll_interval() const noexcept {
  if (!hears_) return std::nullopt;
  return poll_when_heard;
}

void lease_listener::run() noexcept {
  auto pause = first_pause;
  for (;;) {
    {
      std::unique_lock held{mutex_};
      changed_.wait(held, [this] { return closing_ || !watched_.empty(); });
      if (closing_) return;
    }
    auto const begun = boottime::now();
    try {
      listen();
      if (pooled_) return;
      pause = first_pause;
      continue;
    } catch (std::exception const& failed) {
      report(server_message(failed));
    }
    if (boottime::now() - begun > longest_pause) pause = first_pause;
    call_watched();  // they poll faster from here on
    std::unique_lock held{mutex_};
    changed_.wait_for(held, pause, [this] { return closing_; });
    if (closing_) return;
    pause = std::min<std::chrono::milliseconds>(pause * 2, longest_pause);
  }
}

// Returns when nobody has watched anything for a while, or where nothing can be heard; throws where
// the connection is lost.
void lease_listener::listen() {
  session mine{*this};
  auto& db = mine.db();
  {
    // A pooler gives its clients process numbers of its own.
    pqxx::nontransaction ask{db, "fenceguard"};
    auto const pid = libpqxx::send_message(ask, "SELECT pg_catalog.pg_backend_pid()");
    pooled_ = pid[0][0].as<int>() != db.backendpid();
    if (pooled_) return;
  }
  receiver const on_release{db, id_, sink_};
  reported_ = false;
  hears_ = true;
  call_watched();
  auto needed_at = boottime::now();
  while (stay(needed_at)) db.await_notification(5, 0);  // close() ends it sooner
}

bool lease_listener::stay(time_point& needed_at) {
  std::lock_guard const held{mutex_};
  auto const now = boottime::now();
  if (!watched_.empty()) needed_at = now;
  if (!closing_ && now - needed_at < idle_limit) return true;
  hears_ = false;  // together with what was seen of watched_
  return false;
}

void lease_listener::call_watched() {
  std::vector<std::string> names;
  {
    std::lock_guard const held{mutex_};
    names.assign(watched_.begin(), watched_.end());
  }
  for (auto const& name : names) {
    if (sink_) sink_(name);
  }
}

void lease_listener::report(std::string const& message) noexcept {
  {
    std::lock_guard const held{mutex_};
    if (closing_) return;
  }
  if (!std::exchange(reported_, true) && on_error_) on_error_(message);
}

}  // namespace fenceguard::postgres
