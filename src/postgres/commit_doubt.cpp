#include "postgres/commit_doubt.hpp"

#include <algorithm>

namespace fenceguard::postgres {

bool leaves_commit_in_doubt(std::exception const& failed, libpqxx::pinned_session const& session) {
  std::string const sqlstate = libpqxx::sqlstate_of(failed);
  return sqlstate.empty() || sqlstate == "40003" || !session.holds();
}

bool says_standby_wait_cancelled(std::vector<std::string> const& messages) {
  return std::any_of(messages.begin(), messages.end(), [](std::string const& message) {
    return message.find("SyncRepWaitForLSN") != std::string::npos ||
           message.find("synchronous replication") != std::string::npos;
  });
}

char const* const hear_warnings =
    "CASE WHEN pg_catalog.current_setting('client_min_messages') "
    "OPERATOR(pg_catalog.=) 'error' "
    "THEN pg_catalog.set_config('client_min_messages', 'warning', true) END";

}  // namespace fenceguard::postgres
