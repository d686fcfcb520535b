#include "postgres/lease_listener.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "postgres/libpqxx.hpp"

namespace fenceguard::postgres {
namespace {

using namespace std::chrono_literals;

constexpr auto first_pause = 50ms;
constexpr auto longest_pause = 2'000ms;
// So long a connection is kept that nobody needs.
constexpr auto idle_limit = 30s;

class receiver final : public pqxx::notification_receiver {
 public:
  receiver(libpqxx::connection_base& db, lease_backend::hint_sink const& sink)
      : notification_receiver{db, "fenceguard_lease"}, sink_{sink} {}

  void operator()(std::string const& payload, int /*backend_pid*/) override {
    if (sink_) sink_(payload);
  }

 private:
  lease_backend::hint_sink const& sink_;
};

}  // namespace

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
  std::lock_guard const held{mutex_};
  if (closing_) return;
  watched_.insert(resource);
  if (!thread_.started()) thread_.start([this] { run(); });
  changed_.notify_all();
}

void lease_listener::unwatch(std::string const& resource) noexcept {
  std::lock_guard const held{mutex_};
  watched_.erase(resource);
}

void lease_listener::run() noexcept {
  auto pause = first_pause;
  std::unique_lock held{mutex_};
  for (;;) {
    changed_.wait(held, [this] { return closing_ || !watched_.empty(); });
    if (closing_) return;
    held.unlock();
    auto const begun = boottime::now();
    try {
      listen();
    } catch (std::exception const&) {  // polling goes on meanwhile
    }
    if (boottime::now() - begun > longest_pause) pause = first_pause;
    held.lock();
    socket_ = -1;
    changed_.wait_for(held, pause, [this] { return closing_; });
    pause = std::min<std::chrono::milliseconds>(pause * 2, longest_pause);
  }
}

// Returns when nobody has watched anything for a while; throws where the connection is lost.
void lease_listener::listen() {
  pqxx::connection db{url_};
  {
    std::lock_guard const held{mutex_};
    if (closing_) return;
    socket_ = db.sock();
  }
  receiver const on_release{db, sink_};
  wake_watched();  // for what was released before the server knew of this session
  auto needed_at = boottime::now();
  while (boottime::now() - needed_at < idle_limit) {
    db.await_notification(0, 100'000);
    std::lock_guard const held{mutex_};
    if (closing_ || !db.is_open()) break;
    if (!watched_.empty()) needed_at = boottime::now();
  }
  std::lock_guard const held{mutex_};
  socket_ = -1;  // before it is closed
}

void lease_listener::wake_watched() {
  std::vector<std::string> names;
  {
    std::lock_guard const held{mutex_};
    names.assign(watched_.begin(), watched_.end());
  }
  for (auto const& name : names) {
    if (sink_) sink_(name);
  }
}

}  // namespace fenceguard::postgres
