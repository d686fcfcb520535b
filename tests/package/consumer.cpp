// Calls something of each component, so that a library which is not linked shows.
#include <fenceguard/fenceguard.hpp>
#include <iostream>

namespace fg = fenceguard;

int main() {
  fg::fencing_token const token{42};
  try {
    // Nothing listens on port 1: the error proves that libpqxx and libpq are linked.
    fg::postgres::migrate("postgresql://nobody@127.0.0.1:1/none?connect_timeout=2");
    return 1;
  } catch (std::exception const& refused) {
    std::cout << "as expected: " << refused.what() << '\n';
  }
  try {
    fg::postgres::token_source tokens{"postgresql://nobody@127.0.0.1:1/none?connect_timeout=2"};
    fg::redis::lease_store const leases{{.url = "no-such-scheme://127.0.0.1"}, tokens};
    return 2;
  } catch (fg::error const& refused) {
    std::cout << "as expected: " << refused.what() << '\n';
  }
  return token.value() == 42 ? 0 : 3;
}
