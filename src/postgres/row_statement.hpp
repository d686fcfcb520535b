#pragma once

#include <fenceguard/postgres/row_fence.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// What the statements of row_fence, compare_and_set, transition and insert_once have in common.
namespace fenceguard::postgres {

// A name in double quotes, as it stands. Throws invalid_request where it is empty or holds a NUL.
std::string quoted_name(std::string const& name);

// A table's name with or without its schema; each part as it stands, or already in double quotes
// (for a name that holds a dot). Throws invalid_request.
std::string quoted_table(std::string const& table);

// Names one by one. Throws invalid_request where there is none, or one twice.
std::vector<std::string> quoted_names(std::vector<std::string> const& names, std::string_view what);

// Throws invalid_request unless there is one value for each column.
void require_values(std::vector<std::string> const& columns, parameters const& values,
                    std::string_view what);

std::string joined(std::vector<std::string> const& parts, std::string_view separator);

// An array's text form.
class array_text {
 public:
  void add(std::optional<std::string> const& element);
  std::string text() && { return std::move(text_ += '}'); }

 private:
  std::string text_{"{"};
};

// The arguments of a statement under construction.
class bound_arguments {
 public:
  bound_arguments() = default;
  explicit bound_arguments(parameters given) : all_{std::move(given)} {}

  // Adds a value and says how the statement names it: $1, $2, …
  std::string bind(parameter value);
  // `"a" = $1 AND "b" = $2`
  std::string bind_key(std::vector<std::string> const& quoted_columns, row_key const& which);

  parameters const& all() const noexcept { return all_; }

 private:
  parameters all_{};
};

// How often a refused write is tried again where the row does not explain the refusal: it was
// inserted or replaced in between. After that the row can be read but not written (row-level
// security, or a trigger that suppresses the write).
inline constexpr int rounds_before_giving_up = 4;

// Throws invalid_request where a statement that names one row wrote several: the key is none.
void require_one_row(pqxx::result const& written, std::string const& table);

}  // namespace fenceguard::postgres
