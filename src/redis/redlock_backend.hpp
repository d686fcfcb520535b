#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fenceguard/core/clock.hpp>
#include <fenceguard/core/events.hpp>
#include <fenceguard/core/lease_backend.hpp>
#include <fenceguard/core/token_source.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/grant_numbering.hpp"
#include "redis/connection.hpp"
#include "redis/key_space.hpp"
#include "redis/redlock_ballot.hpp"
#include "redis/redlock_panel.hpp"

namespace fenceguard::redis {

/// Leases in a majority of independent Redis primaries (Redlock,
/// https://redis.io/docs/latest/develop/use/patterns/distributed-locks/).
///
/// A grant is a hold on a majority, then a token reserved for it, then the proof, by a majority
/// again, that the hold still stands. What was won on a minority is given back everywhere, also by
/// servers that have not answered: see redlock_server.
///
/// Renewals have threads and connections of their own. A priority within the same ones would not
/// do: a renewal waits a part of its ttl, and the message before it may wait a whole
/// command_timeout for a server that hangs.
class redlock_backend final : public fenceguard::lease_backend {
 public:
  struct settings {
    std::vector<connection_options> servers;  ///< An odd number, at least 3, all different.
    key_space keys;
    /// For what no caller waits for.
    std::chrono::milliseconds command_timeout{1'000};
    fenceguard::observer* observer = nullptr;
    fenceguard::clock* clock = &fenceguard::clock::system();
  };

  /// Does not connect. `tokens` must outlive the object. Throws invalid_request.
  redlock_backend(settings how, token_source& tokens);
  /// No call may be running.
  ~redlock_backend() override;

  [[nodiscard]] acquire_answer try_acquire(attempt const& what) override;
  void renew(std::span<renew_item> batch, time_point deadline) noexcept override;
  [[nodiscard]] release_outcome release(std::string_view resource, std::string_view holder,
                                        time_point deadline) noexcept override;
  [[nodiscard]] advance_answer advance(std::string_view resource, std::string_view holder,
                                       std::optional<fencing_token> above,
                                       time_point deadline) override;
  [[nodiscard]] std::optional<holder_info> inspect(std::string_view resource,
                                                   time_point deadline) override;
  void close() noexcept override;

 private:
  using votes = redlock_ballot::votes;
  /// One acquisition, on the clock of the deadlines of servers.
  struct hold {
    std::string key;
    std::string holder;
    std::chrono::milliseconds ttl;
    time_point sent_at;
    time_point deadline;
  };

  void require_same_process() const;
  [[nodiscard]] votes ask(redlock_panel& whom, redlock_ballot::question asked);
  [[nodiscard]] votes ask_to_confirm(std::string const& key, std::string_view holder,
                                     fencing_token token, time_point deadline);
  [[nodiscard]] acquire_answer number(hold const& mine, votes const& holds);
  [[nodiscard]] acquire_answer not_held(hold const& mine, votes const& holds);
  [[nodiscard]] bool take_back(hold const& mine, votes const& holds);
  [[nodiscard]] release_outcome release_all(std::string_view resource, std::string_view holder,
                                            time_point deadline);
  void renew_all(std::span<renew_item> batch, time_point deadline);
  [[nodiscard]] time_point surely_expired() const noexcept;
  void note_ttl(std::chrono::milliseconds ttl) noexcept;
  [[nodiscard]] std::string shortfall(redlock_request what, votes const& from) const;
  void throw_misconfigured(redlock_request what, votes const& from) const;
  void tell(std::string_view operation, std::string_view message) noexcept;

  settings const how_;
  std::uint64_t const process_;
  std::size_t const quorum_;
  std::size_t const minority_;
  std::atomic<bool> closed_{false};
  std::atomic<std::chrono::milliseconds::rep> longest_ttl_{0};
  // Shared only so that a forked child can leak them.
  std::shared_ptr<redlock_panel> main_;
  std::shared_ptr<redlock_panel> renewals_;
  std::shared_ptr<redlock_panel> last_;  // for releases after close()
  grant_numbering numbering_;
};

}  // namespace fenceguard::redis
