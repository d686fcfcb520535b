#pragma once

#include <atomic>
#include <chrono>
#include <fenceguard/core/lease_backend.hpp>
#include <fenceguard/core/lease_store.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "core/background_thread.hpp"
#include "core/grant_record.hpp"
#include "core/lease_schedule.hpp"
#include "core/undo_queue.hpp"
#include "core/wait_queue.hpp"

namespace fenceguard {

/// What all lease stores have in common: waiting, deadlines, renewal, loss, release, undo. The
/// store owns it and closes it; its grants keep it (and the backend) alive.
///
/// No lock is held while the backend, the observer or a lost() callback is called. Three threads,
/// each started when it is first needed: the watchdog, which does no I/O, the renewal, and the
/// undo.
class lease_engine : public std::enable_shared_from_this<lease_engine> {
 public:
  lease_engine(std::unique_ptr<lease_backend> backend, lease_store_settings const& settings);
  lease_engine(lease_engine const&) = delete;
  lease_engine& operator=(lease_engine const&) = delete;
  ~lease_engine();

  /// Whether this is a child of the process that made the engine: then nothing of it may be
  /// touched.
  [[nodiscard]] bool forked() const noexcept;

  // For the store.
  [[nodiscard]] std::optional<lease> acquire(lease_request const& request);
  [[nodiscard]] std::optional<lease_set> acquire_all(lease_set_request const& request);
  [[nodiscard]] std::optional<holder_info> inspect(std::string const& resource);
  [[nodiscard]] lease_store_counters counters() const noexcept;
  void close() noexcept;

  // For grants.
  [[nodiscard]] std::chrono::milliseconds remaining(grant::record& held) noexcept;
  fencing_token advance(grant::record& held, std::optional<fencing_token> above);
  /// `caller` waits for the answer up to command_timeout; `destructor` up to release_timeout, and
  /// not at all while the store does not answer.
  enum class released_by { caller, destructor };
  release_outcome release(grant::record& held, released_by whom) noexcept;
  void forget(grant::record& gone) noexcept { schedule_.forget(gone); }

 private:
  friend class acquisition;

  struct numbers {
    std::atomic<std::uint64_t> granted{0}, busy{0}, attempts{0}, renewed{0}, lost{0}, released{0},
        undone{0}, store_errors{0}, held{0};
  };

  void require_same_process() const;
  [[nodiscard]] time_point now() const noexcept { return settings_.clock->now(); }
  /// Makes the event only where somebody listens.
  template <class MakeEvent>
  void tell(MakeEvent const& make) const noexcept {
    if (settings_.observer != nullptr) settings_.observer->on_event(make());
  }
  void tell_error(std::string_view operation, std::string_view message) noexcept;

  // Terms (lease_engine.cpp).
  struct sent_term {
    time_point sent_at;
    std::chrono::milliseconds ttl;
    std::chrono::milliseconds validity;
  };
  [[nodiscard]] lease_schedule::term term_of(grant::record const& held,
                                             sent_term const& sent) const noexcept;
  [[nodiscard]] std::chrono::nanoseconds drift(std::chrono::milliseconds ttl) const noexcept;
  [[nodiscard]] std::optional<lease_set> take_all(lease_set_request const& request,
                                                  std::vector<std::string> const& sorted,
                                                  time_point end);

  // Threads (watchdog.cpp, renewal.cpp, undo.cpp).
  void start_threads(renewal renew);
  void run_watchdog();
  void run_renewal();
  struct renewal_round;
  void renew_batch(renewal_round& round);
  void settle(grant::record& held, lease_backend::renew_item const& item, renewal_round& round);
  void report(renewal_round const& round);
  void run_undo();
  void undo(undo_queue::entry what, std::chrono::milliseconds& pause);
  void undo_later(undo_queue::entry what) noexcept;
  /// Takes back a grant that nobody wants, waiting for the answer as a destructor does.
  void undo_now(undo_queue::entry what) noexcept;
  void report_undone(undo_queue::entry const& what, release_outcome outcome) noexcept;

  // The end of a grant (watchdog.cpp, undo.cpp).
  [[nodiscard]] bool still_held(grant::record& held) noexcept;
  void announce_loss(grant::record& lost) noexcept;
  release_outcome release_on_server(grant::record& held, released_by whom, bool renewing) noexcept;
  release_outcome finish_release(grant::record& held, release_outcome outcome) noexcept;
  void delete_later(grant::record& ended) noexcept;

  std::uint64_t const process_;
  lease_store_settings const settings_;
  numbers numbers_;
  /// Whether the store answered when it was last asked to delete or renew.
  std::atomic<bool> answering_{true};
  std::atomic<bool> closed_{false};

  lease_schedule schedule_;
  undo_queue undo_queue_;
  // Before the backend, whose hints go to it until the backend has ended.
  wait_queue queue_;
  std::unique_ptr<lease_backend> const backend_;

  std::mutex threads_mutex_;
  std::atomic<bool> watching_{false}, renewing_{false}, undoing_{false};
  background_thread watchdog_, renewal_, undo_;
};

}  // namespace fenceguard
