#pragma once

#include <pqxx/pqxx>

namespace fenceguard::postgres {

/// After server_promoted: tells the database that its promotion or restore is known, by reserving a
/// token, so that it accepts new grants again. Grants from before it are refused from then on
/// (stale_token): acquire their leases again.
///
/// Needed only for writes outside postgres::transaction and execute_once(), which do it themselves,
/// such as a row_fence over a plain pqxx transaction; roll that back first. Committed when this
/// returns. Does no harm where there was no promotion.
///
/// Throws invalid_request where `db` has a transaction open, schema_mismatch where the database
/// lacks the schema, and what libpqxx throws.
void acknowledge_promotion(pqxx::connection& db);

}  // namespace fenceguard::postgres
