#pragma once

#include <functional>
#include <thread>

namespace fenceguard {

/// A thread of a store. It blocks all signals, which are the program's own affair.
///
/// Owned by an object that is never destroyed in a forked child, where there is nothing to join.
class background_thread {
 public:
  background_thread() = default;
  background_thread(background_thread const&) = delete;
  background_thread& operator=(background_thread const&) = delete;
  ~background_thread();

  /// Throws std::system_error where no thread can be had.
  void start(std::function<void()> body);

  /// Waits for the end; called by the thread itself, lets it go its own way instead.
  void finish() noexcept;

  [[nodiscard]] bool started() const noexcept { return thread_.joinable(); }

 private:
  std::thread thread_;
};

}  // namespace fenceguard
