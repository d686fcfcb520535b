#include "redis/wire.hpp"

#include <array>
#include <charconv>
#include <fenceguard/core/errors.hpp>
#include <utility>

namespace fenceguard::redis {
namespace {

void append_length(std::string& wire, char kind, std::size_t length) {
  std::array<char, 24> digits;
  digits[0] = kind;
  char* end = std::to_chars(digits.data() + 1, digits.data() + digits.size() - 2, length).ptr;
  *end++ = '\r';
  *end++ = '\n';
  wire.append(digits.data(), end);
}

}  // namespace

void append_header(std::string& wire, std::size_t words) { append_length(wire, '*', words); }

void append_word(std::string& wire, std::string_view word) {
  append_length(wire, '$', word.size());
  wire.append(word);
  wire.append("\r\n", 2);
}

command::command(std::initializer_list<std::string_view> words)
    : command{std::span<std::string_view const>{words.begin(), words.size()}} {}

command::command(std::span<std::string_view const> words) {
  if (words.empty()) throw invalid_request{"a Redis command needs at least one word"};
  std::size_t size = wire_size(0);
  for (auto word : words) size += wire_size(word.size());
  wire_.reserve(size);
  append_header(wire_, words.size());
  for (auto word : words) append_word(wire_, word);
}

command command::from_wire(std::string wire) noexcept {
  command result;
  result.wire_ = std::move(wire);
  return result;
}

}  // namespace fenceguard::redis
