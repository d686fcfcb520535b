#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fenceguard::cli {

/// What a command has to say: rows of named values, printed as aligned columns for people or as one
/// JSON array for programs.
class report {
 public:
  /// Adds a row; the first row's names, in their order, are the columns.
  void add(std::vector<std::pair<std::string, nlohmann::ordered_json>> const& row);

  [[nodiscard]] bool empty() const noexcept { return rows_.empty(); }

  /// `none` is printed where there is no row, and only for people.
  void print(std::ostream& to, bool as_json, std::string const& none) const;

 private:
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

}  // namespace fenceguard::cli
