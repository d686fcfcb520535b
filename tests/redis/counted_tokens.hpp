#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/core/token_source.hpp>
#include <mutex>
#include <thread>

#include "servers/wait.hpp"

namespace fenceguard::redis_tests {

// A token source that counts what it is asked for and can fail or be held up. It never gives a
// number twice, as long as it lives.
class counted_tokens final : public token_source {
 public:
  explicit counted_tokens(std::int64_t first = 1'000) : next_{first} {}

  // The number is taken first and held up, where it is, afterwards: like a reply that comes late.
  fencing_token reserve(std::int64_t count) override {
    std::unique_lock held{mutex_};
    ++calls_;
    if (!available_) throw token_source_unavailable{"the database is down"};
    auto const first = next_;
    next_ += count;
    ++waiting_;
    changed_.wait(held, [this] { return !held_up_; });
    --waiting_;
    return fencing_token{first};
  }

  void set_available(bool available) {
    std::lock_guard const held{mutex_};
    available_ = available;
  }
  void hold_up() {
    std::lock_guard const held{mutex_};
    held_up_ = true;
  }
  void go_on() {
    std::lock_guard const held{mutex_};
    held_up_ = false;
    changed_.notify_all();
  }
  void set_next(std::int64_t next) {
    std::lock_guard const held{mutex_};
    next_ = next;
  }
  int waiting() const {
    std::lock_guard const held{mutex_};
    return waiting_;
  }
  int calls() const {
    std::lock_guard const held{mutex_};
    return calls_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t next_;
  int calls_ = 0;
  int waiting_ = 0;
  bool available_ = true;
  bool held_up_ = false;
};

// Another thread in a call that is waiting for the token source, as the `waiting`th.
template <class Call>
std::thread start_waiting(counted_tokens& source, int waiting, Call call) {
  std::thread caller{call};
  REQUIRE(test_servers::eventually([&] { return source.waiting() == waiting; }));
  return caller;
}

}  // namespace fenceguard::redis_tests
