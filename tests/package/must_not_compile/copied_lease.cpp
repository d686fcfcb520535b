// Two copies of one grant would release it twice.
// expect: deleted
#include <fenceguard/core/lease.hpp>
#include <utility>

void keep(fenceguard::lease& lease) {
#ifdef VIOLATION
  fenceguard::lease const mine{lease};
#else
  fenceguard::lease const mine{std::move(lease)};
#endif
}
