#pragma once

#include <string>
#include <vector>

#include "cli/diagnosis.hpp"

namespace fenceguard::cli {

/// Looks at a live PostgreSQL as the URL's role sees it: schema, protected tables, settings,
/// transactions, counter, roles, pooler, clock. Changes nothing. Throws pqxx::broken_connection
/// where the server cannot be reached; what it refuses to show is a finding.
[[nodiscard]] std::vector<diagnosis> check_database(std::string const& url,
                                                    examination const& how = {});

/// What is to be said about a server of this version (server_version_num); empty or one finding.
[[nodiscard]] std::vector<diagnosis> judge_postgres_version(int number);

}  // namespace fenceguard::cli
