#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "redis/reply.hpp"

namespace fenceguard::cli {

/// Named values, as INFO, CONFIG GET and SENTINEL give them; one that the server does not have is
/// empty.
class redis_fields {
 public:
  /// `name:value` lines, with headings that begin with '#'.
  [[nodiscard]] static redis_fields from_lines(std::string_view text);
  /// Names and values in turn.
  [[nodiscard]] static redis_fields from_pairs(redis::reply_view answer);

  void set(std::string_view name, std::string_view value) { all_[std::string{name}] = value; }

  [[nodiscard]] std::string operator[](std::string const& name) const;
  [[nodiscard]] bool has(std::string const& name) const { return all_.count(name) != 0; }
  /// 0 where it is no number.
  [[nodiscard]] std::int64_t number(std::string const& name) const;

 private:
  std::map<std::string, std::string> all_{};
};

}  // namespace fenceguard::cli
