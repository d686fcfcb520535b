// In place of tls.cpp where OpenSSL was not there when the build was configured.
#include <fenceguard/core/errors.hpp>

#include "redis/tls.hpp"

namespace fenceguard::redis {

struct tls_context::implementation {};
struct tls_session::implementation {};

tls_context::tls_context(tls_files const& /*files*/) {
  throw invalid_request{
      "rediss:// (TLS) is not supported by this build of fenceguard: it was configured without "
      "OpenSSL"};
}

tls_context::~tls_context() = default;

tls_session::tls_session(tls_context const& /*shared*/, std::string const& /*host*/) {}
tls_session::~tls_session() = default;
tls_session::state tls_session::shake_hands() noexcept { return state::over; }
void tls_session::take(std::string_view /*received*/) noexcept {}
tls_session::state tls_session::read(char* /*bytes*/, std::size_t /*most*/,
                                     std::size_t& size) noexcept {
  size = 0;
  return state::over;
}
std::size_t tls_session::write(std::string_view /*bytes*/) noexcept { return 0; }
std::string_view tls_session::outgoing() noexcept { return {}; }
void tls_session::sent(std::size_t /*size*/) noexcept {}

}  // namespace fenceguard::redis
