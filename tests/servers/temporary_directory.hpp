#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

namespace fenceguard::test_servers {

// A directory under TMPDIR (else /tmp) that is removed with the object. What a killed test left
// behind is removed by the next test that makes one: a living owner holds a lock in its directory.
// As root it belongs to the user `postgres`, so that servers which refuse root can write to it.
class temporary_directory {
 public:
  temporary_directory();
  ~temporary_directory();
  temporary_directory(temporary_directory&& other) noexcept;
  temporary_directory& operator=(temporary_directory&&) = delete;
  temporary_directory(temporary_directory const&) = delete;
  temporary_directory& operator=(temporary_directory const&) = delete;

  std::filesystem::path const& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  int lock_ = -1;
  pid_t owner_ = -1;
};

// Removes what killed tests left behind.
void remove_abandoned_directories();

}  // namespace fenceguard::test_servers
