#include "redis/tls.hpp"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <fenceguard/core/errors.hpp>

namespace fenceguard::redis {
namespace {

constexpr std::size_t longest_record = 16 * 1024;  // of plain text (RFC 8446, 5.1)

// The oldest error of this thread's queue, which is emptied.
std::string take_reason() {
  auto const code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "unknown reason";
  auto const* const words = ERR_reason_error_string(code);
  return words != nullptr ? words : "error " + std::to_string(code);
}

[[noreturn]] void refuse(std::string const& what) {
  throw invalid_request{"TLS: " + what + ": " + take_reason()};
}

bool is_literal_address(std::string const& host) {
  std::array<unsigned char, sizeof(in6_addr)> bytes;
  return ::inet_pton(AF_INET, host.c_str(), bytes.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1;
}

}  // namespace

struct tls_context::implementation {
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> shared{nullptr, SSL_CTX_free};
  std::string name;
};

tls_context::tls_context(tls_files const& files)
    : implementation_{std::make_unique<implementation>()} {
  ERR_clear_error();
  auto& shared = implementation_->shared;
  shared.reset(SSL_CTX_new(TLS_client_method()));
  if (!shared) refuse("no context could be made");
  implementation_->name = files.server_name;
  SSL_CTX_set_min_proto_version(shared.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(shared.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(shared.get(), SSL_MODE_RELEASE_BUFFERS);
  auto const given = [](std::string const& name) { return name.empty() ? nullptr : name.c_str(); };
  if (files.authorities.empty() && files.authorities_directory.empty()) {
    if (SSL_CTX_set_default_verify_paths(shared.get()) != 1) refuse("the system's authorities");
  } else if (SSL_CTX_load_verify_locations(shared.get(), given(files.authorities),
                                           given(files.authorities_directory)) != 1) {
    refuse("cacert or cacertdir cannot be used");
  }
  if (files.certificate.empty() != files.key.empty()) {
    throw invalid_request{"TLS: cert and key belong together"};
  }
  if (files.certificate.empty()) return;
  if (SSL_CTX_use_certificate_chain_file(shared.get(), files.certificate.c_str()) != 1) {
    refuse("cert cannot be used");
  }
  if (SSL_CTX_use_PrivateKey_file(shared.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    refuse("key cannot be used");
  }
}

tls_context::~tls_context() = default;

struct tls_session::implementation {
  std::unique_ptr<SSL, decltype(&SSL_free)> session{nullptr, SSL_free};
  BIO* in = nullptr;   // the session's
  BIO* out = nullptr;  // the session's
};

tls_session::tls_session(tls_context const& shared, std::string const& host)
    : implementation_{std::make_unique<implementation>()} {
  auto& mine = *implementation_;
  mine.session.reset(SSL_new(shared.implementation_->shared.get()));
  mine.in = BIO_new(BIO_s_mem());
  mine.out = BIO_new(BIO_s_mem());
  if (!mine.session || mine.in == nullptr || mine.out == nullptr) {
    BIO_free(mine.in);
    BIO_free(mine.out);
    throw std::bad_alloc{};
  }
  BIO_set_mem_eof_return(mine.in, -1);  // empty is not the end
  SSL_set_bio(mine.session.get(), mine.in, mine.out);
  SSL_set_connect_state(mine.session.get());
  auto const& name = shared.implementation_->name.empty() ? host : shared.implementation_->name;
  bool const literal = is_literal_address(name);
  auto* const parameters = SSL_get0_param(mine.session.get());
  X509_VERIFY_PARAM_set_hostflags(parameters, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  bool const set = literal
                       ? X509_VERIFY_PARAM_set1_ip_asc(parameters, name.c_str()) == 1
                       : X509_VERIFY_PARAM_set1_host(parameters, name.data(), name.size()) == 1 &&
                             SSL_set_tlsext_host_name(mine.session.get(), name.c_str()) == 1;
  if (!set) refuse("no server can have the name " + name);
}

tls_session::~tls_session() = default;

tls_session::state tls_session::judge(int returned) noexcept {
  switch (SSL_get_error(implementation_->session.get(), returned)) {
    case SSL_ERROR_NONE:
      return state::ok;
    case SSL_ERROR_WANT_READ:
      return state::incomplete;
    case SSL_ERROR_ZERO_RETURN:
      return state::over;
    default:
      break;
  }
  auto const verdict = SSL_get_verify_result(implementation_->session.get());
  if (verdict != X509_V_OK) {
    ERR_clear_error();
    error_ = std::string{"its certificate is refused: "} + X509_verify_cert_error_string(verdict);
  } else {
    error_ = "TLS: " + take_reason();
  }
  return state::over;
}

tls_session::state tls_session::shake_hands() noexcept {
  ERR_clear_error();
  return judge(SSL_do_handshake(implementation_->session.get()));
}

void tls_session::take(std::string_view received) noexcept {
  static_cast<void>(
      BIO_write(implementation_->in, received.data(), static_cast<int>(received.size())));
}

tls_session::state tls_session::read(char* bytes, std::size_t most, std::size_t& size) noexcept {
  ERR_clear_error();
  size = 0;
  return judge(SSL_read_ex(implementation_->session.get(), bytes, most, &size));
}

std::size_t tls_session::write(std::string_view bytes) noexcept {
  ERR_clear_error();
  std::size_t taken = 0;
  auto const portion = std::min(bytes.size(), longest_record);
  if (judge(SSL_write_ex(implementation_->session.get(), bytes.data(), portion, &taken)) !=
      state::ok) {
    return 0;
  }
  return taken;
}

std::string_view tls_session::outgoing() noexcept {
  char* bytes = nullptr;
  auto const size = BIO_get_mem_data(implementation_->out, &bytes);
  return {bytes, static_cast<std::size_t>(std::max(size, 0L))};
}

// A memory BIO gives its bytes away from the front, by copying: into what nobody looks at.
void tls_session::sent(std::size_t size) noexcept {
  std::array<char, 4 * 1024> gone;
  while (size > 0) {
    auto const part =
        BIO_read(implementation_->out, gone.data(), static_cast<int>(std::min(size, gone.size())));
    if (part <= 0) return;
    size -= static_cast<std::size_t>(part);
  }
}

}  // namespace fenceguard::redis
