#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "redis/counted_tokens.hpp"
#include "redis/lease_backend.hpp"
#include "redis/url.hpp"
#include "servers/redis_server.hpp"
#include "servers/wait.hpp"

namespace fenceguard::redis_tests {

using namespace std::chrono_literals;
using backend = fenceguard::redis::lease_backend;

inline time_point in(std::chrono::milliseconds time) { return boottime::now() + time; }

// A new holder each time.
inline std::string new_holder() {
  static std::atomic<std::uint64_t> count{0};
  auto const digits = std::to_string(++count);
  return std::string(32 - digits.size(), '0') + digits;
}

class event_log final : public observer {
 public:
  void on_event(event const& what) noexcept override {
    std::lock_guard const held{mutex_};
    if (std::holds_alternative<events::tokens_needed>(what)) ++needed_;
    if (auto const* reserved = std::get_if<events::tokens_reserved>(&what)) {
      ++(reserved->accepted ? accepted_ : refused_);
    }
    if (auto const* failed = std::get_if<events::store_error>(&what)) {
      errors_.emplace_back(failed->message);
    }
  }
  int needed() const { return read(needed_); }
  int accepted() const { return read(accepted_); }
  int refused() const { return read(refused_); }
  std::vector<std::string> errors() const {
    std::lock_guard const held{mutex_};
    return errors_;
  }

 private:
  int read(int const& counter) const {
    std::lock_guard const held{mutex_};
    return counter;
  }

  mutable std::mutex mutex_;
  int needed_ = 0;
  int accepted_ = 0;
  int refused_ = 0;
  std::vector<std::string> errors_;
};

struct backend_settings {
  std::int64_t block_size = 1'000;
  bool number_each_grant = false;
  unsigned partitions = 1;
  std::string user = {};
  std::string password = {};
  std::chrono::milliseconds silence_limit = 1s;
};

inline std::unique_ptr<backend> open_backend(int port, token_source& tokens,
                                             observer* log = nullptr,
                                             backend_settings const& how = {}) {
  redis::connection_options server;
  server.server.host = "127.0.0.1";
  server.server.port = static_cast<std::uint16_t>(port);
  server.login = {how.user, how.password};
  server.silence_limit = how.silence_limit;
  return std::make_unique<backend>(
      backend::settings{.servers = std::make_shared<redis::standalone_topology>(server),
                        .keys = redis::key_space{"fenceguard", how.partitions},
                        .number_each_grant = how.number_each_grant,
                        .block_size = how.block_size,
                        .observer = log},
      tokens);
}

inline backend::acquire_answer try_acquire(fenceguard::lease_backend& store,
                                           std::string const& resource, std::string const& holder,
                                           std::chrono::milliseconds ttl = 30s,
                                           std::chrono::milliseconds patience = 5s) {
  return store.try_acquire({.resource = resource,
                            .holder = holder,
                            .label = "a test",
                            .ttl = ttl,
                            .deadline = in(patience)});
}

// As the engine does: tries again while another caller fetches tokens.
inline backend::acquire_answer acquire(backend& store, std::string const& resource,
                                       std::string const& holder,
                                       std::chrono::milliseconds ttl = 30s) {
  auto const until = in(20s);
  for (;;) {
    auto answer = try_acquire(store, resource, holder, ttl);
    auto const* again = std::get_if<backend::again>(&answer);
    if (again == nullptr || boottime::now() > until) return answer;
    std::this_thread::sleep_for(again->pause);
  }
}

template <class Answer>
std::string describe(Answer const& answer) {
  if constexpr (std::variant_size_v<Answer> == 5) {
    if (auto const* busy = std::get_if<backend::busy>(&answer)) {
      return "busy " + std::to_string(busy->remaining.count());
    }
    if (std::holds_alternative<backend::again>(answer)) return "again";
  } else if (std::holds_alternative<backend::lost>(answer)) {
    return "lost";
  }
  if (auto const* not_applied = std::get_if<backend::not_applied>(&answer)) {
    return "not applied: " + not_applied->reason;
  }
  if (auto const* unknown = std::get_if<backend::unknown>(&answer)) {
    return "unknown: " + unknown->reason;
  }
  return "done";
}

// The token of a grant; the test fails where there is none.
inline std::int64_t token_of(backend::acquire_answer const& answer) {
  INFO(describe(answer));
  REQUIRE(std::holds_alternative<backend::granted>(answer));
  return std::get<backend::granted>(answer).token.value();
}
inline std::int64_t token_of(backend::advance_answer const& answer) {
  INFO(describe(answer));
  REQUIRE(std::holds_alternative<backend::advanced>(answer));
  return std::get<backend::advanced>(answer).token.value();
}

inline std::int64_t grant_token(backend& store, std::string const& resource) {
  return token_of(acquire(store, resource, new_holder()));
}

// Acquire and release.
inline std::int64_t pass(backend& store, std::string const& resource) {
  auto const holder = new_holder();
  auto const token = token_of(acquire(store, resource, holder));
  CHECK(store.release(resource, holder, in(5s)) == release_outcome::released);
  return token;
}

inline backend::renew_item renew(fenceguard::lease_backend& store, std::string const& resource,
                                 std::string const& holder, std::chrono::milliseconds ttl = 30s,
                                 std::chrono::milliseconds patience = 5s) {
  backend::renew_item item{.resource = resource, .holder = holder, .ttl = ttl};
  store.renew({&item, 1}, in(patience));
  return item;
}

}  // namespace fenceguard::redis_tests
