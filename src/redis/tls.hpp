#pragma once

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "redis/url.hpp"

namespace fenceguard::redis {

/// What the connections of a store share for TLS: which authorities are trusted, and who we are.
/// Certificates and the names in them are always verified; a connection that is not would protect
/// against nobody who can change it. TLS 1.2 and later. Any thread.
class tls_context {
 public:
  /// Reads the files. Throws invalid_request where one cannot be used, or where this build has no
  /// TLS (OpenSSL was not there when it was configured).
  explicit tls_context(tls_files const& files);
  tls_context(tls_context const&) = delete;
  tls_context& operator=(tls_context const&) = delete;
  ~tls_context();

 private:
  friend class tls_session;
  struct implementation;
  std::unique_ptr<implementation> implementation_;
};

/// The client's side of TLS over one connection, without the connection: bytes in, bytes out.
/// Belongs to one thread at a time.
class tls_session {
 public:
  enum class state {
    ok,
    incomplete,  ///< More has to be received first.
    over,        ///< The peer has ended it, or something was wrong: error() says what.
  };

  /// For a server that is known by this name (or literal address), which its certificate must bear,
  /// unless the context names another.
  tls_session(tls_context const& shared, std::string const& host);
  ~tls_session();
  tls_session(tls_session const&) = delete;
  tls_session& operator=(tls_session const&) = delete;

  /// Goes on with the handshake; `ok` once it is done.
  [[nodiscard]] state shake_hands() noexcept;
  /// What was received from the peer.
  void take(std::string_view received) noexcept;
  /// What the peer has said. `size` > 0 only with `ok`.
  [[nodiscard]] state read(char* bytes, std::size_t most, std::size_t& size) noexcept;
  /// Makes one record of the first bytes of this and says of how many; 0 where that is not possible
  /// any more. The peer can read none of them before it has all of the record.
  [[nodiscard]] std::size_t write(std::string_view bytes) noexcept;

  /// What is to be sent to the peer.
  [[nodiscard]] std::string_view outgoing() noexcept;
  void sent(std::size_t size) noexcept;

  /// Why it is over; empty where nothing was wrong.
  [[nodiscard]] std::string const& error() const noexcept { return error_; }

 private:
  struct implementation;
  [[nodiscard]] state judge(int returned) noexcept;

  std::unique_ptr<implementation> implementation_;
  std::string error_;
};

}  // namespace fenceguard::redis
