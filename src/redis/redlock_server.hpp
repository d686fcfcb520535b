#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <fenceguard/core/clock.hpp>
#include <fenceguard/core/events.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/background_thread.hpp"
#include "core/server_clock.hpp"
#include "redis/connection.hpp"
#include "redis/redlock_ballot.hpp"

namespace fenceguard::redis {

/// One server of a quorum: asks it, in order, on a thread of its own, started at the first need,
/// which owns one connection and takes at once what is queued. A server that hangs holds up this
/// thread and nobody else. One that cannot be reached is tried ten times a second at least.
///
/// A release that the server does not answer is repeated until it does or the lease has run out, so
/// that nothing of a lease that was given up, or never won, is left behind on a server that hung
/// for a while. A release is repeated as well where an acquisition whose reply was lost might yet
/// come after it.
///
/// Any thread. Not for use in a forked child, which must not destroy it either.
class redlock_server {
 public:
  struct settings {
    connection_options link;
    std::size_t number;  ///< Its place in the ballots.
    fenceguard::observer* observer = nullptr;
    /// How many leases are remembered that are still to be given back. What is beyond runs out with
    /// its ttl, and the observer is told of it once.
    std::size_t most_leftovers = 50'000;
  };

  /// Does not connect. Throws invalid_request where the options cannot be served.
  explicit redlock_server(settings how);
  redlock_server(redlock_server const&) = delete;
  redlock_server& operator=(redlock_server const&) = delete;
  ~redlock_server();

  /// Does not wait for the server. Every ballot gets a vote, also after the end.
  void ask(std::shared_ptr<redlock_ballot> what);

  /// The end comes in two steps, so that several servers end together. What is queued gets its
  /// votes at once, but releases are sent first, if the server is answering.
  void begin_close() noexcept;
  /// Gives the thread until then, and ends it.
  void finish_close(time_point until) noexcept;

 private:
  /// Something to be given back that has not been yet.
  struct leftover {
    std::string key;
    std::string holder;
    time_point expires;
  };
  /// One call of a message to the server.
  struct sent_call {
    std::shared_ptr<redlock_ballot> of{};  ///< Null: a leftover.
    std::size_t item = 0;
    leftover back{};
    unsigned late = 0;
  };
  using message = std::vector<sent_call>;
  using queue = std::deque<std::shared_ptr<redlock_ballot>>;
  using guard = std::unique_lock<std::mutex>;

  void run() noexcept;
  [[nodiscard]] bool await_work(guard& held);
  void back_off(guard& held);
  void take_queue(guard& held);
  void work();
  [[nodiscard]] message next_message();
  [[nodiscard]] bool drop_unsent(redlock_ballot& one);
  void add_leftovers(message& to);
  void send(message& calls);
  [[nodiscard]] std::vector<result> transmit(message const& calls,
                                             std::vector<std::size_t> const& which);
  [[nodiscard]] bool send_again(sent_call& hold, result const& outcome);
  [[nodiscard]] redlock_vote judge_vote(redlock_request what, result from) const;
  void tell_refusal(redlock_request what, redlock_vote const& said);
  void mistrust_early(message& calls, std::vector<redlock_vote>& said);
  void settle(message& calls, std::vector<redlock_vote> said);
  [[nodiscard]] bool settle_release(leftover what, redlock_vote const& said);
  void keep(leftover what, time_point due);
  void last_leftovers();
  void set_answering(bool answering, std::string_view why);
  void tell(std::string_view what) noexcept;
  void check_version(time_point deadline);
  void fail(redlock_ballot& one, std::string const& why);

  settings const how_;
  connection link_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable ended_;
  queue queue_;
  bool closing_ = false;
  bool over_ = false;  // the thread has ended
  bool answering_ = true;
  bool backing_off_ = false;  // the thread lets a server alone that has failed more than once
  background_thread thread_;

  // The thread's own.
  queue todo_;
  server_clock clock_;
  bool version_checked_ = false;
  std::string too_old_;
  std::array<bool, redlock_requests> refused_{};   // the last request of each kind
  std::multimap<time_point, leftover> leftovers_;  // by when they are due
  std::unordered_set<std::string> leftover_holders_;
  bool too_many_told_ = false;
  unsigned failures_ = 0;  // messages without any reply, one after the other
  time_point ask_again_at_{};
  std::chrono::nanoseconds leftover_pause_{0};
  time_point leftovers_wait_until_{};
  /// Acquisitions whose reply was lost, and until when the server might yet apply them.
  std::unordered_map<std::string, time_point> in_limbo_;
};

}  // namespace fenceguard::redis
