#include "redis/release_messages.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <fenceguard/core/errors.hpp>
#include <random>
#include <system_error>
#include <utility>

#include "core/holder_id.hpp"
#include "redis/subscription.hpp"

namespace fenceguard::redis {

using namespace std::chrono_literals;

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// How many of n subscribers ask at once, on average and in tenths: a few never leave it to nobody.
constexpr std::int64_t few = 8;
constexpr std::int64_t tenths_asking_of_few = 30;
constexpr std::int64_t tenths_asking_of_many = 16;

constexpr std::int64_t tenths_asking_of(std::int64_t rivals) noexcept {
  return rivals <= few ? tenths_asking_of_few : tenths_asking_of_many;
}

// Of all subscribers together one polls in about the time that so many releases take.
constexpr std::int64_t releases_per_poll = 8;
constexpr milliseconds least_interval = 5ms;
constexpr milliseconds least_interval_where_all_ask = 250ms;
constexpr milliseconds longest_interval_by_rival = 200ms;
constexpr milliseconds longest_interval = 20s;
constexpr milliseconds longest_interval_where_all_ask = 1s;

// While something is watched, a server is asked for a sign of life after this much silence, and it
// is looked whether another one serves by now.
constexpr nanoseconds tick = 1s;

constexpr nanoseconds first_pause = 50ms;
constexpr nanoseconds longest_pause = 2s;
constexpr nanoseconds pause_when_refused = 30s;

std::int64_t number_in(std::string_view text) noexcept {
  std::int64_t value = 0;
  for (char const c : text) {
    if (c < '0' || c > '9' || value > 1'000'000) return 1;
    value = value * 10 + (c - '0');
  }
  return std::max<std::int64_t>(value, 1);
}

}  // namespace

// What the thread has and nobody else touches.
class release_messages::listener {
 public:
  explicit listener(release_messages& owner) : owner_{owner} {}

  void run() {
    while (!owner_.closed_) {
      follow_topology();
      take_changes();
      for (auto const& one : links_) serve(*one);
      if (!owner_.closed_) sleep();
    }
  }

 private:
  struct link {
    explicit link(connection_options options, unsigned partition)
        : to{std::move(options), partition} {}
    subscription to;
    time_point retry_at{};
    nanoseconds pause{0};
    bool failing = false;
  };

  void follow_topology();
  void take_changes();
  void place(std::string const& resource);
  void remove(std::string const& resource);
  [[nodiscard]] link& link_to(address const& server, unsigned partition);
  void connect(link& one);
  void serve(link& one);
  void fail(link& one, std::string const& message, failure why, bool refused);
  void deaf(link const& one);
  void heard(link& one, std::string const& resource);
  void released(std::string const& resource, std::int64_t rivals);
  void complain(bool& already, std::string const& message);
  void sleep();

  release_messages& owner_;
  topology& servers_ = *owner_.how_.servers;
  std::vector<std::unique_ptr<link>> links_;
  std::unordered_map<std::string, link*> placed_;  // null: no server is known yet
  std::uint64_t version_ = 0;
  time_point place_again_at_ = time_point::max();
  bool lost_ = false;
  resolver names_;
  std::minstd_rand random_{std::random_device{}()};
};

void release_messages::listener::follow_topology() {
  bool const due = boottime::now() >= place_again_at_;
  if (servers_.version() == version_ && !due) return;
  version_ = servers_.version();
  place_again_at_ = time_point::max();
  std::vector<std::string> all;
  for (auto const& [resource, at] : placed_) all.push_back(resource);
  for (auto const& resource : all) place(resource);
  std::erase_if(links_, [](auto const& one) { return one->to.idle(); });
}

void release_messages::listener::take_changes() {
  std::vector<std::pair<std::string, bool>> changes;
  {
    std::lock_guard const held{owner_.mutex_};
    std::sort(owner_.changed_.begin(), owner_.changed_.end());
    auto const end = std::unique(owner_.changed_.begin(), owner_.changed_.end());
    for (auto one = owner_.changed_.begin(); one != end; ++one) {
      bool const wanted = owner_.watched_.contains(*one);
      changes.emplace_back(std::move(*one), wanted);
    }
    owner_.changed_.clear();
  }
  for (auto const& [resource, wanted] : changes) {
    remove(resource);  // also where it is wanted again: what came in between was not passed on
    if (wanted) place(resource);
  }
}

// To the server that serves the resource now.
void release_messages::listener::place(std::string const& resource) {
  auto const& keys = owner_.how_.keys;
  auto const partition = keys.partition_of(resource);
  auto const here = servers_.locate(partition, boottime::now() + owner_.how_.command_timeout);
  auto& at = placed_[resource];
  if (here.found && at != nullptr && at->to.server() == here.server) return;
  remove(resource);
  if (!here.found) {
    placed_[resource] = nullptr;
    place_again_at_ = boottime::now() + with_jitter(tick);
    return complain(lost_, here.error);
  }
  lost_ = false;
  auto& found = link_to(here.server, partition);
  found.to.subscribe(keys.released(resource), resource);
  placed_[resource] = &found;
}

void release_messages::listener::remove(std::string const& resource) {
  auto const known = placed_.find(resource);
  if (known == placed_.end()) return;
  if (known->second != nullptr) {
    known->second->to.unsubscribe(owner_.how_.keys.released(resource));
    std::lock_guard const held{owner_.mutex_};
    auto const watched = owner_.watched_.find(resource);
    if (watched != owner_.watched_.end()) watched->second.heard = false;
  }
  placed_.erase(known);
}

auto release_messages::listener::link_to(address const& server, unsigned partition) -> link& {
  for (auto const& one : links_) {
    if (one->to.server() == server) return *one;
  }
  auto options = servers_.connecting();
  options.server = server;
  links_.push_back(std::make_unique<link>(std::move(options), partition));
  return *links_.back();
}

void release_messages::listener::connect(link& one) {
  if (boottime::now() < one.retry_at) return;
  try {
    one.to.connect(names_, {boottime::now() + owner_.how_.command_timeout, owner_.closed_});
  } catch (unreachable const& e) {
    fail(one, e.what(), failure::unreachable, false);
  } catch (invalid_request const& e) {
    fail(one, e.what(), failure::refused, true);
  }
}

void release_messages::listener::serve(link& one) {
  if (!one.to.connected()) {
    if (one.to.idle()) return;
    connect(one);
    if (!one.to.connected()) return;
  }
  bool const alive = one.to.idle() || one.to.check_alive(tick, owner_.how_.command_timeout);
  if (!alive) {
    return fail(one, one.to.server().to_string() + " has fallen silent", failure::disconnected,
                false);
  }
  auto const wrong = one.to.exchange(
      {.subscribed = [&](std::string const& resource) { heard(one, resource); },
       .message = [&](std::string const& resource,
                      std::string_view text) { released(resource, number_in(text)); }});
  if (!wrong.message.empty()) fail(one, wrong.message, failure::disconnected, wrong.refused);
}

void release_messages::listener::fail(link& one, std::string const& message, failure why,
                                      bool refused) {
  one.to.disconnect();
  if (owner_.closed_ || one.to.idle()) return;
  deaf(one);
  one.pause = refused ? pause_when_refused
                      : std::clamp<nanoseconds>(one.pause * 2, first_pause, longest_pause);
  one.retry_at = boottime::now() + with_jitter(one.pause);
  if (!refused) {
    result nothing;
    nothing.why = why;
    static_cast<void>(servers_.learn(one.to.partition(), one.to.server(), nothing));
  }
  complain(one.failing, message);
}

void release_messages::listener::deaf(link const& one) {
  std::lock_guard const held{owner_.mutex_};
  for (auto const& [channel, resource] : one.to.names()) {
    auto const watched = owner_.watched_.find(resource);
    if (watched != owner_.watched_.end()) watched->second.heard = false;
  }
}

// From now on every release is heard of. One may have come before.
void release_messages::listener::heard(link& one, std::string const& resource) {
  one.pause = nanoseconds{0};
  one.failing = false;
  {
    std::lock_guard const held{owner_.mutex_};
    auto const watched = owner_.watched_.find(resource);
    if (watched == owner_.watched_.end()) return;
    watched->second.heard = true;
  }
  owner_.on_release_(resource);
}

void release_messages::listener::released(std::string const& resource, std::int64_t rivals) {
  {
    std::lock_guard const held{owner_.mutex_};
    auto const watched = owner_.watched_.find(resource);
    if (watched == owner_.watched_.end()) return;
    auto& one = watched->second;
    auto const now = boottime::now();
    if (one.released_at != time_point{}) {
      auto const since = now - one.released_at;
      one.period = one.period == one.period.zero() ? since : (3 * one.period + since) / 4;
    }
    one.released_at = now;
    one.rivals = rivals;
  }
  std::uniform_int_distribution<std::int64_t> draw{1, 10 * rivals};
  if (draw(random_) <= tenths_asking_of(rivals)) owner_.on_release_(resource);
}

void release_messages::listener::complain(bool& already, std::string const& message) {
  if (std::exchange(already, true)) return;
  if (owner_.how_.on_error) owner_.how_.on_error(message);
}

void release_messages::listener::sleep() {
  std::vector<pollfd> all{{owner_.wake_, POLLIN, 0}};
  auto const now = boottime::now();
  auto until = placed_.empty() ? time_point::max() : std::min(now + tick, place_again_at_);
  for (auto const& one : links_) {
    if (!one->to.connected()) {
      if (!one->to.idle()) until = std::min(until, one->retry_at);
      continue;
    }
    int const events = one->to.has_more_to_send() ? POLLIN | POLLOUT : POLLIN;
    all.push_back({one->to.descriptor(), static_cast<short>(events), 0});
  }
  timespec timeout{};
  if (until != time_point::max()) {
    auto const left = std::max(nanoseconds{until - now}, nanoseconds{0});
    timeout.tv_sec = static_cast<time_t>(left / 1s);
    timeout.tv_nsec = static_cast<long>((left % 1s).count());
  }
  ::ppoll(all.data(), all.size(), until == time_point::max() ? nullptr : &timeout, nullptr);
  eventfd_t count = 0;
  if (all.front().revents != 0) ::eventfd_read(owner_.wake_, &count);
}

release_messages::release_messages(settings how, lease_backend::hint_sink on_release)
    : how_{std::move(how)}, on_release_{std::move(on_release)} {}

release_messages::~release_messages() {
  close();
  if (wake_ >= 0) ::close(wake_);
}

void release_messages::watch(std::string const& resource) {
  std::lock_guard const held{mutex_};
  if (closed_) return;
  if (wake_ < 0) wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) throw std::system_error{errno, std::generic_category(), "eventfd"};
  if (!thread_.started()) {
    thread_.start([this] {
      try {
        listener{*this}.run();
      } catch (std::exception const& failed) {
        if (how_.on_error) how_.on_error(failed.what());
      }
      std::lock_guard const ended{mutex_};
      for (auto& [name, one] : watched_) one.heard = false;
    });
  }
  changed_.push_back(resource);
  watched_.insert_or_assign(resource, interest{});
  wake();
}

void release_messages::unwatch(std::string const& resource) noexcept {
  std::lock_guard const held{mutex_};
  watched_.erase(resource);
  try {
    changed_.push_back(resource);
  } catch (std::bad_alloc const&) {  // it stays subscribed, and nobody listens
  }
  wake();
}

std::optional<std::chrono::milliseconds> release_messages::poll_interval(
    std::string_view resource) const noexcept {
  std::lock_guard const held{mutex_};
  auto const watched = watched_.find(resource);
  if (watched == watched_.end() || !watched->second.heard) return std::nullopt;
  auto const& one = watched->second;
  bool const all_ask = 10 * one.rivals <= tenths_asking_of(one.rivals);
  if (one.released_at == time_point{}) return longest_interval_where_all_ask;
  auto const held_for = std::max<nanoseconds>(one.period, boottime::now() - one.released_at);
  auto const least = all_ask ? least_interval_where_all_ask : least_interval;
  auto const most = all_ask ? longest_interval_where_all_ask
                            : std::min(longest_interval_by_rival * one.rivals, longest_interval);
  auto const wanted = std::min<nanoseconds>(held_for, longest_interval) * one.rivals;
  return std::clamp(std::chrono::ceil<milliseconds>(releases_per_poll * wanted), least, most);
}

void release_messages::wake() const noexcept {
  if (wake_ >= 0) ::eventfd_write(wake_, 1);
}

void release_messages::close() noexcept {
  {
    std::lock_guard const held{mutex_};
    closed_ = true;
    wake();
  }
  thread_.finish();
}

}  // namespace fenceguard::redis
