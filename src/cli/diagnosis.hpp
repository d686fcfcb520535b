#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace fenceguard::cli {

/// `error`: a promise can be broken. `warning`: it takes one more mistake, or nobody can tell.
/// `notice`: good to know, and for the operator to decide.
enum class severity { error, warning, notice };

[[nodiscard]] char const* to_string(severity what) noexcept;

/// One thing that is not as it should be on a live server.
struct diagnosis {
  severity grade = severity::notice;
  std::string subject{};  ///< What it is about: a setting, a table, a role, the clock.
  std::string finding{};
  std::string reason{};
  std::string remedy{};    ///< A statement or setting where one mends it, else what to do.
  bool unchecked = false;  ///< The server refused the look: nothing is known.
};

struct examination {
  /// Transactions older than this are found.
  std::chrono::seconds old_transaction{300};
  /// A server's clock may differ from this machine's by as much.
  std::chrono::seconds clock_tolerance{5};
  /// This machine's wall clock.
  std::function<std::chrono::system_clock::time_point()> now = [] {
    return std::chrono::system_clock::now();
  };
};

/// Compares a server's clock, read between two looks at this machine's, with the middle of the two.
/// Time spent on the way counts as tolerance. Empty, or one finding.
[[nodiscard]] std::vector<diagnosis> compare_clocks(examination const& how,
                                                    std::chrono::system_clock::time_point before,
                                                    std::chrono::system_clock::time_point server,
                                                    std::chrono::system_clock::time_point after);

}  // namespace fenceguard::cli
