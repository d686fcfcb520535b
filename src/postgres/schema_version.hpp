#pragma once

#include <optional>
#include <pqxx/pqxx>

namespace fenceguard::postgres {

// The schema's newest migration; nothing where the database has no fenceguard schema.
std::optional<int> schema_version(pqxx::transaction_base& with);

}  // namespace fenceguard::postgres
