#include "cli/report.hpp"

#include <algorithm>
#include <iomanip>
#include <ostream>

namespace fenceguard::cli {
namespace {

std::string plain(nlohmann::ordered_json const& value) {
  if (value.is_null()) return "-";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

void report::add(std::vector<std::pair<std::string, nlohmann::ordered_json>> const& row) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (auto const& [name, value] : row) object[name] = value;
  rows_.push_back(std::move(object));
}

void report::print(std::ostream& to, bool as_json, std::string const& none) const {
  if (as_json) {
    to << rows_.dump(2) << '\n';
    return;
  }
  if (rows_.empty()) {
    if (!none.empty()) to << none << '\n';
    return;
  }
  std::vector<std::vector<std::string>> lines(1 + rows_.size());
  for (auto const& [name, value] : rows_.front().items()) lines[0].push_back(name);
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    for (auto const& name : lines[0]) lines[i + 1].push_back(plain(rows_[i].at(name)));
  }
  std::vector<std::size_t> widths(lines[0].size(), 0);
  for (auto const& line : lines) {
    for (std::size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], line[c].size());
  }
  for (auto const& line : lines) {
    for (std::size_t c = 0; c < line.size(); ++c) {
      bool const last = c + 1 == line.size();
      to << std::left << std::setw(last ? 0 : static_cast<int>(widths[c])) << line[c]
         << (last ? "\n" : "  ");
    }
  }
}

}  // namespace fenceguard::cli
