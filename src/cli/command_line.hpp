#pragma once

#include <CLI/CLI.hpp>
#include <exception>
#include <functional>
#include <iosfwd>
#include <string>

#include "cli/report.hpp"

namespace fenceguard::cli {

/// The program's exit statuses.
enum exit_status : int { done = 0, finding = 1, usage = 2, unreachable = 3 };

/// What every command has: where the servers are, how to print, and what the user has chosen.
struct session {
  std::string database_url{};  ///< Empty: libpq's own environment variables.
  std::string redis_url{};
  bool json = false;
  report out{};
  std::ostream* text_out = nullptr;  ///< For output that is no report: SQL, DDL.
  std::ostream* text_err = nullptr;  ///< For remarks beside the output.
  /// Set by the chosen command's callback; returns an exit status.
  std::function<int()> chosen{};
};

/// What the error says, without the line ends that the server puts there.
std::string message_of(std::exception const& failed);

/// Parses and runs. Never throws: errors are printed to `err` and become exit statuses. One thread.
int run(int argc, char const* const* argv, std::ostream& out, std::ostream& err);

// Each adds commands to the program; one function for each file of commands.
void add_database_commands(CLI::App& program, session& with);   // database_commands.cpp
void add_migration_commands(CLI::App& program, session& with);  // migration_commands.cpp
void add_lease_commands(CLI::App& program, session& with);      // lease_commands.cpp
void add_doctor(CLI::App& program, session& with);              // doctor.cpp

}  // namespace fenceguard::cli
