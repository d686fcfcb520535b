#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "redis/connection.hpp"

namespace fenceguard::redis {

/// The text of a Lua script, and the digest by which a server that has seen it knows it. May be
/// used by several threads and connections.
///
/// The digest (SHA-1 of the text) is asked of the first server that runs the script, by
/// `redis.sha1hex` in the same message: that needs no right beyond EVAL, which SCRIPT LOAD would,
/// and no SHA-1 of our own. It holds for every server. Until it is known, and where a server
/// refuses to tell, the whole text is sent.
class script {
 public:
  explicit script(std::string text) : text_{std::move(text)} {}

  [[nodiscard]] std::string const& text() const noexcept { return text_; }
  /// 40 hex digits, once known.
  [[nodiscard]] std::optional<std::string_view> digest() const noexcept;
  /// Takes what a server said; anything but 40 hex digits is ignored.
  void learn_digest(std::string_view digest) const noexcept;

 private:
  std::string text_;
  mutable std::array<char, 40> digest_;
  mutable std::atomic<int> state_{0};  // 0 unknown, 1 being written, 2 known
};

/// What one run of a script is given.
struct script_call {
  std::span<std::string_view const> keys;
  std::span<std::string_view const> arguments;
};

/// Runs a script by EVALSHA, and by EVAL where the server does not know it (first use, SCRIPT
/// FLUSH, restart, failover: NOSCRIPT says that it did not run). All of it within the one deadline.
/// Outcomes as connection::call().
[[nodiscard]] result evaluate(connection& server, script const& what, script_call const& with,
                              time_point deadline, priority order = priority::normal);

/// Runs a script whose keys a cluster is moving to this server: once, behind ASKING, which holds
/// for the next command only.
[[nodiscard]] result evaluate_asking(connection& server, script const& what,
                                     script_call const& with, time_point deadline);

/// One run of one script among others.
struct scripted_call {
  script const* what;
  script_call with;
};

/// Runs scripts of different kinds; the commands are sent together, results come in the order of
/// `calls`. The server runs them in that order too, unless it does not know one of the scripts:
/// those calls are repeated behind the others.
[[nodiscard]] std::vector<result> evaluate_all(connection& server,
                                               std::span<scripted_call const> calls,
                                               time_point deadline,
                                               priority order = priority::normal);

/// Runs one script many times; the commands are sent together, results come in the order of `with`.
[[nodiscard]] std::vector<result> evaluate_all(connection& server, script const& what,
                                               std::span<script_call const> with,
                                               time_point deadline,
                                               priority order = priority::normal);

}  // namespace fenceguard::redis
