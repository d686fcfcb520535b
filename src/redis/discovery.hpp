#pragma once

#include <condition_variable>
#include <fenceguard/core/clock.hpp>
#include <mutex>

#include "core/sleep_by_clock.hpp"

namespace fenceguard::redis {

/// Lets one caller ask other servers, while those who need the same answer wait for it. Its members
/// are called with the lock of the owner held.
class discovery {
 public:
  using guard = std::unique_lock<std::mutex>;

  /// Waits while somebody asks and `known` is false. False where the deadline came before.
  template <class Known>
  [[nodiscard]] bool await(guard& held, time_point deadline, Known const& known) {
    while (!known() && asking_) {
      if (boottime::now() >= deadline) return false;
      sleep_by_clock(held, answered_, deadline);
    }
    return true;
  }

  /// Runs `ask` as the only one, with the lock let go.
  template <class Ask>
  auto run(guard& held, Ask const& ask) {
    turn const mine{*this, held};
    return ask();
  }

 private:
  class turn {
   public:
    turn(discovery& whose, guard& held) : whose_{whose}, held_{held} {
      whose_.asking_ = true;
      held_.unlock();
    }
    ~turn() {
      held_.lock();
      whose_.asking_ = false;
      whose_.answered_.notify_all();
    }
    turn(turn const&) = delete;
    turn& operator=(turn const&) = delete;

   private:
    discovery& whose_;
    guard& held_;
  };

  std::condition_variable answered_;
  bool asking_ = false;
};

}  // namespace fenceguard::redis
