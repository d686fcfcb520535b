#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <fenceguard/core/clock.hpp>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "redis/reply.hpp"
#include "redis/socket.hpp"
#include "redis/tls.hpp"
#include "redis/url.hpp"
#include "redis/wire.hpp"

namespace fenceguard::redis {

/// What is known about a command when its caller goes on.
enum class fate {
  replied,   ///< The server answered; an error reply is an answer too.
  not_sent,  ///< Nothing of it has reached the server, nor ever will.
  unknown,   ///< It was sent, in part at least, and may have been applied or may yet be.
};

/// Why there is no reply.
enum class failure {
  none,
  deadline,      ///< The caller's own time was up.
  unreachable,   ///< No connection could be made.
  refused,       ///< The server refused the login or the database; `error` has its text.
  disconnected,  ///< The connection broke, or the server was silent for too long.
  protocol,      ///< The server sent something that is no RESP, or that nobody had asked for.
  closed,        ///< shutdown() was called.
  forked,        ///< Called in a child process of the one that made the connection.
};

struct result {
  fate outcome = fate::not_sent;
  failure why = failure::none;
  reply answer;       ///< Set where `outcome` is `replied`.
  std::string error;  ///< For people; empty where `outcome` is `replied`. Never holds a password.

  [[nodiscard]] bool replied() const noexcept { return outcome == fate::replied; }
};

/// Where in the queue a command goes. `urgent` overtakes what has not been sent yet.
enum class priority { normal, urgent };

struct connection_options {
  address server;
  credentials login;
  int database = 0;
  std::shared_ptr<tls_context const> tls{};  ///< Null: none.

  /// One attempt to connect and log in takes at most this, and never longer than the deadline of
  /// the command that needs it.
  std::chrono::milliseconds connect_timeout{1000};
  /// With commands under way and nothing received for this long, the connection is given up:
  /// commands of short deadlines must not queue up behind a dead one of a long deadline.
  std::chrono::milliseconds silence_limit{1000};
  std::size_t longest_batch = 512;  ///< Commands sent at once.

  /// The server that a URL of kind standalone names; throws invalid_request for another kind, and
  /// what tls_context throws.
  [[nodiscard]] static connection_options from_url(url const& from);
};

struct connection_counters {
  std::uint64_t commands = 0;   ///< Sent.
  std::uint64_t batches = 0;    ///< Written at once; commands / batches is the combining factor.
  std::uint64_t drops = 0;      ///< Connections given up, for whatever reason.
  std::uint64_t connects = 0;   ///< Connections made; all but the first are reconnects.
  std::uint64_t late = 0;       ///< Replies that came after their caller had gone.
  std::uint64_t handovers = 0;  ///< Times that a waiting caller was given the I/O role.
};

/// One connection to one server, shared by any number of threads, without a thread of its own.
///
/// A caller that finds it idle becomes the leader: it sends everything that is queued in one write
/// and reads replies for all. The others wait. When the leader's own reply is there, or its
/// deadline has come, the role goes to one that still waits, in the middle of a batch too. (The
/// writer queue of LevelDB, with a leader that can be replaced.)
///
/// Each command has an absolute deadline on fenceguard's clock (CLOCK_BOOTTIME: a command that was
/// queued before the machine was suspended is not sent after its time), counted from when it was
/// queued. Connecting and logging in happen within it, on the first call and on the first one after
/// a connection was lost; nothing is sent twice, except what certainly had not left.
///
/// Commands that block on the server (WAIT, BLPOP) hold up everything behind them: give them a
/// connection of their own, with a longer silence_limit.
///
/// In a forked child every call returns `forked` without touching a lock or the descriptor, and the
/// destructor leaks both: the parent's stream is not the child's to disturb.
class connection {
 public:
  using clock = boottime;

  /// Does not connect. Throws invalid_request where the options cannot be served.
  explicit connection(connection_options options);
  connection(connection const&) = delete;
  connection& operator=(connection const&) = delete;
  /// No call may be running.
  ~connection();

  /// Any thread. Throws std::bad_alloc only. Returns by `deadline`, whatever the server does, plus
  /// what the operating system needs to run the thread.
  [[nodiscard]] result call(command const& what, time_point deadline,
                            priority order = priority::normal);
  /// The same for many commands, which are sent together and in order. One wake-up for all of them.
  [[nodiscard]] std::vector<result> call_all(std::span<command const> what, time_point deadline,
                                             priority order = priority::normal);

  /// Ends every running call (`not_sent` or `unknown`) and makes every later one return `closed`.
  /// Any thread; may be called again.
  void shutdown() noexcept;

  [[nodiscard]] connection_counters counters() const;
  [[nodiscard]] address const& server() const noexcept { return options_.server; }

 private:
  struct waiter;
  struct entry;
  struct wake_list;
  struct stream;
  struct in_flight {
    entry* sent;          // null: its caller has gone, the reply is to be dropped
    std::uint64_t begin;  // where its bytes begin in the stream
  };
  struct entry_list {
    entry* first = nullptr;
    entry* last = nullptr;
  };
  using guard = std::unique_lock<std::mutex>;

  void run(waiter& me, priority order);
  void wait(waiter& me);

  // The leader's part, with the lock held; where it is let go in between, the guard is an argument.
  void lead(guard& held, waiter& me);
  void pass_on(guard& held, wake_list& wakes);
  bool step(guard& held, waiter& me, wake_list& wakes);
  bool make_connection(guard& held, waiter& me, wake_list& wakes, time_point now);
  bool gather(guard& held, time_point now, wake_list& wakes);
  [[nodiscard]] bool transmit(guard& held);
  void exchange(guard& held, waiter& me, wake_list& wakes);
  bool distribute(wake_list& wakes);
  void drop(failure why, std::string const& error, wake_list& wakes);
  void fail_queued(std::uint64_t up_to, failure why, std::string const& error, wake_list& wakes);
  void finish(entry& one, wake_list& wakes);
  std::size_t under_way() const noexcept { return flight_.size() - flight_head_; }

  // Any caller's part.
  [[nodiscard]] bool may_overlap() const noexcept;
  void take_batch(time_point now);
  void send_batch(guard& held);
  [[nodiscard]] std::size_t portion() const noexcept;

  void enqueue(waiter& me, priority order);
  void push_front(entry& one) noexcept;
  void push_back(entry& one) noexcept;
  void unlink(entry& one) noexcept;
  void abandon(waiter& me, failure why, std::string const& error);

  connection_options const options_;
  pid_t const process_;

  // Under mutex_.
  mutable std::mutex mutex_;
  waiter* leader_ = nullptr;  // who has the I/O role, or has been told to take it
  entry_list queue_;
  std::size_t queue_size_ = 0;
  std::uint64_t queued_ = 0;  // serial number of the last entry
  std::vector<in_flight> flight_;
  std::size_t flight_head_ = 0;
  std::size_t live_ = 0;     // entries of flight_ from flight_head_ on whose callers wait
  std::size_t callers_ = 0;  // commands queued or under way at once, lately
  time_point progress_{};  // when something was last received, or sent while nothing was under way
  std::shared_ptr<stream> stream_;
  connection_counters counters_;

  std::atomic<bool> closed_ = false;

  // The leader's own; the mutex hands them over with the role.
  resolver names_;
  std::vector<reply> received_;
};

}  // namespace fenceguard::redis
