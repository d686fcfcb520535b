#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace fenceguard::test_servers {

// How long anything in these fixtures may take; generous, since it is only ever used up by a
// failure.
inline constexpr std::chrono::seconds patience{60};

// Polls until `condition()` is true or `bound` has passed; returns what it saw last.
template <class Condition>
[[nodiscard]] bool eventually(Condition&& condition,
                              std::chrono::steady_clock::duration bound = patience) {
  auto const deadline = std::chrono::steady_clock::now() + bound;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= deadline) return condition();
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
  return true;
}

// As eventually(); throws std::runtime_error that names `what` when the bound passes.
template <class Condition>
void wait_until(std::string const& what, Condition&& condition,
                std::chrono::steady_clock::duration bound = patience) {
  if (!eventually(condition, bound)) throw std::runtime_error("waited in vain: " + what);
}

}  // namespace fenceguard::test_servers
