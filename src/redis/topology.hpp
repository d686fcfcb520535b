#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "redis/connection.hpp"
#include "redis/url.hpp"

namespace fenceguard::redis {

/// How the servers of a store are put together: which of them serves a partition now, and what an
/// answer says about that. What is learned serves all connections of the store.
///
/// Knows nothing of leases. Every member may be called from any thread.
class topology {
 public:
  /// Where a partition is served; `error` says why that is not known.
  struct location {
    bool found = false;
    address server{};
    std::string error{};  ///< For people; empty where found.
  };

  /// What to do about a request after its outcome.
  struct next_step {
    enum class kind {
      keep,        ///< The outcome is the answer.
      look_again,  ///< Surely not applied, and another server may serve the partition by now.
      follow,      ///< Surely not applied; `server` serves the partition now.
      ask_once,    ///< Surely not applied; this one request goes to `server`, behind ASKING.
    };
    kind what = kind::keep;
    address server{};
  };

  virtual ~topology() = default;
  topology(topology const&) = delete;
  topology& operator=(topology const&) = delete;

  /// Rises whenever a partition may be served elsewhere than before; while it stands, an answer of
  /// locate() may be kept. Read it before locate() is called.
  [[nodiscard]] std::uint64_t version() const noexcept {
    return version_.load(std::memory_order_acquire);
  }

  /// Finds the server of a partition, and asks others for it where it is not known. Returns by
  /// `deadline`. Throws std::bad_alloc only.
  [[nodiscard]] virtual location locate(unsigned partition, time_point deadline) = 0;

  /// Learns from the outcome of a request that went to `from`. Asks nobody.
  [[nodiscard]] virtual next_step learn(unsigned partition, address const& from,
                                        result const& outcome) = 0;

  /// How to connect to the servers that locate() names; its own address is of no meaning.
  [[nodiscard]] virtual connection_options const& connecting() const noexcept = 0;

 protected:
  topology() = default;

  /// Answers of a server that is no primary, or none that may be used now. Nothing was applied.
  [[nodiscard]] static bool is_denial(reply_view answer);
  /// Whether the server could not be reached, or has not answered.
  [[nodiscard]] static bool is_broken(result const& outcome) noexcept;
  void changed() noexcept { version_.fetch_add(1, std::memory_order_acq_rel); }

 private:
  std::atomic<std::uint64_t> version_{1};
};

/// One server, always the same.
class standalone_topology final : public topology {
 public:
  explicit standalone_topology(connection_options server) : server_{std::move(server)} {}

  [[nodiscard]] location locate(unsigned partition, time_point deadline) override;
  [[nodiscard]] next_step learn(unsigned partition, address const& from,
                                result const& outcome) override;
  [[nodiscard]] connection_options const& connecting() const noexcept override { return server_; }

 private:
  connection_options const server_;
};

/// The topology that a URL describes, for a store of so many partitions. Does not connect. Throws
/// invalid_request where this build cannot serve it.
[[nodiscard]] std::shared_ptr<topology> make_topology(url const& from, unsigned partitions,
                                                      std::chrono::milliseconds command_timeout);

}  // namespace fenceguard::redis
