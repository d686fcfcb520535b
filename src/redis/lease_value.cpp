#include "redis/lease_value.hpp"

#include <charconv>
#include <chrono>
#include <cstdint>

namespace fenceguard::redis {
namespace {

// Cuts the text before the next space off `rest`.
std::optional<std::string_view> next_word(std::string_view& rest) {
  auto const space = rest.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  auto const word = rest.substr(0, space);
  rest.remove_prefix(space + 1);
  return word;
}

std::optional<std::int64_t> number(std::optional<std::string_view> word) {
  if (!word) return std::nullopt;
  std::int64_t value = 0;
  auto const* const end = word->data() + word->size();
  auto const [stop, failed] = std::from_chars(word->data(), end, value);
  if (failed != std::errc{} || stop != end || value < 0) return std::nullopt;
  return value;
}

}  // namespace

std::optional<holder_info> parse_lease(std::string_view value) {
  auto const holder = next_word(value);
  if (!holder || holder->size() != 32) return std::nullopt;
  auto const token = number(next_word(value));
  auto const since = number(next_word(value));
  if (!token || !since || *token > fencing_token::max_value) return std::nullopt;
  holder_info info;
  info.holder = *holder;
  if (*token != 0) info.token.emplace(*token);
  info.since = std::chrono::system_clock::time_point{std::chrono::microseconds{*since}};
  info.label = value;
  return info;
}

}  // namespace fenceguard::redis
