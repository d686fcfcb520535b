#pragma once

#include <doctest/doctest.h>

#include <exception>
#include <fenceguard/testing/conformance.hpp>
#include <functional>
#include <string>

namespace fenceguard::tests {

/// Runs the whole suite inside a doctest test case: every case is a check of its own, and at least
/// `least` of them must have been possible in this environment. `before_each`, where there is one,
/// is told how many have run so far.
inline void run_conformance(testing::conformance_environment const& environment, int least,
                            std::function<void(int ran)> const& before_each = {}) {
  int ran = 0;
  for (auto const& one : testing::conformance_cases()) {
    if (before_each) before_each(ran);
    std::string const name{one.name};
    if (!one.applies(environment)) {
      MESSAGE("skipped: " << name);
      continue;
    }
    ++ran;
    std::string failure;
    try {
      one.run(environment);
    } catch (std::exception const& failed) {
      failure = failed.what();
    }
    CHECK_MESSAGE(failure.empty(), name << ": " << failure);
  }
  CHECK(ran >= least);
}

}  // namespace fenceguard::tests
