#include <algorithm>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/transition.hpp>

#include "postgres/row_statement.hpp"

namespace fenceguard::postgres {
namespace {

void require_step(transition_step const& step) {
  if (step.from.empty()) throw invalid_request{"a transition needs a state to come from"};
  if (std::find(step.from.begin(), step.from.end(), step.to) != step.from.end()) {
    throw invalid_request{"a transition must not lead from the state " + step.to + " to itself"};
  }
}

std::optional<std::string> text_of(pqxx::field const& column) {
  if (column.is_null()) return std::nullopt;
  return column.as<std::string>();
}

}  // namespace

char const* to_string(transition_verdict verdict) noexcept {
  switch (verdict) {
    case transition_verdict::applied:
      return "applied";
    case transition_verdict::already_there:
      return "already_there";
    case transition_verdict::refused:
      return "refused";
    case transition_verdict::row_missing:
      return "row_missing";
  }
  return "unknown";
}

transition::transition(std::string const& table, std::vector<std::string> const& key_columns,
                       std::string const& state_column)
    : table_{quoted_table(table)},
      key_columns_{quoted_names(key_columns, "key column")},
      state_column_{quoted_name(state_column)} {}

transition_result transition::apply_with(executor tx, row_key const& which,
                                         transition_step const& step, std::string const& set,
                                         parameters args) const {
  require_step(step);
  bound_arguments bound{std::move(args)};
  std::string sql = "UPDATE " + table_ + " SET " + state_column_ + " = " + bound.bind(step.to);
  if (set.find_first_not_of(" \t\n") != std::string::npos) sql += ", " + set + "\n";
  std::vector<std::string> from;
  for (std::string const& state : step.from) from.push_back(bound.bind(state));
  sql += " WHERE " + bound.bind_key(key_columns_, which) + " AND " + state_column_ + " IN (" +
         joined(from, ", ") + ") RETURNING " + state_column_;

  // The server compares: only it knows which texts are one state.
  bound_arguments key;
  std::string const reached = state_column_ + " = " + key.bind(step.to);
  std::vector<std::string> sources;
  for (std::string const& state : step.from) sources.push_back(key.bind(state));
  std::string const question = "SELECT " + state_column_ + ", " + reached + ", " + state_column_ +
                               " IN (" + joined(sources, ", ") + ") FROM " + table_ + " WHERE " +
                               key.bind_key(key_columns_, which);

  transition_result found{.verdict = transition_verdict::row_missing};
  for (int round = 0; round < rounds_before_giving_up; ++round) {
    pqxx::result const written = tx.exec(sql, bound.all());
    require_one_row(written, table_);
    if (written.size() == 1) {
      return {.verdict = transition_verdict::applied, .current = text_of(written[0][0])};
    }
    pqxx::result const rows = tx.exec(question, key.all());
    if (rows.empty()) return {.verdict = transition_verdict::row_missing};
    found.current = text_of(rows[0][0]);
    if (!found.current) return {.verdict = transition_verdict::refused};
    if (rows[0][1].as<bool>()) {
      return {.verdict = transition_verdict::already_there, .current = found.current};
    }
    if (!rows[0][2].as<bool>()) {
      return {.verdict = transition_verdict::refused, .current = found.current};
    }
  }
  return found;
}

}  // namespace fenceguard::postgres
