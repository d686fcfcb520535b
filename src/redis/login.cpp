#include "redis/login.hpp"

#include <algorithm>
#include <array>
#include <fenceguard/core/errors.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "redis/wire.hpp"

namespace fenceguard::redis {
namespace {

using namespace std::chrono_literals;

// Some servers quote the command that they refuse.
std::string without_password(std::string_view text, std::string const& password) {
  std::string result{text};
  for (auto at = result.find(password); !password.empty() && at != std::string::npos;
       at = result.find(password, at)) {
    result.replace(at, password.size(), "***");
    at += 3;
  }
  return result;
}

struct greeting {
  std::string wire;
  std::vector<char const*> verbs;
};

greeting greeting_for(connection_options const& options) {
  greeting all;
  if (!options.login.password.empty()) {
    all.verbs.push_back("AUTH");
    bool const named = !options.login.user.empty();
    append_header(all.wire, named ? 3 : 2);
    append_word(all.wire, "AUTH");
    if (named) append_word(all.wire, options.login.user);
    append_word(all.wire, options.login.password);
  }
  if (options.database != 0) {
    all.verbs.push_back("SELECT");
    append_header(all.wire, 2);
    append_word(all.wire, "SELECT");
    append_word(all.wire, std::to_string(options.database));
  }
  return all;
}

}  // namespace

void log_in(socket& peer, reply_parser& parser, connection_options const& options,
            connect_bound const& bound) {
  auto const said = greeting_for(options);
  auto const server = options.server.to_string();
  std::size_t sent = 0;
  std::size_t answered = 0;
  reply answer;
  while (answered < said.verbs.size()) {
    auto const now = boottime::now();
    if (bound.cancelled) throw unreachable{"the Redis connection was shut down", false};
    if (now >= bound.until) throw unreachable{"logging in to " + server + " took too long", true};
    std::array<char, 1024> bytes;
    std::size_t arrived = 0;
    auto status = peer.send(said.wire, sent);
    if (status != socket::status::closed) {
      status = peer.receive(bytes.data(), bytes.size(), arrived, sent < said.wire.size(),
                            std::min<time_point>(bound.until, now + 20ms));
    }
    parser.feed(bytes.data(), arrived);
    auto parsed = parser.parse(answer);
    while (parsed == reply_parser::state::complete && answered < said.verbs.size()) {
      if (answer.is_error()) {
        throw invalid_request{server + " refused " + said.verbs[answered] + ": " +
                              without_password(answer.text(), options.login.password)};
      }
      ++answered;
      parsed = parser.parse(answer);
    }
    if (parsed == reply_parser::state::broken) {
      throw unreachable{server + " does not answer as Redis does: " + parser.error(), false};
    }
    if (answered < said.verbs.size() && status == socket::status::closed) {
      throw unreachable{server + " closed the connection during login" + peer.why_closed(), false};
    }
  }
}

}  // namespace fenceguard::redis
