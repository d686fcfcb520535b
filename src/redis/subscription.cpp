#include "redis/subscription.hpp"

#include <array>
#include <utility>

#include "redis/login.hpp"
#include "redis/server_error.hpp"
#include "redis/wire.hpp"

namespace fenceguard::redis {

void subscription::connect(resolver& known, connect_bound const& bound) {
  disconnect();
  auto peer = socket::connect(options_.server, known, bound, options_.tls.get());
  auto parser = std::make_unique<reply_parser>();
  log_in(peer, *parser, options_, bound);
  for (auto const& [channel, name] : names_) append({"SUBSCRIBE", channel});
  peer_ = std::move(peer);
  parser_ = std::move(parser);
  heard_ = boottime::now();
}

void subscription::disconnect() noexcept {
  peer_.interrupt();  // a forked child may have the descriptor too
  peer_.close();
  out_.clear();
  sent_ = 0;
  asked_ = {};
}

void subscription::subscribe(std::string const& channel, std::string const& name) {
  if (names_.emplace(channel, name).second && connected()) append({"SUBSCRIBE", channel});
}

void subscription::unsubscribe(std::string const& channel) {
  if (names_.erase(channel) > 0 && connected()) append({"UNSUBSCRIBE", channel});
}

void subscription::append(std::initializer_list<std::string_view> words) {
  append_header(out_, words.size());
  for (auto const word : words) append_word(out_, word);
}

auto subscription::exchange(events const& told) -> fault {
  std::array<char, 4 * 1024> bytes;
  auto status = socket::status::ok;
  while (status == socket::status::ok) {
    if (peer_.send(out_, sent_) == socket::status::closed) status = socket::status::closed;
    if (sent_ == out_.size()) {
      out_.clear();
      sent_ = 0;
    }
    std::size_t arrived = 0;
    if (status == socket::status::ok) {
      status = peer_.receive_arrived(bytes.data(), bytes.size(), arrived);
    }
    if (arrived == 0) break;
    heard_ = boottime::now();
    asked_ = {};
    parser_->feed(bytes.data(), arrived);
    reply next;
    auto parsed = parser_->parse(next);
    while (parsed == reply_parser::state::complete) {
      auto wrong = take(next, told);
      if (!wrong.message.empty()) return wrong;
      parsed = parser_->parse(next);
    }
    if (parsed == reply_parser::state::broken) {
      return {server().to_string() + " does not answer as Redis does: " + parser_->error()};
    }
  }
  if (status == socket::status::closed) {
    return {server().to_string() + " closed the connection" + peer_.why_closed()};
  }
  return {};
}

auto subscription::take(reply_view what, events const& told) -> fault {
  if (what.is_error()) {
    return {server().to_string() + " refused SUBSCRIBE: " + std::string{what.text()} + remedy(what),
            true};
  }
  auto const kind = what[0].text();
  auto const known = names_.find(std::string{what[1].text()});
  if (known == names_.end()) return {};  // not wanted any more, or a sign of life
  if (kind == "subscribe") told.subscribed(known->second);
  if (kind == "message") told.message(known->second, what[2].text());
  return {};
}

bool subscription::check_alive(std::chrono::nanoseconds quiet, std::chrono::nanoseconds patience) {
  auto const now = boottime::now();
  if (asked_ != time_point{}) return now - asked_ < patience;
  if (now - heard_ < quiet) return true;
  append({"PING"});
  asked_ = now;
  return true;
}

}  // namespace fenceguard::redis
