#pragma once

#include <chrono>
#include <string>

/// One process that wants to pay from the account. The two kinds differ only in how they hold the
/// lock and how they write; compare plain_holder.cpp with fenced_holder.cpp.
struct holder {
  std::string name;           ///< "A" or "B"
  int amount;                 ///< what it pays
  bool stopped_before_write;  ///< whether it is stopped between its read and its write
  std::string database_url;
  std::string redis_url;
};

inline constexpr std::chrono::milliseconds lease_ttl{1500};

/// Exit statuses of a holder's process.
inline constexpr int paid = 0;
inline constexpr int refused = 3;

/// SET NX PX with a random value, renewed by nobody, released by compare-and-delete: the lock that
/// most services have.
int run_plain_holder(holder const& me);

/// The same with fenceguard.
int run_fenced_holder(holder const& me);

/// Prints "  A: text" at once.
void say(holder const& me, std::string const& text);

/// Stops this process with SIGSTOP where `me` says so, as a hypervisor or a debugger would.
void stop_here(holder const& me);
