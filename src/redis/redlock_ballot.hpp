#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <fenceguard/core/clock.hpp>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "redis/parking.hpp"
#include "redis/reply.hpp"
#include "redis/script.hpp"
#include "redis/server_error.hpp"

namespace fenceguard::redis {

/// What the servers of a quorum are asked: one of the scripts that touch a lease's key alone.
enum class redlock_request { hold, confirm, renew, release, inspect };
inline constexpr std::size_t redlock_requests = 5;

[[nodiscard]] script const& script_of(redlock_request what) noexcept;
[[nodiscard]] std::string_view to_string(redlock_request what) noexcept;

/// What one server said about one call.
struct redlock_vote {
  enum class kind {
    pending,    ///< Nothing yet: it may have been applied, or may yet be.
    not_asked,  ///< It was left out.
    answered,   ///< A word of the script, with what belongs to it.
    failed,     ///< No answer, a refusal, or the answer of a replica.
  };
  kind what = kind::pending;
  reply answer{};
  server_error error{};  ///< Where failed. The message names the server.

  [[nodiscard]] std::string_view word() const noexcept { return answer[0].text(); }
};

/// How many servers said what about one call.
struct redlock_tally {
  std::size_t yes = 0;      ///< HELD, GRANTED (or OVERTAKEN), RENEWED, RELEASED.
  std::size_t no = 0;       ///< Any other answer of the script.
  std::size_t failed = 0;   ///< No answer, or none that says anything about the lease.
  std::size_t pending = 0;  ///< Nothing yet.
};

/// One question to all servers of a quorum, and their votes. The caller waits until the verdict
/// cannot change any more, or until nothing but servers that have not answered lately is left to
/// wait for. Shared with the servers' threads, which may answer when the caller has long gone.
class redlock_ballot {
 public:
  /// When the caller has waited enough.
  enum class rule {
    majority,      ///< When one of the answers has a majority, or none can have.
    every_answer,  ///< When each server that has answered lately has, and a majority with them.
    awaited,       ///< When none is left of those that the caller waits for.
  };
  struct call {
    std::string key{};
    std::vector<std::string> arguments{};  ///< Of the script; the holder first.
  };
  struct question {
    redlock_request what;
    rule until = rule::majority;
    std::vector<call> calls{};
    time_point deadline{};  ///< Not sent after it.
    /// Of a release: a server that does not answer is asked again until then, by when the lease
    /// has run out.
    time_point expires{};
  };
  /// Indexed by server and by call.
  using votes = std::vector<std::vector<redlock_vote>>;

  redlock_ballot(question asked, std::size_t servers);

  [[nodiscard]] question const& asked() const noexcept { return asked_; }
  [[nodiscard]] std::size_t servers() const noexcept { return votes_.size(); }

  // For the caller.

  /// Does not ask a server. Before it is cast.
  void leave_out(std::size_t server);
  [[nodiscard]] bool left_out(std::size_t server) const noexcept { return left_out_[server] != 0; }
  /// Sleeps until the verdict is certain or the time has come; says which. May be called again.
  [[nodiscard]] bool sleep(time_point until) { return caller_.park_until(until) != 0; }
  /// Waits no longer for a server, unless the verdict depends on it.
  void do_not_wait_for(std::size_t server);
  /// Takes the votes; later ones are dropped.
  [[nodiscard]] votes take();
  /// What has not been sent yet need not be.
  void abandon() noexcept { abandoned_ = true; }

  // For a server's thread.

  [[nodiscard]] bool abandoned() const noexcept { return abandoned_; }
  void record(std::size_t server, std::vector<redlock_vote> said);
  /// Whether the server has answered lately; the caller does not wait for one that has not, if it
  /// can do without.
  void note_answering(std::size_t server, bool answering);

 private:
  [[nodiscard]] bool decided() const;
  [[nodiscard]] bool decided(std::size_t item, std::size_t awaited) const;
  void check();

  question const asked_;
  std::vector<char> left_out_;    // of each server
  std::vector<char> waited_for_;  // of each server
  std::atomic<bool> abandoned_{false};
  parking caller_;

  std::mutex mutex_;
  bool over_ = false;  // decided, or the caller has gone
  votes votes_;
  std::vector<redlock_tally> tallies_;  // of each call
  std::vector<char> answering_;         // of each server
};

/// Counts the votes on one call.
[[nodiscard]] redlock_tally tally(redlock_ballot::votes const& from, std::size_t item,
                                  redlock_request what);

/// How many servers of so many make a majority.
[[nodiscard]] constexpr std::size_t majority_of(std::size_t servers) noexcept {
  return servers / 2 + 1;
}

}  // namespace fenceguard::redis
