#include <iostream>

#include "cli/command_line.hpp"

int main(int argc, char** argv) { return fenceguard::cli::run(argc, argv, std::cout, std::cerr); }
