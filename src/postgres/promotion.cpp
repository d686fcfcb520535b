#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/promotion.hpp>

#include "postgres/server_errors.hpp"

namespace fenceguard::postgres {

void acknowledge_promotion(pqxx::connection& db) {
  try {
    // Says its level, whatever the database's default is: the reservation needs this one.
    pqxx::transaction<pqxx::read_committed> reservation{db};
    with_own_errors(failed_call::own_function,
                    [&] { reservation.exec("SELECT fenceguard.reserve_tokens(1)"); });
    reservation.commit();
  } catch (pqxx::usage_error const& open) {
    throw invalid_request{std::string{"acknowledge_promotion() needs a connection without open "
                                      "transaction: "} +
                          open.what()};
  }
}

}  // namespace fenceguard::postgres
