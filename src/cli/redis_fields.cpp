#include "cli/redis_fields.hpp"

#include <charconv>
#include <sstream>

namespace fenceguard::cli {

redis_fields redis_fields::from_lines(std::string_view text) {
  redis_fields all;
  std::istringstream lines{std::string{text}};
  for (std::string line; std::getline(lines, line);) {
    auto const colon = line.find(':');
    if (colon == std::string::npos || line.front() == '#') continue;
    auto const end = line.find_last_not_of("\r\n");
    all.set(line.substr(0, colon), line.substr(colon + 1, end - colon));
  }
  return all;
}

redis_fields redis_fields::from_pairs(redis::reply_view answer) {
  redis_fields all;
  for (std::size_t i = 0; i + 1 < answer.size(); i += 2) {
    all.set(answer[i].text(), answer[i + 1].text());
  }
  return all;
}

std::string redis_fields::operator[](std::string const& name) const {
  auto const found = all_.find(name);
  return found == all_.end() ? std::string{} : found->second;
}

std::int64_t redis_fields::number(std::string const& name) const {
  std::string const text = (*this)[name];
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace fenceguard::cli
