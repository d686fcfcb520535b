#pragma once

#include <exception>
#include <string>
#include <vector>

#include "postgres/libpqxx.hpp"

// What tells a commit that may or may not have happened.
namespace fenceguard::postgres {

// Whether `failed`, thrown by a message that ends in a commit, leaves open what became of it. An
// answer of the server that has a SQLSTATE is a definite no: it was sent instead of the commit's
// completion. 40003 is the one that says it does not know.
bool leaves_commit_in_doubt(std::exception const& failed, libpqxx::pinned_session const& session);

// The server's word that a commit stands on this server only, because the wait for its standby was
// cancelled. The place in the server's code is the same in all languages; see verbose_messages.
bool says_standby_wait_cancelled(std::vector<std::string> const& messages);

// A session that asked for errors only must still hear that warning: an expression that raises
// client_min_messages for this transaction where that is needed.
extern char const* const hear_warnings;

}  // namespace fenceguard::postgres
