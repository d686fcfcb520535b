#include "redis/server_version.hpp"

#include <charconv>

namespace fenceguard::redis {
namespace {

std::string_view field_of_hello(reply_view hello, std::string_view name) {
  for (std::size_t i = 0; i + 1 < hello.size(); i += 2) {
    if (hello[i].text() == name) return hello[i + 1].text();
  }
  return {};
}

std::string_view field_of_info(std::string_view info, std::string_view name) {
  auto const at = info.find(std::string{name} + ":");
  if (at == std::string_view::npos) return {};
  auto const value = info.substr(at + name.size() + 1);
  return value.substr(0, value.find_first_of("\r\n"));
}

}  // namespace

server_version ask_version(std::function<result(command const&)> const& server) {
  server_version version;
  auto const hello = server(command{"HELLO", "2"});
  version.answered = hello.replied();
  version.text = field_of_hello(hello.answer, "version");
  bool const unknown = hello.answer.text().find("unknown command") != std::string_view::npos;
  if (unknown) {
    // Servers before 6.0, and proxies that pass on what they know.
    auto const info = server(command{"INFO", "server"});
    version.answered = info.replied();
    version.text = field_of_info(info.answer.text(), "redis_version");
  }
  version.too_old = is_too_old(version.text);
  return version;
}

bool is_too_old(std::string_view version) noexcept {
  int major = 0;
  int minor = 0;
  auto const* const end = version.data() + version.size();
  auto const [dot, failed] = std::from_chars(version.data(), end, major);
  if (failed != std::errc{} || dot == end || *dot != '.') return false;
  if (std::from_chars(dot + 1, end, minor).ec != std::errc{}) return false;
  return major < 6 || (major == 6 && minor < 2);
}

}  // namespace fenceguard::redis
