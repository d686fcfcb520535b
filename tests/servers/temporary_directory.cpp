#include "servers/temporary_directory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <mutex>
#include <system_error>
#include <utility>

#include "servers/child_process.hpp"

namespace fenceguard::test_servers {
namespace {

namespace fs = std::filesystem;

constexpr char prefix[] = "fenceguard-test-";

[[noreturn]] void fail(std::string const& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

void remove_abandoned_directories() {
  std::error_code ignored;
  for (auto const& entry : fs::directory_iterator(fs::temp_directory_path(), ignored)) {
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    int const lock = ::open((entry.path() / ".lock").c_str(), O_RDWR | O_CLOEXEC);
    if (lock < 0) continue;  // not ours to touch, or just being made
    if (::flock(lock, LOCK_EX | LOCK_NB) == 0) fs::remove_all(entry.path(), ignored);
    ::close(lock);
  }
}

temporary_directory::temporary_directory() : owner_(::getpid()) {
  fs::path const parent = fs::temp_directory_path();
  static std::once_flag swept;
  std::call_once(swept, remove_abandoned_directories);

  std::string name = (parent / (std::string{prefix} + "XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) fail("mkdtemp " + name);
  path_ = name;
  // Locked before it gets the name that the sweep above looks for.
  fs::path const early = path_ / ".lock.new";
  lock_ = ::open(early.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0 || ::flock(lock_, LOCK_EX | LOCK_NB) != 0) fail("lock " + early.string());
  fs::rename(early, path_ / ".lock");
  if (auto const user = server_user(); user && ::chown(path_.c_str(), user->uid, user->gid) != 0) {
    fail("chown " + path_.string());
  }
}

temporary_directory::temporary_directory(temporary_directory&& other) noexcept
    : path_(std::exchange(other.path_, {})),
      lock_(std::exchange(other.lock_, -1)),
      owner_(std::exchange(other.owner_, -1)) {}

temporary_directory::~temporary_directory() {
  if (owner_ != ::getpid()) return;  // moved from, or a forked child's copy
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  ::close(lock_);
}

}  // namespace fenceguard::test_servers
