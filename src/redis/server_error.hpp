#pragma once

#include <string>

#include "redis/connection.hpp"

namespace fenceguard::redis {

/// What an error reply, or the lack of a reply, says about a request.
enum class refusal {
  not_applied,    ///< Surely had no effect: never sent, or refused before anything was written.
  misconfigured,  ///< Likewise, and trying again cannot mend it: password, rights, database number.
  unknown,        ///< May have had an effect, or may yet.
};

struct server_error {
  refusal kind = refusal::unknown;
  /// For people. Names the server's own code and what to look at.
  std::string message;
};

/// Whether an error reply has this code. A script's error keeps its code from Redis 7.0 on; before,
/// it stands inside the text of an ERR.
[[nodiscard]] bool has_code(reply_view answer, std::string_view code);

/// Judges a result that is no ordinary reply: no reply at all, or an error reply. The message
/// begins with `operation`.
///
/// A script's error keeps its code from Redis 7.0 on (`OOM ...`); before, the code stands within
/// (`ERR Error running script (...): @user_script: 27: -OOM ...`). Both are found.
[[nodiscard]] server_error judge(result const& from, std::string_view operation);

/// What mends the refusal that this error reply is, in brackets; empty where nothing is known.
[[nodiscard]] std::string remedy(reply_view answer);

}  // namespace fenceguard::redis
