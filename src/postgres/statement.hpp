#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fenceguard::postgres {

// Begins a message of the simple protocol that is one transaction without BEGIN: the server takes
// the statements of one message as one, and the database's default level may be another.
inline constexpr char const* own_transaction =
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE; ";

// The word that makes `statement` begin or end a transaction ("COMMIT", "PREPARE TRANSACTION", …);
// nothing where it does neither. White space, comments and empty statements before it are skipped
// as the server skips them. Savepoints are no transaction control: they stay inside.
std::optional<std::string> transaction_control(std::string_view statement);

}  // namespace fenceguard::postgres
