#include "cli/diagnosis.hpp"

#include <cstdlib>

namespace fenceguard::cli {

char const* to_string(severity what) noexcept {
  switch (what) {
    case severity::error:
      return "error";
    case severity::warning:
      return "warning";
    case severity::notice:
      return "notice";
  }
  return "?";
}

std::vector<diagnosis> compare_clocks(examination const& how,
                                      std::chrono::system_clock::time_point before,
                                      std::chrono::system_clock::time_point server,
                                      std::chrono::system_clock::time_point after) {
  using std::chrono::duration_cast;
  using std::chrono::milliseconds;
  auto const half = (after - before) / 2;
  auto const offset = server - (before + half);
  if (std::chrono::abs(offset) <= how.clock_tolerance + std::chrono::abs(half)) return {};
  auto const shown = duration_cast<milliseconds>(std::chrono::abs(offset)).count();
  return {
      {severity::warning, "clock",
       "the server is " + std::to_string(shown) + " ms " +
           (offset > offset.zero() ? "ahead of" : "behind") + " this machine",
       "leases and tokens are kept by the servers' clocks; one that is set right by a jump ends "
       "or prolongs every lease",
       "synchronise both by NTP, and let it slew rather than step"}};
}

}  // namespace fenceguard::cli
