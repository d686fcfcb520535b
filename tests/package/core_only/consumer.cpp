#include <fenceguard/core/errors.hpp>
#include <fenceguard/core/fencing_token.hpp>

int main() {
  try {
    fenceguard::fencing_token const none{0};
    return 1;
  } catch (fenceguard::invalid_request const&) {
  }
  return fenceguard::fencing_token{7}.value() == 7 ? 0 : 2;
}
