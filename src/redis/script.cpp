#include "redis/script.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

namespace fenceguard::redis {
namespace {

command build(std::string_view verb, std::string_view which, script_call const& with) {
  std::array<char, 20> digits;
  auto const* const end =
      std::to_chars(digits.data(), digits.data() + digits.size(), with.keys.size()).ptr;
  std::string_view const count{digits.data(), static_cast<std::size_t>(end - digits.data())};
  std::size_t size =
      wire_size(0) + wire_size(verb.size()) + wire_size(which.size()) + wire_size(count.size());
  for (auto word : with.keys) size += wire_size(word.size());
  for (auto word : with.arguments) size += wire_size(word.size());
  std::string wire;
  wire.reserve(size);
  append_header(wire, 3 + with.keys.size() + with.arguments.size());
  append_word(wire, verb);
  append_word(wire, which);
  append_word(wire, count);
  for (auto word : with.keys) append_word(wire, word);
  for (auto word : with.arguments) append_word(wire, word);
  return command::from_wire(std::move(wire));
}

command whole(script const& what, script_call const& with) {
  return build("EVAL", what.text(), with);
}

command ask_digest(script const& what) {
  return command{"EVAL", "return redis.sha1hex(ARGV[1])", "0", what.text()};
}

bool unknown_script(result const& one) {
  return one.replied() && one.answer.error_code() == "NOSCRIPT";
}

}  // namespace

std::optional<std::string_view> script::digest() const noexcept {
  if (state_.load(std::memory_order_acquire) != 2) return std::nullopt;
  return std::string_view{digest_.data(), digest_.size()};
}

void script::learn_digest(std::string_view digest) const noexcept {
  auto const hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (digest.size() != digest_.size() || !std::all_of(digest.begin(), digest.end(), hex)) return;
  int expected = 0;
  if (!state_.compare_exchange_strong(expected, 1)) return;
  std::copy(digest.begin(), digest.end(), digest_.begin());
  state_.store(2, std::memory_order_release);
}

result evaluate(connection& server, script const& what, script_call const& with,
                time_point deadline, priority order) {
  auto const digest = what.digest();
  if (!digest) {
    std::array<command, 2> const both{ask_digest(what), whole(what, with)};
    auto results = server.call_all(both, deadline, order);
    what.learn_digest(results[0].answer.text());
    return std::move(results[1]);
  }
  auto outcome = server.call(build("EVALSHA", *digest, with), deadline, order);
  if (unknown_script(outcome)) outcome = server.call(whole(what, with), deadline, order);
  return outcome;
}

result evaluate_asking(connection& server, script const& what, script_call const& with,
                       time_point deadline) {
  std::array<command, 2> const both{command{"ASKING"}, whole(what, with)};
  return std::move(server.call_all(both, deadline)[1]);
}

std::vector<result> evaluate_all(connection& server, script const& what,
                                 std::span<script_call const> with, time_point deadline,
                                 priority order) {
  std::vector<scripted_call> calls(with.size());
  for (std::size_t i = 0; i < calls.size(); ++i) calls[i] = {&what, with[i]};
  return evaluate_all(server, calls, deadline, order);
}

std::vector<result> evaluate_all(connection& server, std::span<scripted_call const> calls,
                                 time_point deadline, priority order) {
  std::vector<result> results(calls.size());
  std::vector<std::size_t> open(calls.size());
  for (std::size_t i = 0; i < open.size(); ++i) open[i] = i;
  // The first round takes all that a server which knows the scripts can do; after it, one whole
  // text of each in front teaches the server for those behind it. A flush in between is met by
  // sending all whole.
  enum { by_digest, teach, all_whole };
  for (int round = by_digest; !open.empty() && round <= all_whole; ++round) {
    std::vector<command> commands;
    commands.reserve(open.size() + 1);
    std::vector<script const*> taught;
    std::vector<std::pair<std::size_t, script const*>> asked;  // where in `commands`, and of what
    std::vector<std::size_t> place(open.size());               // of the answer to a call
    for (std::size_t n = 0; n < open.size(); ++n) {
      auto const& what = *calls[open[n]].what;
      auto const digest = what.digest();
      bool const first = std::find(taught.begin(), taught.end(), &what) == taught.end();
      if (first) taught.push_back(&what);
      if (!digest && first) {
        asked.emplace_back(commands.size(), &what);
        commands.push_back(ask_digest(what));
      }
      bool const send_whole = !digest || round == all_whole || (round == teach && first);
      place[n] = commands.size();
      commands.push_back(send_whole ? whole(what, calls[open[n]].with)
                                    : build("EVALSHA", *digest, calls[open[n]].with));
    }
    auto answers = server.call_all(commands, deadline, order);
    for (auto const& [at, what] : asked) what->learn_digest(answers[at].answer.text());
    std::vector<std::size_t> again;
    for (std::size_t n = 0; n < open.size(); ++n) {
      auto& answer = answers[place[n]];
      if (unknown_script(answer)) again.push_back(open[n]);
      results[open[n]] = std::move(answer);
    }
    open = std::move(again);
  }
  return results;
}

}  // namespace fenceguard::redis
