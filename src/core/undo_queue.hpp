#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <fenceguard/core/clock.hpp>
#include <fenceguard/core/grant.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace fenceguard {

/// What is still to be deleted on the server if it is there: acquisitions without an answer, and
/// releases that were not answered or not waited for. Every deletion compares the holder, which is
/// new for every grant, so a late one can never meet a newer grant's lease.
class undo_queue {
 public:
  struct entry {
    std::string resource{};
    std::string holder{};
    time_point expires{};  ///< Gone from the server by itself: nothing to do any more.
    /// An answer "not there" from before this time is not final: the acquisition may still arrive.
    time_point final_after{};
    std::shared_ptr<grant> of{};  ///< Whose release it is; null for an acquisition.
    time_point due{};
  };

  explicit undo_queue(fenceguard::clock const& time) noexcept : clock_{time} {}

  /// Says false where the queue has been closed: nothing was taken in.
  [[nodiscard]] bool add(entry what);

  /// For the undo thread: the next entry that is due and has not expired; nothing when the queue
  /// has been closed. The thread is to call one of the two below before it takes another.
  [[nodiscard]] std::optional<entry> next();
  void done();
  /// Takes it back for later. `pause_all`: the server does not answer, so nothing else is tried
  /// before then either.
  void put_back(entry what, time_point due, bool pause_all);

  /// Waits until nothing is left or the time has come.
  void drain(time_point until) noexcept;

  /// Ends next() and forgets all entries. A closed queue stays empty.
  void close() noexcept;

 private:
  static bool later(entry const& a, entry const& b) noexcept { return a.due > b.due; }
  [[nodiscard]] entry pop();

  fenceguard::clock const& clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable drained_;
  std::vector<entry> entries_;  // a heap: the first due on top
  time_point paused_until_ = time_point::min();
  bool in_hand_ = false;
  bool closed_ = false;
};

}  // namespace fenceguard
