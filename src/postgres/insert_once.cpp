#include <algorithm>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/insert_once.hpp>

#include "postgres/row_statement.hpp"

namespace fenceguard::postgres {
namespace {

// `AND "a" IS NOT DISTINCT FROM $3 …` for the columns that say what was asked for.
std::string same_request(bound_arguments& bound, std::vector<std::string> const& request_columns,
                         std::vector<std::string> const& columns, parameters const& args) {
  std::string condition;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (!request_columns.empty() && std::find(request_columns.begin(), request_columns.end(),
                                              columns[i]) == request_columns.end()) {
      continue;
    }
    condition += " AND " + quoted_name(columns[i]) + " IS NOT DISTINCT FROM " + bound.bind(args[i]);
  }
  return condition;
}

}  // namespace

insert_once::insert_once(std::string const& table, std::vector<std::string> const& key_columns,
                         std::vector<std::string> request_columns)
    : table_{quoted_table(table)},
      key_columns_{quoted_names(key_columns, "key column")},
      request_columns_{std::move(request_columns)} {
  if (!request_columns_.empty()) quoted_names(request_columns_, "request column");
}

insert_once_result insert_once::insert_with(executor tx, row_key const& which,
                                            std::vector<std::string> const& columns,
                                            parameters const& args) const {
  require_values(columns, args, "columns");
  require_values(key_columns_, which.values, "key columns");
  for (std::string const& name : request_columns_) {
    if (std::find(columns.begin(), columns.end(), name) == columns.end()) {
      throw invalid_request{"the request column " + name + " is not among the inserted columns"};
    }
  }
  std::vector<std::string> names = key_columns_;
  for (std::string const& name : columns) names.push_back(quoted_name(name));
  bound_arguments bound;
  std::vector<std::string> values;
  for (parameter const& value : which.values) values.push_back(bound.bind(value));
  for (parameter const& value : args) values.push_back(bound.bind(value));
  std::string const sql = "INSERT INTO " + table_ + " (" + joined(names, ", ") + ") VALUES (" +
                          joined(values, ", ") + ") ON CONFLICT (" + joined(key_columns_, ", ") +
                          ") DO NOTHING RETURNING *";

  bound_arguments key;
  std::string const by_key = " FROM " + table_ + " WHERE " + key.bind_key(key_columns_, which);
  bound_arguments key_and_request{key.all()};
  std::string const same = same_request(key_and_request, request_columns_, columns, args);

  for (int round = 0; round < rounds_before_giving_up; ++round) {
    pqxx::result const inserted = tx.exec(sql, bound.all());
    if (!inserted.empty()) return {.replayed = false, .row = inserted};
    // A statement of its own: what a concurrent first try has just committed is not in the
    // snapshot of the statement that waited for it.
    pqxx::result const found = tx.exec("SELECT *" + by_key + same, key_and_request.all());
    if (!found.empty()) return {.replayed = true, .row = found};
    if (!tx.exec("SELECT 1" + by_key, key.all()).empty()) {
      throw key_reused{"the row of " + table_ + " was inserted for another request"};
    }
    // Gone in between: once more.
  }
  throw already_stored{"a row of " + table_ + " has this key and cannot be read"};
}

}  // namespace fenceguard::postgres
