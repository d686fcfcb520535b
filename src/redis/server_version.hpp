#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "redis/connection.hpp"

namespace fenceguard::redis {

struct server_version {
  bool answered = false;  ///< False where there was no reply at all.
  bool too_old = false;   ///< Surely older than 6.2; false where the server does not tell.
  std::string text{};     ///< For example "6.0.16"; empty where the server does not tell.
};

/// Asks a server HELLO, and INFO where the server knows no HELLO. A user who may call neither is
/// believed to be on a server that is new enough. Does not throw but std::bad_alloc.
[[nodiscard]] server_version ask_version(std::function<result(command const&)> const& server);

/// Whether a version, such as "6.0.16", lies before 6.2. False for what is no version.
[[nodiscard]] bool is_too_old(std::string_view version) noexcept;

}  // namespace fenceguard::redis
