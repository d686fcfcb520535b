#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace fenceguard::redis {

/// One command in the form in which Redis reads it: an array of bulk strings (RESP2). Words are
/// binary safe. https://redis.io/docs/latest/develop/reference/protocol-spec/
///
/// Immutable once built; may be read from several threads.
class command {
 public:
  /// For example `command{"SET", key, value, "PX", "1000"}`. No word at all throws
  /// invalid_request.
  command(std::initializer_list<std::string_view> words);
  explicit command(std::span<std::string_view const> words);

  /// Text that is complete already, built by the functions below.
  static command from_wire(std::string wire) noexcept;

  [[nodiscard]] std::string_view wire() const noexcept { return wire_; }

 private:
  command() = default;

  std::string wire_;
};

/// The bytes that a word of this size takes on the wire, at most; for one reserve() before
/// building.
[[nodiscard]] constexpr std::size_t wire_size(std::size_t word) noexcept { return word + 26; }

/// Starts a command of `words` words.
void append_header(std::string& wire, std::size_t words);
void append_word(std::string& wire, std::string_view word);

}  // namespace fenceguard::redis
