#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fenceguard::test_servers {

struct user_ids {
  uid_t uid;
  gid_t gid;
};

// The user that servers which refuse root run as: `postgres` when this process is root, else
// nothing (the servers run as the current user).
std::optional<user_ids> server_user();

// A child process that never outlives this one: it is killed with the object, and by the kernel
// (PR_SET_PDEATHSIG) when this process dies in whatever way. In a forked copy of this process the
// object does nothing.
class child_process {
 public:
  struct options {
    std::vector<std::string> command;           // [0] is looked up in PATH
    std::vector<std::string> environment = {};  // NAME=value, added to this process's own
    std::filesystem::path log = {};             // stdout and stderr are appended; empty: discarded
    std::filesystem::path directory = {};       // working directory; empty: this process's own
    bool as_server_user = false;                // see server_user()
  };

  // Throws std::system_error when no process could be made. A command that cannot be executed ends
  // with status 127 and says why in the log.
  explicit child_process(options const& how);
  ~child_process();
  child_process(child_process&& other) noexcept;
  child_process& operator=(child_process&& other) noexcept;
  child_process(child_process const&) = delete;
  child_process& operator=(child_process const&) = delete;

  pid_t pid() const noexcept { return pid_; }
  bool running();
  void signal(int number) const;
  // The exit status (128 + n when ended by signal n), or nothing when `bound` passed first.
  std::optional<int> wait(std::chrono::milliseconds bound);
  // SIGKILL, also to a stopped process, and waits for its end.
  void kill() noexcept;

 private:
  void reap(int raw_status) noexcept;

  pid_t pid_ = -1;
  pid_t owner_ = -1;
  std::optional<int> status_;
};

// Runs a command to its end; throws std::runtime_error with the output when it fails or hangs.
void run(child_process::options how);
// The same, and returns the output.
std::string output_of(child_process::options how);

// The last lines of a log, for messages.
std::string tail(std::filesystem::path const& log);

// Direct children of a process.
std::vector<pid_t> children_of(pid_t parent);

}  // namespace fenceguard::test_servers
