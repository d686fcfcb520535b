#pragma once

#include <atomic>
#include <chrono>
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

#include "core/grant_numbering.hpp"
#include "core/server_clock.hpp"
#include "redis/key_space.hpp"
#include "redis/lease_scripts.hpp"
#include "redis/release_messages.hpp"
#include "redis/replication.hpp"
#include "redis/route.hpp"
#include "redis/server_error.hpp"
#include "redis/token_blocks.hpp"
#include "redis/topology.hpp"

namespace fenceguard::redis {

/// Leases in Redis primaries: one, or the one that sentinels name, or those of a cluster.
///
/// Which server serves a resource is the topology's affair. Each acquisition is one script and one
/// round trip: it takes the lease and gives it a token of
/// the block that the database has reserved for this data set (scripts/acquire.lua,
/// scripts/tokens.lua). Where the server does not show its identity, or by option, each grant is
/// numbered by a reservation of its own: hold, reserve, confirm.
///
/// Renewals have a connection of their own, so that they never queue behind a burst of
/// acquisitions.
class lease_backend final : public fenceguard::lease_backend {
 public:
  struct settings {
    std::shared_ptr<topology> servers;
    key_space keys;
    /// Numbers every grant by a reservation of its own.
    bool number_each_grant = false;
    std::int64_t block_size = 1'000'000;
    replication_options replication{};
    /// For what no caller waits for.
    std::chrono::milliseconds command_timeout{1'000};
    fenceguard::observer* observer = nullptr;
    /// The clock on which deadlines are given and sent_at is taken.
    fenceguard::clock* clock = &fenceguard::clock::system();
  };

  /// Does not connect. `tokens` must outlive the object. Throws invalid_request.
  lease_backend(settings how, token_source& tokens);
  /// No call may be running.
  ~lease_backend() override;

  /// Makes sure that the servers can do what the options ask for; connects only where some cannot.
  /// Throws invalid_request, lease_store_unavailable.
  void require_support();

  [[nodiscard]] acquire_answer try_acquire(attempt const& what) override;
  void renew(std::span<renew_item> batch, time_point deadline) noexcept override;
  [[nodiscard]] release_outcome release(std::string_view resource, std::string_view holder,
                                        time_point deadline) noexcept override;
  [[nodiscard]] advance_answer advance(std::string_view resource, std::string_view holder,
                                       std::optional<fencing_token> above,
                                       time_point deadline) override;
  [[nodiscard]] std::optional<holder_info> inspect(std::string_view resource,
                                                   time_point deadline) override;
  void watch(std::string const& resource) override;
  void unwatch(std::string const& resource) noexcept override;
  [[nodiscard]] std::optional<std::chrono::milliseconds> poll_interval(
      std::string_view resource) const noexcept override;
  void set_hint_sink(hint_sink sink) override;
  void close() noexcept override;

 private:
  struct advance_call {
    std::string_view resource;
    std::string_view holder;
    std::string lease;
    std::optional<fencing_token> above;
    time_point deadline;
  };

  [[nodiscard]] acquire_answer acquire_from_block(attempt const& what, time_point deadline,
                                                  std::string_view lease);
  [[nodiscard]] acquire_answer acquire_numbered(attempt const& what, time_point deadline,
                                                std::string_view lease);
  [[nodiscard]] acquire_answer number(attempt const& what, time_point sent_at, time_point deadline,
                                      std::string_view lease);
  [[nodiscard]] acquire_answer refused(result const& outcome);
  /// Takes back a grant that too few servers have.
  [[nodiscard]] acquire_answer undo(attempt const& what, std::string const& shortfall);
  [[nodiscard]] advance_answer advance_from_block(advance_call const& call);
  [[nodiscard]] advance_answer advance_numbered(advance_call const& call);
  [[nodiscard]] advance_answer not_advanced(result const& outcome);
  enum class acknowledged { by_primary, by_replicas };  // the latter where the options ask for it
  [[nodiscard]] replication::outcome confirm(std::string_view resource, std::string_view lease,
                                             std::string_view holder, fencing_token token,
                                             time_point deadline, acknowledged by);
  /// Nothing where the stores of this prefix agree on the number of partitions, or nobody can tell.
  [[nodiscard]] std::optional<acquire_answer> disagreement(time_point deadline);
  void fetch(unsigned partition, std::string_view ticket, time_point deadline);
  void fetch_ahead(unsigned partition, std::string_view ticket) noexcept;
  [[nodiscard]] token_blocks::offer_answer offer(unsigned partition, std::string const& ticket,
                                                 fencing_token first, std::int64_t count);

  [[nodiscard]] result run(script const& what, script_call const& with, unsigned partition,
                           time_point deadline);
  /// For scripts whose answer has the server's time as its second element.
  [[nodiscard]] result run_timed(script const& what, script_call const& with, unsigned partition,
                                 time_point deadline);
  /// Scripts that make a grant: waits for replicas where that is asked for.
  [[nodiscard]] replication::outcome grant(script const& what, script_call const& with,
                                           unsigned partition, time_point deadline);
  void renew_all(std::span<renew_item> batch, time_point deadline);
  [[nodiscard]] server_error fail(result const& from, std::string_view operation);
  void check_version(unsigned partition, time_point deadline);
  [[nodiscard]] bool numbers_each_grant() const noexcept;
  void note_hidden_identity() noexcept;
  void tell(event const& what) noexcept;

  settings const how_;
  lease_scripts const& scripts_;
  route main_;
  route renewals_;
  /// For releases after close(), which ends what the other two are waiting for.
  route last_;
  replication replication_;
  std::atomic<bool> closed_{false};
  std::unique_ptr<server_clock[]> const server_clocks_;  ///< By partition.
  std::atomic<std::uint64_t> next_ticket_{0};
  std::atomic<bool> version_checked_{false};
  std::atomic<bool> partitions_agreed_{false};
  /// When the server last refused to show its identity; it is asked again after a while.
  std::atomic<boottime::rep> identity_hidden_at_{0};
  token_blocks blocks_;
  grant_numbering numbering_;
  /// Null where nobody wants hints.
  std::unique_ptr<release_messages> messages_;
};

}  // namespace fenceguard::redis
