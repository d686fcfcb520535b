// A plain number is no token: a balance or a key could be passed by mistake.
// expect: no matching (member )?function|could not convert|cannot convert|no viable conversion
#include <fenceguard/fenceguard.hpp>

void write(fenceguard::postgres::row_fence& orders, pqxx::work& tx) {
#ifdef VIOLATION
  auto const result = orders.update(tx, 42, fenceguard::postgres::key(1), "state = $1", "paid");
#else
  auto const result = orders.update(tx, fenceguard::fencing_token{42}, fenceguard::postgres::key(1),
                                    "state = $1", "paid");
#endif
  static_cast<void>(result);
}
