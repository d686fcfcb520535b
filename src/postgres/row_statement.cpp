#include "postgres/row_statement.hpp"

#include <algorithm>
#include <fenceguard/core/errors.hpp>

namespace fenceguard::postgres {
namespace {

// Reads a part that is written in double quotes; `at` moves behind it.
std::string read_quoted_part(std::string const& table, std::size_t& at) {
  std::string part;
  for (++at; at < table.size(); ++at) {
    if (table[at] == '"') {
      ++at;
      if (at == table.size() || table[at] != '"') return part;
    }
    part += table[at];
  }
  throw invalid_request{"the table's name " + table + " has a quote that does not end"};
}

std::string read_part(std::string const& table, std::size_t& at) {
  if (at < table.size() && table[at] == '"') return read_quoted_part(table, at);
  std::size_t const end = std::min(table.find('.', at), table.size());
  std::string part = table.substr(at, end - at);
  at = end;
  return part;
}

}  // namespace

std::string quoted_name(std::string const& name) {
  if (name.empty()) throw invalid_request{"a name of a table or column is empty"};
  if (name.find('\0') != std::string::npos) {
    throw invalid_request{"a name of a table or column holds a NUL character"};
  }
  std::string quoted = "\"";
  for (char const c : name) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted += '"';
}

std::string quoted_table(std::string const& table) {
  std::size_t at = 0;
  std::string quoted = quoted_name(read_part(table, at));
  if (at == table.size()) return quoted;
  if (table[at] == '.') {
    ++at;
    quoted += '.' + quoted_name(read_part(table, at));
    if (at == table.size()) return quoted;
  }
  throw invalid_request{"the table's name must be table or schema.table, not " + table};
}

std::vector<std::string> quoted_names(std::vector<std::string> const& names,
                                      std::string_view what) {
  if (names.empty()) throw invalid_request{"no " + std::string{what} + " is given"};
  std::vector<std::string> quoted;
  quoted.reserve(names.size());
  for (std::string const& name : names) {
    quoted.push_back(quoted_name(name));
    if (std::find(quoted.begin(), quoted.end() - 1, quoted.back()) != quoted.end() - 1) {
      throw invalid_request{std::string{what} + " " + quoted.back() + " is given twice"};
    }
  }
  return quoted;
}

void require_values(std::vector<std::string> const& columns, parameters const& values,
                    std::string_view what) {
  if (columns.size() == values.size()) return;
  throw invalid_request{std::to_string(values.size()) + " values are given for " +
                        std::to_string(columns.size()) + " " + std::string{what}};
}

std::string joined(std::vector<std::string> const& parts, std::string_view separator) {
  std::string all;
  for (std::string const& part : parts) {
    if (!all.empty()) all += separator;
    all += part;
  }
  return all;
}

void array_text::add(std::optional<std::string> const& element) {
  if (text_.size() > 1) text_ += ',';
  if (!element) {
    text_ += "NULL";
    return;
  }
  text_ += '"';
  for (char const c : *element) {
    if (c == '"' || c == '\\') text_ += '\\';
    text_ += c;
  }
  text_ += '"';
}

std::string bound_arguments::bind(parameter value) {
  all_.push_back(std::move(value));
  return "$" + std::to_string(all_.size());
}

std::string bound_arguments::bind_key(std::vector<std::string> const& quoted_columns,
                                      row_key const& which) {
  require_values(quoted_columns, which.values, "key columns");
  std::string condition;
  for (std::size_t i = 0; i < quoted_columns.size(); ++i) {
    if (i > 0) condition += " AND ";
    condition += quoted_columns[i] + " = " + bind(which.values[i]);
  }
  return condition;
}

void require_one_row(pqxx::result const& written, std::string const& table) {
  if (written.affected_rows() <= 1) return;
  throw invalid_request{"the key columns do not identify one row of " + table + ": " +
                        std::to_string(written.affected_rows()) +
                        " rows were written, roll the transaction back"};
}

}  // namespace fenceguard::postgres
