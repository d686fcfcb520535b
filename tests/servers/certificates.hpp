#pragma once

#include <filesystem>
#include <string>

#include "servers/temporary_directory.hpp"

namespace fenceguard::test_servers {

// A certificate authority of its own and what it issues, made with the program openssl in a
// temporary directory. One thread at a time.
class certificates {
 public:
  struct pair {
    std::filesystem::path certificate;
    std::filesystem::path key;
  };

  // Throws std::runtime_error where openssl fails.
  certificates();

  std::filesystem::path authority() const { return directory_.path() / "ca.crt"; }

  // For these names ("IP:127.0.0.1,DNS:localhost"); below zero days it has run out.
  pair issue(std::string const& names, int days = 2);

 private:
  void openssl(std::string const& arguments) const;

  temporary_directory directory_;
  int issued_ = 0;
};

}  // namespace fenceguard::test_servers
