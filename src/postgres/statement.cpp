#include "postgres/statement.hpp"

#include <algorithm>
#include <array>

namespace fenceguard::postgres {
namespace {

constexpr std::string_view white_space = " \t\n\r\f\v";

// Past a comment that begins at the front, or nothing where none does. Comments with /* nest.
std::optional<std::string_view> past_comment(std::string_view text) {
  if (text.starts_with("--")) {
    std::size_t const end = text.find_first_of("\n\r");
    return end == std::string_view::npos ? std::string_view{} : text.substr(end);
  }
  if (!text.starts_with("/*")) return std::nullopt;
  int depth = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    if (text.substr(at).starts_with("/*")) {
      ++depth;
      at += 2;
    } else if (text.substr(at).starts_with("*/")) {
      at += 2;
      if (--depth == 0) return text.substr(at);
    } else {
      ++at;
    }
  }
  return std::string_view{};  // not closed: the server will say so
}

std::string_view past_blanks(std::string_view text, std::string_view blanks) {
  for (;;) {
    std::size_t const word = text.find_first_not_of(blanks);
    if (word == std::string_view::npos) return {};
    text.remove_prefix(word);
    auto const rest = past_comment(text);
    if (!rest) return text;
    text = *rest;
  }
}

bool in_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '$' || static_cast<unsigned char>(c) >= 0x80;
}

// Takes the next word off the front, in capitals. Only ASCII letters: keywords have no others.
std::string take_word(std::string_view& text, std::string_view blanks = white_space) {
  text = past_blanks(text, blanks);
  std::string word;
  while (!text.empty() && in_word(text.front())) {
    char const c = text.front();
    word += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    text.remove_prefix(1);
  }
  return word;
}

}  // namespace

std::optional<std::string> transaction_control(std::string_view statement) {
  constexpr std::array control{"BEGIN", "START", "COMMIT", "END", "ABORT"};
  std::string const first = take_word(statement, " \t\n\r\f\v;");
  if (std::find(control.begin(), control.end(), first) != control.end()) return first;
  if (first == "PREPARE") {
    // A statement may be prepared under any name but this one.
    if (take_word(statement) == "TRANSACTION") return "PREPARE TRANSACTION";
  } else if (first == "ROLLBACK") {
    std::string next = take_word(statement);
    if (next == "WORK" || next == "TRANSACTION") next = take_word(statement);
    if (next != "TO") return first;
  }
  return std::nullopt;
}

}  // namespace fenceguard::postgres
