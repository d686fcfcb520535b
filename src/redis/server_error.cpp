#include "redis/server_error.hpp"

#include <array>
#include <string_view>

#include "redis/rights.hpp"

namespace fenceguard::redis {
namespace {

struct known_code {
  std::string_view code;
  refusal kind;
  std::string_view remedy;
};

// All of these are said before the refused command has written anything, and the scripts write what
// grants a lease last.
constexpr std::array known_codes{
    known_code{"OOM", refusal::not_applied, " (the server's maxmemory is reached)"},
    known_code{"NOREPLICAS", refusal::not_applied, " (min-replicas-to-write is not met)"},
    known_code{"MISCONF", refusal::not_applied, " (the server cannot write its snapshot or log)"},
    known_code{"READONLY", refusal::not_applied, " (the server is a replica)"},
    known_code{"MASTERDOWN", refusal::not_applied,
               " (the server is a replica without its primary)"},
    known_code{"LOADING", refusal::not_applied, ""},
    known_code{"BUSY", refusal::not_applied, ""},
    known_code{"NOSCRIPT", refusal::not_applied, ""},
    known_code{"CLUSTERDOWN", refusal::not_applied, ""},
    known_code{"TRYAGAIN", refusal::not_applied, ""},
    known_code{"MOVED", refusal::not_applied, ""},
    known_code{"ASK", refusal::not_applied, ""},
    known_code{"CROSSSLOT", refusal::misconfigured, ""},
    known_code{"WRONGTYPE", refusal::misconfigured, " (another program uses this key)"},
    known_code{"NOPERM", refusal::misconfigured, {}},
    known_code{"NOAUTH", refusal::misconfigured, " (the URL has no password)"},
    known_code{"WRONGPASS", refusal::misconfigured, ""},
};

bool within(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string all_rights() {
  std::string text{" (what the user needs, with the store's prefix for its keys and channels: "};
  text += needed_patterns("<prefix>");
  for (auto const& some : needed_rights) {
    text += ", for " + std::string{some.needed_for} + ' ' + std::string{some.rules};
  }
  return text + ')';
}

// How the code of a script's error stands in the text of an ERR.
std::string code_inside(std::string_view code) { return '-' + std::string{code} + ' '; }

known_code const* find_code(std::string_view text, std::string_view code) {
  for (auto const& known : known_codes) {
    if (code == known.code) return &known;
  }
  if (code != "ERR") return nullptr;
  for (auto const& known : known_codes) {
    if (within(text, code_inside(known.code))) return &known;
  }
  // The server reads no more than ten words of somebody who has not logged in.
  if (within(text, "unauthenticated")) return find_code(text, "NOAUTH");
  // Redis 6.2 says so without a code.
  if (within(text, "can't run this command or subcommand")) return find_code(text, "NOPERM");
  if (within(text, "can't access at least one of the keys")) return find_code(text, "NOPERM");
  return nullptr;
}

server_error judge_login(result const& from, std::string_view operation) {
  // The text of a refused login or SELECT, as the server gave it.
  static constexpr std::array lasting{"WRONGPASS",
                                      "NOAUTH",
                                      "NOPERM",
                                      "invalid password",
                                      "no password is set",
                                      "without any password configured",
                                      "DB index is out of range",
                                      "invalid DB index"};
  server_error verdict{refusal::not_applied, std::string{operation} + ": " + from.error};
  for (std::string_view text : lasting) {
    if (within(from.error, text)) verdict.kind = refusal::misconfigured;
  }
  return verdict;
}

}  // namespace

bool has_code(reply_view answer, std::string_view code) {
  auto const own = answer.error_code();
  return own == code || (own == "ERR" && within(answer.text(), code_inside(code)));
}

server_error judge(result const& from, std::string_view operation) {
  if (!from.replied()) {
    if (from.why == failure::refused) return judge_login(from, operation);
    auto const kind = from.outcome == fate::not_sent ? refusal::not_applied : refusal::unknown;
    return {kind, std::string{operation} + ": " + from.error};
  }
  if (!from.answer.is_error()) {
    return {refusal::unknown,
            std::string{operation} + ": unexpected reply: " + from.answer.describe()};
  }
  auto const text = from.answer.text();
  server_error verdict{refusal::unknown,
                       std::string{operation} + ": the server refused: " + std::string{text}};
  if (auto const* known = find_code(text, from.answer.error_code())) verdict.kind = known->kind;
  verdict.message += remedy(from.answer);
  return verdict;
}

std::string remedy(reply_view answer) {
  auto const* const known = find_code(answer.text(), answer.error_code());
  if (known == nullptr) return {};
  return known->code == "NOPERM" ? all_rights() : std::string{known->remedy};
}

}  // namespace fenceguard::redis
