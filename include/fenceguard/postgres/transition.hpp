#pragma once

#include <fenceguard/postgres/executor.hpp>
#include <fenceguard/postgres/parameter.hpp>
#include <fenceguard/postgres/row_fence.hpp>
#include <optional>
#include <string>
#include <vector>

namespace fenceguard::postgres {

/// What became of a transition.
enum class transition_verdict {
  applied,        ///< The row was in one of the states `from` and is in `to` now.
  already_there,  ///< The row was in `to` before: by an earlier try, or by somebody else.
  refused,        ///< The row is in a state from which there is no such step.
  row_missing,    ///< There is no such row (or row-level security hides it).
};

[[nodiscard]] char const* to_string(transition_verdict verdict) noexcept;

/// The answer of a transition. `current` is the row's state, in PostgreSQL's text form; nothing
/// where the row is missing, or where its state is NULL.
struct transition_result {
  transition_verdict verdict;
  std::optional<std::string> current{};
};

/// A step of a state machine.
struct transition_step {
  /// The states from which the step may be taken; at least one, and not `to`.
  std::vector<std::string> from{};
  std::string to{};
};

/// A row's state as its own guard, for those who need no lease: each step is taken by one writer,
/// and a repeat finds that it was taken. `UPDATE t SET state = <to>, … WHERE <key> AND state IN
/// (<from>)`: one round trip when it is applied, a second one only when it is not.
///
/// Use it where a request moves a row from one named state to the next (paid → shipped) and the
/// same state is never entered twice; where it can be, a late repeat would look like a first try,
/// and compare_and_set or a fence is needed. `already_there` does not tell who took the step.
///
/// Immutable after construction: may be used from any thread with transactions of its own. Throws
/// invalid_request for the wrong number of key values, a step without `from` or with `to` among
/// them, and for a key that names several rows (roll back then); and what libpqxx throws.
class transition {
 public:
  /// `table` may be qualified ("shop.orders"); names are quoted as they stand. The state's column
  /// may have any type with a text form: text, an enum, an integer. Throws invalid_request for an
  /// empty name or no key column.
  transition(std::string const& table, std::vector<std::string> const& key_columns,
             std::string const& state_column = "state");

  [[nodiscard]] transition_result apply(executor tx, row_key const& which,
                                        transition_step const& step) const {
    return apply_with(tx, which, step, "", {});
  }

  /// `set` is what else is written with the step: a SET list with $1, $2, … for `args`.
  template <class... Args>
  [[nodiscard]] transition_result apply(executor tx, row_key const& which,
                                        transition_step const& step, std::string const& set,
                                        Args&&... args) const {
    return apply_with(tx, which, step, set, parameters{parameter{std::forward<Args>(args)}...});
  }
  [[nodiscard]] transition_result apply_with(executor tx, row_key const& which,
                                             transition_step const& step, std::string const& set,
                                             parameters args) const;

 private:
  std::string table_;
  std::vector<std::string> key_columns_;
  std::string state_column_;
};

}  // namespace fenceguard::postgres
