#pragma once

#include <chrono>
#include <fenceguard/core/lease_store.hpp>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fenceguard::testing {

/// The servers under test, as the conformance suite sees them. What cannot be done to them is left
/// empty; the cases that need it are skipped then.
struct conformance_environment {
  /// Makes another store over the servers under test, with these settings. Required.
  std::function<std::unique_ptr<fenceguard::lease_store>(lease_store_settings const&)> make_store{};

  /// Whether two stores see each other's leases, as those of two processes would.
  bool shared = true;

  /// Ends a lease on the servers, as if its ttl had run out. Nobody is told.
  std::function<void(std::string const& resource)> expire{};

  /// Ends the servers and starts them again, with or without their leases. Returns when they serve.
  std::function<void()> restart{};

  /// Keeps the servers from answering (SIGSTOP), and lets them go on. resume() is called after
  /// every pause(), also when a case fails.
  std::function<void()> pause{};
  std::function<void()> resume{};

  /// Used for everything but the bounds that are tested.
  lease_store_settings settings{};

  /// The ttl of leases that are to run out: long enough for some requests to a busy server.
  std::chrono::milliseconds short_ttl{1'000};

  /// How much later than the bound a call may return on a busy machine.
  std::chrono::milliseconds tolerance{2'000};

  /// How long something that must happen sooner or later may take.
  std::chrono::milliseconds patience{30'000};

  /// First part of the names of all resources used. Each case adds something random of its own, so
  /// that cases and runs do not meet.
  std::string prefix{"conformance"};
};

/// A store does not do what every lease store must do. The message says what was expected, where.
class conformance_failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct conformance_case {
  std::string_view name;
  /// Whether the environment has what the case needs.
  bool (*applies)(conformance_environment const& environment);
  /// Throws conformance_failure, or whatever a store threw that it should not have thrown. Some
  /// cases fork() the calling process or start threads.
  void (*run)(conformance_environment const& environment);
};

/// What every lease store has to pass, for use with any test framework:
///
///     for (auto const& one : conformance_cases()) {
///       if (one.applies(environment)) one.run(environment);
///     }
[[nodiscard]] std::span<conformance_case const> conformance_cases();

}  // namespace fenceguard::testing
