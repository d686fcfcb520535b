#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <fenceguard/core/clock.hpp>
#include <fenceguard/core/events.hpp>
#include <fenceguard/core/lease_backend.hpp>
#include <fenceguard/core/token_source.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/grant_numbering.hpp"
#include "core/server_clock.hpp"
#include "postgres/bounded_connection.hpp"
#include "postgres/lease_listener.hpp"

namespace fenceguard::postgres {

// Leases in a table (sql/migrations/0010_lease.up.sql). Each grant is numbered after it was won:
// take, reserve a token, confirm that the lease is still held.
class lease_backend final : public fenceguard::lease_backend {
 public:
  struct settings {
    std::string url;
    std::size_t connections = 4;
    std::chrono::milliseconds command_timeout{1'000};
    fenceguard::observer* observer = nullptr;
    // The clock on which deadlines are given and sent_at is taken.
    fenceguard::clock* clock = &fenceguard::clock::system();
  };

  // Does not connect. `tokens` must outlive the object. Throws invalid_request.
  lease_backend(settings how, token_source& tokens);
  ~lease_backend() override;

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
  using outcome = bounded_connection::outcome;
  using arguments = std::vector<std::optional<std::string>>;
  class checkout;

  // One SELECT, as a transaction of its own that does not wait for the disk.
  [[nodiscard]] outcome ask(std::string const& call, arguments const& with, time_point deadline);
  [[nodiscard]] outcome ask_through(bounded_connection& through, std::string const& call,
                                    arguments const& with, time_point deadline) const;
  [[nodiscard]] acquire_answer number(attempt const& what, time_point sent_at, time_point deadline);
  [[nodiscard]] acquire_answer refused(outcome const& answer) const;
  [[nodiscard]] outcome confirm(std::string_view resource, std::string_view holder,
                                fencing_token token, time_point deadline);
  void renew_all(std::span<renew_item> batch, time_point deadline);
  void throw_lasting(outcome const& answer) const;
  void tell(event const& what) const noexcept;

  settings const how_;
  std::string const url_;
  std::atomic<bool> closed_{false};
  server_clock server_clock_;

  std::mutex pool_mutex_;
  std::condition_variable returned_;
  std::vector<std::unique_ptr<bounded_connection>> connections_;
  std::vector<bounded_connection*> idle_;

  bounded_connection renewals_;
  bounded_connection last_;  // for releases after close()
  lease_listener listener_;
  grant_numbering numbering_;
};

}  // namespace fenceguard::postgres
