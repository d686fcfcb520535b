#pragma once

#include <chrono>
#include <fenceguard/testing/conformance.hpp>
#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace fenceguard::testing {

/// The place of a call, where it is a default argument. (clang 14 has no std::source_location.)
struct call_site {
  char const* file;
  int line;

  [[nodiscard]] static constexpr call_site current(char const* file = __builtin_FILE(),
                                                   int line = __builtin_LINE()) noexcept {
    return {file, line};
  }
};

/// Throws conformance_failure where `held` is false.
void expect(bool held, std::string const& what, call_site where = call_site::current());

/// One case's view of the environment.
class conformance_world {
 public:
  explicit conformance_world(conformance_environment const& environment);
  conformance_world(conformance_world const&) = delete;
  conformance_world& operator=(conformance_world const&) = delete;
  /// Resumes what is still paused.
  ~conformance_world();

  [[nodiscard]] conformance_environment const& environment() const noexcept { return environment_; }

  [[nodiscard]] std::unique_ptr<fenceguard::lease_store> make_store() const;
  [[nodiscard]] std::unique_ptr<fenceguard::lease_store> make_store(
      lease_store_settings const& settings) const;

  /// A name that no other case uses.
  [[nodiscard]] std::string resource(std::string const& name = "resource") const;

  void pause();
  void resume();

  /// Waits until `condition` holds; says whether it did within the environment's patience.
  template <class Condition>
  [[nodiscard]] bool eventually(Condition const& condition) const {
    auto const end = std::chrono::steady_clock::now() + environment_.patience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() >= end) return condition();
      std::this_thread::sleep_for(std::chrono::milliseconds{2});
    }
    return true;
  }

  /// Acquires and expects a grant; names the request in the failure.
  [[nodiscard]] lease must_acquire(fenceguard::lease_store& store, lease_request const& request,
                                   call_site where = call_site::current()) const;

 private:
  conformance_environment const& environment_;
  std::string const prefix_;
  bool paused_ = false;
};

class stopwatch {
 public:
  [[nodiscard]] std::chrono::steady_clock::duration elapsed() const noexcept {
    return std::chrono::steady_clock::now() - begin_;
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// Whether the call throws that error, and nothing else.
template <class Error, class Call>
[[nodiscard]] bool throws(Call const& call) {
  try {
    static_cast<void>(call());
  } catch (Error const&) {
    return true;
  }
  return false;
}

// The cases, by file.
[[nodiscard]] std::span<conformance_case const> conformance_of_grants();
[[nodiscard]] std::span<conformance_case const> conformance_of_waiting();
[[nodiscard]] std::span<conformance_case const> conformance_of_endings();
[[nodiscard]] std::span<conformance_case const> conformance_of_faults();

// What a case may need.
[[nodiscard]] inline bool always(conformance_environment const&) { return true; }
[[nodiscard]] inline bool shared(conformance_environment const& of) { return of.shared; }
[[nodiscard]] inline bool can_expire(conformance_environment const& of) {
  return static_cast<bool>(of.expire);
}
[[nodiscard]] inline bool can_restart(conformance_environment const& of) {
  return static_cast<bool>(of.restart);
}
[[nodiscard]] inline bool can_pause(conformance_environment const& of) {
  return of.pause && of.resume;
}

}  // namespace fenceguard::testing
