#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/compare_and_set.hpp>

#include "postgres/row_statement.hpp"

namespace fenceguard::postgres {

char const* to_string(compare_and_set_verdict verdict) noexcept {
  switch (verdict) {
    case compare_and_set_verdict::applied:
      return "applied";
    case compare_and_set_verdict::conflict:
      return "conflict";
    case compare_and_set_verdict::row_missing:
      return "row_missing";
  }
  return "unknown";
}

compare_and_set::compare_and_set(std::string const& table,
                                 std::vector<std::string> const& key_columns,
                                 std::string const& version_column)
    : table_{quoted_table(table)},
      key_columns_{quoted_names(key_columns, "key column")},
      version_column_{quoted_name(version_column)} {}

compare_and_set_result compare_and_set::update_with(executor tx, row_key const& which,
                                                    row_version expected, std::string const& set,
                                                    parameters args) const {
  if (set.find_first_not_of(" \t\n") == std::string::npos) {
    throw invalid_request{"the SET list is empty"};
  }
  bound_arguments bound{std::move(args)};
  std::string const condition = bound.bind_key(key_columns_, which);
  std::string const sql = "UPDATE " + table_ + " SET " + set + "\n, " + version_column_ + " = " +
                          version_column_ + " + 1 WHERE " + condition + " AND " + version_column_ +
                          " = " + bound.bind(expected.value) + " RETURNING " + version_column_;
  std::optional<row_version> found;
  for (int round = 0; round < rounds_before_giving_up; ++round) {
    pqxx::result const written = tx.exec(sql, bound.all());
    require_one_row(written, table_);
    if (written.size() == 1) {
      return {.verdict = compare_and_set_verdict::applied,
              .version = row_version{written[0][0].as<std::int64_t>()}};
    }
    bound_arguments key;
    std::string const question = "SELECT " + version_column_ + " FROM " + table_ + " WHERE " +
                                 key.bind_key(key_columns_, which);
    pqxx::result const rows = tx.exec(question, key.all());
    if (rows.empty()) return {.verdict = compare_and_set_verdict::row_missing};
    if (rows[0][0].is_null()) {
      throw invalid_request{"a row of " + table_ + " has no version: " + version_column_ +
                            " must be NOT NULL"};
    }
    found = row_version{rows[0][0].as<std::int64_t>()};
    if (*found != expected) {
      return {.verdict = compare_and_set_verdict::conflict, .version = found};
    }
  }
  return {.verdict = compare_and_set_verdict::row_missing, .version = found};
}

}  // namespace fenceguard::postgres
