#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <type_traits>

namespace fenceguard::test_servers {

// Runs `body` in a forked child, which has 20 s, and returns its exit status: what `body` said, or
// 0 where it said true and 1 where it said false; 253 where it threw, 254 where there was no child,
// 255 where it was ended by a signal.
template <class Body>
int status_of_child(Body const& body) {
  pid_t const child = ::fork();
  if (child == 0) {
    ::alarm(20);
    int status = 253;
    try {
      if constexpr (std::is_same_v<decltype(body()), bool>) {
        status = body() ? 0 : 1;
      } else {
        status = body();
      }
    } catch (...) {
    }
    ::_exit(status);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return 254;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

}  // namespace fenceguard::test_servers
