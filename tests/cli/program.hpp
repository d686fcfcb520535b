#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "cli/command_line.hpp"

// Runs the program as a user would, in this process.
struct program_run {
  int status;
  std::string out;
  std::string err;
};

inline program_run run_program(std::vector<std::string> words) {
  words.insert(words.begin(), "fenceguard");
  std::vector<char const*> arguments;
  for (auto const& word : words) arguments.push_back(word.c_str());
  std::ostringstream out;
  std::ostringstream err;
  int const status =
      fenceguard::cli::run(static_cast<int>(arguments.size()), arguments.data(), out, err);
  return {status, out.str(), err.str()};
}
