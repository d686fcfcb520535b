#include "redis/url.hpp"

#include <algorithm>
#include <charconv>
#include <fenceguard/core/errors.hpp>
#include <optional>
#include <utility>

namespace fenceguard::redis {
namespace {

constexpr std::size_t longest_unix_path = 107;  // sockaddr_un::sun_path with its final zero

[[noreturn]] void refuse(std::string const& reason) {
  throw invalid_request{"Redis URL: " + reason};
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string decode(std::string_view text, char const* what) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      result += text[i];
      continue;
    }
    int const high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    int const low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    if (low < 0) {
      refuse(std::string{"'%' in the "} + what +
             " is not followed by two hex digits (write a '%' itself as %25)");
    }
    result += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return result;
}

template <typename number>
std::optional<number> whole_number(std::string_view text, number least, number most) {
  number value{};
  auto const [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if (value < least || value > most) return std::nullopt;
  return value;
}

int parse_database(std::string_view text) {
  auto const number = whole_number<int>(text, 0, 1'000'000);
  if (!number) refuse("the database is not a number from 0 up");
  return *number;
}

// text up to the first of `ends`, which stays in front of the rest
std::string_view take_until(std::string_view& text, std::string_view ends) {
  auto const size = std::min(text.find_first_of(ends), text.size());
  auto const result = text.substr(0, size);
  text.remove_prefix(size);
  return result;
}

credentials parse_login(std::string_view text) {
  auto const colon = text.find(':');
  if (colon == std::string_view::npos) {
    refuse("a user without a password (write user:password@, or :password@ for the default user)");
  }
  credentials login{decode(text.substr(0, colon), "user"),
                    decode(text.substr(colon + 1), "password")};
  if (login.password.empty()) refuse("the password is empty");
  return login;
}

address parse_address(std::string_view text, std::uint16_t default_port) {
  address result;
  result.port = default_port;
  std::string_view host = text;
  std::optional<std::string_view> port;
  if (text.starts_with('[')) {
    auto const end = text.find(']');
    if (end == std::string_view::npos) refuse("a '[' before the host without its ']'");
    host = text.substr(1, end - 1);
    if (host.find(':') == std::string_view::npos) {
      refuse("only an IPv6 address stands in brackets");
    }
    auto const rest = text.substr(end + 1);
    if (!rest.empty() && rest.front() != ':') refuse("between ']' and the port belongs a ':'");
    if (!rest.empty()) port = rest.substr(1);
  } else if (auto const colon = text.find(':'); colon != std::string_view::npos) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (port->find(':') != std::string_view::npos) {
      refuse("more than one ':' after the host (an IPv6 address stands in brackets)");
    }
  }
  result.host = decode(host, "host");
  if (result.host.empty()) refuse("the host is missing");
  if (result.host.find_first_of(std::string_view{"\0 \t\r\n", 5}) != std::string::npos) {
    refuse("white space or a zero byte in the host");
  }
  if (port) {
    auto const number = parse_port(*port);
    if (!number) refuse("the port is not a number from 1 to 65535");
    result.port = *number;
  }
  return result;
}

struct scheme {
  std::string_view name;
  deployment kind;
  bool tls;
  bool unix_socket;
};

constexpr scheme schemes[] = {
    {"redis", deployment::standalone, false, false},
    {"rediss", deployment::standalone, true, false},
    {"unix", deployment::standalone, false, true},
    {"redis+sentinel", deployment::sentinel, false, false},
    {"rediss+sentinel", deployment::sentinel, true, false},
    {"redis+cluster", deployment::cluster, false, false},
    {"rediss+cluster", deployment::cluster, true, false},
};

scheme take_scheme(std::string_view& text) {
  constexpr std::string_view separator = "://";
  constexpr std::string_view known =
      "redis, rediss, unix, redis+sentinel, rediss+sentinel, redis+cluster or rediss+cluster";
  auto const end = text.find(separator);
  if (end == std::string_view::npos) {
    refuse("it does not begin with a scheme (" + std::string{known} + ") and ://");
  }
  auto const name = text.substr(0, end);
  text.remove_prefix(end + separator.size());
  for (auto const& candidate : schemes) {
    if (candidate.name == name) return candidate;
  }
  auto const plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+';
  };
  // Where it is no scheme at all it may be part of a password.
  bool const quotable = name.size() <= 16 && std::all_of(name.begin(), name.end(), plain);
  refuse("unknown scheme" + (quotable ? " '" + std::string{name} + "'" : std::string{}) +
         " (known: " + std::string{known} + ")");
}

// Where that parameter goes; null where it is none of TLS.
std::string* tls_parameter(tls_files& files, std::string_view name) {
  if (name == "cacert") return &files.authorities;
  if (name == "cacertdir") return &files.authorities_directory;
  if (name == "cert") return &files.certificate;
  if (name == "key") return &files.key;
  return name == "sni" ? &files.server_name : nullptr;
}

void apply_parameter(url& result, bool unix_socket, std::string_view name, std::string value) {
  bool const sentinel = result.kind == deployment::sentinel;
  if (auto* const file = result.tls ? tls_parameter(result.files, name) : nullptr) {
    if (value.empty() || value.find('\0') != std::string::npos) {
      refuse("a TLS parameter is empty or has a zero byte");
    }
    *file = std::move(value);
  } else if (name == "db" && (unix_socket || sentinel)) {
    result.database = parse_database(value);
  } else if (name == "user" && unix_socket) {
    result.login.user = std::move(value);
  } else if (name == "password" && unix_socket) {
    result.login.password = std::move(value);
  } else if (name == "sentinel_user" && sentinel) {
    result.sentinel_login.user = std::move(value);
  } else if (name == "sentinel_password" && sentinel) {
    result.sentinel_login.password = std::move(value);
  } else {
    std::string known = unix_socket ? "db, user, password"
                        : sentinel  ? "db, sentinel_user, sentinel_password"
                                    : "";
    if (result.tls)
      known += std::string{known.empty() ? "" : ", "} + "cacert, cacertdir, cert, key, sni";
    refuse(known.empty()
               ? "nothing may follow a '?' here (the database is the path: redis://host/1)"
               : "unknown parameter after '?' (known: " + known + ")");
  }
}

void parse_query(url& result, bool unix_socket, std::string_view query) {
  while (!query.empty()) {
    query.remove_prefix(1);  // '?' or '&'
    auto const pair = take_until(query, "&");
    auto const equals = std::min(pair.find('='), pair.size());
    auto const value = equals < pair.size() ? pair.substr(equals + 1) : std::string_view{};
    apply_parameter(result, unix_socket, pair.substr(0, equals),
                    decode(value, "value of a parameter"));
  }
  if (result.files.certificate.empty() != result.files.key.empty()) {
    refuse("cert and key belong together");
  }
  if (!result.login.user.empty() && result.login.password.empty()) {
    refuse("a user without a password");
  }
  if (!result.sentinel_login.user.empty() && result.sentinel_login.password.empty()) {
    refuse("a sentinel_user without a sentinel_password");
  }
}

void parse_unix(url& result, std::string_view path) {
  address socket;
  socket.port = 0;
  socket.path = decode(path, "path");
  if (socket.path.size() < 2 || socket.path.front() != '/') {
    refuse("the socket's path is missing (unix:///run/redis/redis.sock)");
  }
  if (socket.path.find('\0') != std::string::npos) refuse("a zero byte in the path");
  if (socket.path.size() > longest_unix_path) {
    refuse("the socket's path is longer than " + std::to_string(longest_unix_path) + " bytes");
  }
  result.addresses.push_back(std::move(socket));
}

void parse_addresses(url& result, std::string_view hosts) {
  std::uint16_t const default_port = result.kind == deployment::sentinel ? 26379 : 6379;
  if (result.kind == deployment::standalone && hosts.find(',') != std::string_view::npos) {
    refuse("several hosts need redis+sentinel:// or redis+cluster://");
  }
  for (;;) {
    auto host = take_until(hosts, ",");
    result.addresses.push_back(parse_address(host, default_port));
    if (hosts.empty()) return;
    hosts.remove_prefix(1);
  }
}

void parse_path(url& result, std::string_view path) {
  if (!path.empty()) path.remove_prefix(1);
  if (path.find('@') != std::string_view::npos) {
    refuse("an '@' after the first '/': write a '/' in a password as %2F and an '@' as %40");
  }
  switch (result.kind) {
    case deployment::standalone:
      if (!path.empty()) result.database = parse_database(path);
      return;
    case deployment::sentinel:
      result.service = decode(path, "service name");
      if (result.service.empty()) {
        refuse("the primary's service name is missing (redis+sentinel://host/name)");
      }
      return;
    case deployment::cluster:
      if (!path.empty() && path != "0") refuse("Redis Cluster has database 0 only");
      return;
  }
}

}  // namespace

std::string address::to_string() const {
  if (!path.empty()) return "unix:" + path;
  bool const ipv6 = host.find(':') != std::string::npos;
  return (ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string url::to_string() const {
  std::string result;
  for (auto const& candidate : schemes) {
    bool const unix_socket = !addresses.empty() && !addresses.front().path.empty();
    if (candidate.kind == kind && candidate.tls == tls && candidate.unix_socket == unix_socket) {
      result = std::string{candidate.name} + "://";
      break;
    }
  }
  for (auto const& one : addresses) {
    if (&one != &addresses.front()) result += ',';
    result += one.path.empty() ? one.to_string() : one.path;
  }
  if (kind == deployment::sentinel) result += "/" + service;
  if (database != 0) {
    bool const in_path = kind == deployment::standalone && addresses.front().path.empty();
    result += (in_path ? "/" : "?db=") + std::to_string(database);
  }
  return result;
}

std::optional<std::uint16_t> parse_port(std::string_view text) noexcept {
  return whole_number<std::uint16_t>(text, 1, 65535);
}

url parse_url(std::string_view text) {
  auto const found = take_scheme(text);
  url result;
  result.kind = found.kind;
  result.tls = found.tls;
  auto authority = take_until(text, "/?");
  if (auto const at = authority.rfind('@'); at != std::string_view::npos) {
    result.login = parse_login(authority.substr(0, at));
    authority.remove_prefix(at + 1);
  }
  auto const path = take_until(text, "?");
  if (found.unix_socket) {
    if (!authority.empty()) refuse("unix:// has no host (unix:///run/redis/redis.sock)");
    parse_unix(result, path);
  } else {
    parse_path(result, path);
    parse_addresses(result, authority);
  }
  parse_query(result, found.unix_socket, text);
  return result;
}

}  // namespace fenceguard::redis
