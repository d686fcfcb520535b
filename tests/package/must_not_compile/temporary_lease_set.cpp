// As for one lease: the set would be released before the transaction commits.
// expect: deleted
#include <fenceguard/fenceguard.hpp>

std::optional<fenceguard::lease_set> acquire();

void write(pqxx::connection& db) {
#ifdef VIOLATION
  fenceguard::postgres::transaction tx{db, *acquire()};
#else
  auto const leases = acquire();
  fenceguard::postgres::transaction tx{db, *leases};
#endif
  tx.commit();
}
