// A grant that nobody keeps is given back at once, and busy that nobody looks at is a bug.
// expect: nodiscard|unused-result
#include <fenceguard/core/lease_store.hpp>

void work(fenceguard::lease_store& leases) {
#ifdef VIOLATION
  leases.acquire({.resource = "account/42", .ttl = std::chrono::seconds{10}});
#else
  auto const lease = leases.acquire({.resource = "account/42", .ttl = std::chrono::seconds{10}});
  static_cast<void>(lease);
#endif
}
