// A lease that is a temporary would be released before the transaction commits.
// expect: deleted
#include <fenceguard/fenceguard.hpp>

std::optional<fenceguard::lease> acquire();

void write(pqxx::connection& db) {
#ifdef VIOLATION
  fenceguard::postgres::transaction tx{db, *acquire()};
#else
  auto const lease = acquire();
  fenceguard::postgres::transaction tx{db, *lease};
#endif
  tx.commit();
}
