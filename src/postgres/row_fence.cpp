#include <algorithm>
#include <charconv>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/row_fence.hpp>
#include <numeric>

#include "postgres/row_statement.hpp"

namespace fenceguard::postgres {
namespace {

char const* const token_column = "\"fencing_token\"";

std::optional<fencing_token> token_of(pqxx::field const& column, std::string const& table) {
  if (column.is_null()) {
    throw schema_mismatch{"a row of " + table +
                          " has no fencing_token: run SELECT fenceguard.add_row_fence('" + table +
                          "')"};
  }
  auto const value = column.as<std::int64_t>();
  if (value == 0) return std::nullopt;  // never written under a token
  return fencing_token{value};
}

// What the row says when it is asked by its key alone.
struct found_row {
  bool exists = false;
  std::optional<fencing_token> token{};
};

found_row ask(executor const& tx, std::string const& table,
              std::vector<std::string> const& key_columns, row_key const& which) {
  bound_arguments args;
  std::string const condition = args.bind_key(key_columns, which);
  pqxx::result const rows = tx.exec(
      std::string{"SELECT "} + token_column + " FROM " + table + " WHERE " + condition, args.all());
  if (rows.empty()) return {};
  return {.exists = true, .token = token_of(rows[0][0], table)};
}

// Sends a conditional write until it was made or the row says why it was not.
write_result write(executor const& tx, std::string const& table,
                   std::vector<std::string> const& key_columns, row_key const& which,
                   fencing_token token, std::string const& sql, bound_arguments const& args) {
  found_row row;
  for (int round = 0; round < rounds_before_giving_up; ++round) {
    pqxx::result const written = tx.exec(sql, args.all());
    require_one_row(written, table);
    if (written.affected_rows() == 1) return {.verdict = verdict::applied, .rows = written};
    row = ask(tx, table, key_columns, which);
    if (!row.exists) return {.verdict = verdict::row_missing};
    if (row.token && *row.token >= token) {
      return {.verdict = verdict::stale, .current = row.token};
    }
  }
  return {.verdict = verdict::row_missing, .current = row.token};
}

}  // namespace

char const* to_string(verdict verdict) noexcept {
  switch (verdict) {
    case verdict::applied:
      return "applied";
    case verdict::stale:
      return "stale";
    case verdict::row_missing:
      return "row_missing";
    case verdict::row_exists:
      return "row_exists";
  }
  return "unknown";
}

row_fence::row_fence(std::string const& table, std::vector<std::string> key_columns)
    : table_{quoted_table(table)}, key_columns_{quoted_names(key_columns, "key column")} {}

write_result row_fence::update_with(executor tx, fencing_token token, row_key const& which,
                                    std::string const& set, parameters args) const {
  if (set.find_first_not_of(" \t\n") == std::string::npos) {
    throw invalid_request{"the SET list is empty; claim() raises the token alone"};
  }
  bound_arguments bound{std::move(args)};
  std::string const presented = bound.bind(token);
  // The line break ends a comment of the caller's.
  std::string const sql = "UPDATE " + table_ + " SET " + set + "\n, " + token_column + " = " +
                          presented + " WHERE " + bound.bind_key(key_columns_, which) + " AND " +
                          token_column + " < " + presented;
  return write(tx, table_, key_columns_, which, token, sql, bound);
}

write_result row_fence::insert_with(executor tx, fencing_token token, row_key const& which,
                                    std::vector<std::string> const& columns,
                                    parameters args) const {
  require_values(columns, args, "columns");
  require_values(key_columns_, which.values, "key columns");
  bound_arguments bound;
  std::vector<std::string> names{token_column};
  std::vector<std::string> values{bound.bind(token)};
  for (std::size_t i = 0; i < key_columns_.size(); ++i) {
    names.push_back(key_columns_[i]);
    values.push_back(bound.bind(which.values[i]));
  }
  for (std::size_t i = 0; i < columns.size(); ++i) {
    names.push_back(quoted_name(columns[i]));
    values.push_back(bound.bind(std::move(args[i])));
  }
  std::string const sql = "INSERT INTO " + table_ + " (" + joined(names, ", ") + ") VALUES (" +
                          joined(values, ", ") + ") ON CONFLICT (" + joined(key_columns_, ", ") +
                          ") DO NOTHING";
  for (int round = 0; round < rounds_before_giving_up; ++round) {
    if (tx.exec(sql, bound.all()).affected_rows() == 1) return {.verdict = verdict::applied};
    found_row const row = ask(tx, table_, key_columns_, which);
    if (row.exists) return {.verdict = verdict::row_exists, .current = row.token};
    // Gone in between: once more.
  }
  return {.verdict = verdict::row_exists};
}

write_result row_fence::remove(executor tx, fencing_token token, row_key const& which) const {
  bound_arguments bound;
  std::string const condition = bound.bind_key(key_columns_, which);
  std::string const sql = "DELETE FROM " + table_ + " WHERE " + condition + " AND " + token_column +
                          " < " + bound.bind(token);
  return write(tx, table_, key_columns_, which, token, sql, bound);
}

write_result row_fence::claim(executor tx, fencing_token token, row_key const& which) const {
  bound_arguments bound;
  std::string const presented = bound.bind(token);
  std::string const sql = "UPDATE " + table_ + " SET " + token_column + " = " + presented +
                          " WHERE " + bound.bind_key(key_columns_, which) + " AND " + token_column +
                          " < " + presented + " RETURNING *";
  return write(tx, table_, key_columns_, which, token, sql, bound);
}

namespace {

using row_update = row_fence::row_update;
using positions = std::vector<std::size_t>;

// The rows in the order of their keys, which is the order in which they are sent: two calls over
// the same rows then meet them in the same order in most plans.
positions in_key_order(std::span<row_update const> rows) {
  auto const before = [&](std::size_t a, std::size_t b) {
    auto const& left = rows[a].which.values;
    auto const& right = rows[b].which.values;
    return std::lexicographical_compare(
        left.begin(), left.end(), right.begin(), right.end(),
        [](parameter const& x, parameter const& y) { return x.text() < y.text(); });
  };
  positions order(rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), before);
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (!before(order[i - 1], order[i])) {
      throw invalid_request{"rows " + std::to_string(std::min(order[i - 1], order[i])) + " and " +
                            std::to_string(std::max(order[i - 1], order[i])) +
                            " name the same key"};
    }
  }
  return order;
}

// An array of integers, {1,2,3}; NULL where it has none.
positions positions_in(pqxx::field const& array) {
  positions found;
  if (array.is_null()) return found;
  std::string_view text{array.c_str()};
  while (text.size() > 1) {
    text.remove_prefix(1);  // the brace, or a comma
    std::size_t position = 0;
    auto const end = std::from_chars(text.data(), text.data() + text.size(), position).ptr;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    found.push_back(position);
  }
  return found;
}

// One column of the chosen rows as an array.
template <class Value>
std::string column(positions const& chosen, Value const& value_of) {
  array_text array;
  for (std::size_t const position : chosen) array.add(value_of(position).text());
  return std::move(array).text();
}

// `fenceguard_input`: the chosen rows as a table with the columns k1, k2, …, v1, v2, …, token and
// position. The types are the table's own, without a look-up: an argument of coalesce() takes the
// type of the other one.
struct input_table {
  input_table(std::string const& table, std::vector<std::string> const& key_columns,
              std::vector<std::string> const& columns, std::span<row_update const> rows,
              positions const& chosen) {
    std::vector<std::string> arrays;
    std::vector<std::string> names;
    auto const add = [&](std::string const& name, std::string const& of, std::string array) {
      arrays.push_back("coalesce(" + args.bind(std::move(array)) + ", ARRAY(SELECT " + of +
                       " FROM " + table + " WHERE false))");
      names.push_back(name);
    };
    for (std::size_t k = 0; k < key_columns.size(); ++k) {
      add("k" + std::to_string(k), key_columns[k],
          column(chosen, [&](std::size_t at) { return rows[at].which.values[k]; }));
    }
    for (std::size_t v = 0; v < columns.size(); ++v) {
      add("v" + std::to_string(v), columns[v],
          column(chosen, [&](std::size_t at) { return rows[at].values[v]; }));
    }
    arrays.push_back(args.bind(column(chosen, [&](std::size_t at) {
      return parameter{rows[at].token};
    })) + "::bigint[]");
    // unnest() takes several arrays only where it is written without its schema.
    from = "unnest(" + joined(arrays, ", ") + ") WITH ORDINALITY AS fenceguard_input(" +
           joined(names, ", ") + ", token, position)";
    for (std::size_t k = 0; k < key_columns.size(); ++k) {
      condition += (k == 0 ? "" : " AND ") + ("fenceguard_row." + key_columns[k]) +
                   " = fenceguard_input.k" + std::to_string(k);
    }
  }

  std::string from{};
  std::string condition{};
  bound_arguments args{};
};

class many_updates {
 public:
  many_updates(executor const& tx, std::string const& table,
               std::vector<std::string> const& key_columns, std::vector<std::string> columns,
               std::span<row_update const> rows)
      : tx_{tx},
        table_{table},
        key_columns_{key_columns},
        columns_{std::move(columns)},
        rows_{rows},
        open_{in_key_order(rows)},
        results_(rows.size(), write_result{.verdict = verdict::row_missing}) {}

  std::vector<write_result> run() && {
    for (int round = 0; round < rounds_before_giving_up && !open_.empty(); ++round) {
      write();
      if (!open_.empty()) explain();
    }
    return std::move(results_);
  }

 private:
  // Writes the rows that are still open; those that were written are open no more. Their positions
  // come as one array: a row of its own for each would cost more than the write.
  void write() {
    input_table const input{table_, key_columns_, columns_, rows_, open_};
    std::string set;
    for (std::size_t v = 0; v < columns_.size(); ++v) {
      set += columns_[v] + " = fenceguard_input.v" + std::to_string(v) + ", ";
    }
    pqxx::result const answer = tx_.exec(
        "WITH written AS (UPDATE " + table_ + " AS fenceguard_row SET " + set + token_column +
            " = fenceguard_input.token FROM " + input.from + " WHERE " + input.condition +
            " AND fenceguard_row." + token_column + " < fenceguard_input.token" +
            " RETURNING fenceguard_input.position) SELECT pg_catalog.array_agg(position) FROM "
            "written",
        input.args.all());
    std::vector<bool> applied(open_.size(), false);
    for (std::size_t const position : positions_in(answer[0][0])) {
      if (applied.at(position - 1)) {
        throw invalid_request{"the key columns do not identify one row of " + table_ +
                              ": roll the transaction back"};
      }
      applied[position - 1] = true;
    }
    settle(applied, [](std::size_t) { return write_result{.verdict = verdict::applied}; });
  }

  // Asks the rows that were not written by their keys alone. One whose token does not explain that
  // stays open.
  void explain() {
    input_table const input{table_, key_columns_, {}, rows_, open_};
    pqxx::result const answer = tx_.exec(
        "SELECT fenceguard_input.position, fenceguard_row." + std::string{token_column} + " FROM " +
            input.from + " JOIN " + table_ + " AS fenceguard_row ON " + input.condition,
        input.args.all());
    std::vector<bool> settled(open_.size(), true);
    std::vector<std::optional<fencing_token>> tokens(open_.size());
    for (pqxx::row const& row : answer) {
      std::size_t const at = row[0].as<std::size_t>() - 1;
      tokens.at(at) = token_of(row[1], table_);
      results_[open_[at]].current = tokens[at];
      settled[at] = tokens[at] && *tokens[at] >= rows_[open_[at]].token;
    }
    settle(settled, [&](std::size_t at) {
      if (!tokens[at]) return write_result{.verdict = verdict::row_missing};
      return write_result{.verdict = verdict::stale, .current = tokens[at]};
    });
  }

  template <class Result>
  void settle(std::vector<bool> const& settled, Result const& result_of) {
    positions still_open;
    for (std::size_t at = 0; at < open_.size(); ++at) {
      if (settled[at]) {
        results_[open_[at]] = result_of(at);
      } else {
        still_open.push_back(open_[at]);
      }
    }
    open_ = std::move(still_open);
  }

  executor const& tx_;
  std::string const& table_;
  std::vector<std::string> const& key_columns_;
  std::vector<std::string> columns_;
  std::span<row_update const> rows_;
  positions open_;
  std::vector<write_result> results_;
};

}  // namespace

std::vector<write_result> row_fence::update_many(executor tx,
                                                 std::vector<std::string> const& columns,
                                                 std::span<row_update const> rows) const {
  std::vector<std::string> quoted;
  if (!columns.empty()) quoted = quoted_names(columns, "column");
  for (row_update const& row : rows) {
    require_values(key_columns_, row.which.values, "key columns");
    require_values(columns, row.values, "columns");
  }
  if (rows.empty()) return {};
  return many_updates{tx, table_, key_columns_, std::move(quoted), rows}.run();
}

}  // namespace fenceguard::postgres
