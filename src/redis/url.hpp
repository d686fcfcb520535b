#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fenceguard::redis {

/// Where one server listens: TCP, or a Unix socket where `path` is not empty.
struct address {
  std::string host;  ///< A name or a literal IPv4 or IPv6 address, without brackets.
  std::uint16_t port = 6379;
  std::string path;

  [[nodiscard]] std::string to_string() const;  ///< `host:port`, `[v6]:port` or `unix:path`.
  bool operator==(address const&) const = default;
};

/// Who logs in, and where to.
struct credentials {
  std::string user;      ///< Empty: the server's default user.
  std::string password;  ///< Empty: no AUTH is sent.

  bool operator==(credentials const&) const = default;
};

/// Files and names for TLS; what is empty is not given.
struct tls_files {
  std::string authorities;            ///< PEM; neither this nor the next: the system's own.
  std::string authorities_directory;  ///< As c_rehash makes it.
  std::string certificate;            ///< Ours, PEM, with its chain; together with `key`.
  std::string key;
  std::string server_name;  ///< What the certificate must bear, where it is not the host's name.

  bool operator==(tls_files const&) const = default;
};

enum class deployment { standalone, sentinel, cluster };

/// A Redis URL, taken apart. User, password, path and host are percent-decoded.
///
///     redis://[[user]:password@]host[:port][/database]     (rediss:// the same over TLS)
///     unix://[[user]:password@]/path[?db=n&user=u&password=p]
///     redis+sentinel://[[user]:password@]host[:port][,host[:port]...]/service[?db=n]
///                   [&sentinel_user=u&sentinel_password=p]
///     redis+cluster://[[user]:password@]host[:port][,host[:port]...]
///
/// Default ports: 6379, for Sentinel 26379. `rediss`, `rediss+sentinel` and `rediss+cluster` use
/// TLS, to all servers, and take the parameters of redis-cli's options: `cacert`, `cacertdir`,
/// `cert`, `key`, `sni`. A literal IPv6 address stands in brackets.
struct url {
  deployment kind = deployment::standalone;
  std::vector<address> addresses;  ///< One for standalone; never empty.
  bool tls = false;
  tls_files files;  ///< Where `tls` is set.
  credentials login;
  credentials sentinel_login;  ///< For the sentinels themselves.
  int database = 0;
  std::string service;  ///< Sentinel's name of the primary.

  /// For messages and logs: without user and password.
  [[nodiscard]] std::string to_string() const;
};

/// A port, 1 … 65535, and nothing else; nothing where the text is none.
[[nodiscard]] std::optional<std::uint16_t> parse_port(std::string_view text) noexcept;

/// Throws invalid_request where the text is no such URL. The message says what is wrong and quotes
/// nothing but a scheme: where a '/' or '@' in a password was not percent-encoded, parts of the
/// password stand where port, path or host are looked for.
[[nodiscard]] url parse_url(std::string_view text);

}  // namespace fenceguard::redis
