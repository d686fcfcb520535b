#include "servers/child_process.hpp"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "servers/temporary_directory.hpp"
#include "servers/wait.hpp"

namespace fenceguard::test_servers {
namespace {

// Everything that the child needs between fork and exec, made before the fork: no allocation after
// it.
struct prepared {
  std::vector<char*> argv;
  std::vector<std::string> environment_text;
  std::vector<char*> environment;
  std::string log;
  std::string directory;
  std::optional<user_ids> user;
  pid_t parent = -1;
};

prepared prepare(child_process::options const& how) {
  prepared p;
  for (auto const& word : how.command) p.argv.push_back(const_cast<char*>(word.c_str()));
  p.argv.push_back(nullptr);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string const name = std::string{*entry}.substr(0, std::strcspn(*entry, "=") + 1);
    bool replaced = false;
    for (auto const& added : how.environment) replaced = replaced || added.starts_with(name);
    if (!replaced) p.environment_text.emplace_back(*entry);
  }
  p.environment_text.insert(p.environment_text.end(), how.environment.begin(),
                            how.environment.end());
  for (auto& entry : p.environment_text) p.environment.push_back(entry.data());
  p.environment.push_back(nullptr);
  p.log = how.log.empty() ? "/dev/null" : how.log.string();
  p.directory = how.directory.string();
  if (how.as_server_user) p.user = server_user();
  p.parent = ::getpid();
  return p;
}

[[noreturn]] void die(char const* what) {
  char const* why = std::strerror(errno);
  for (char const* part : {what, ": ", why, "\n"}) {
    if (::write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  }
  ::_exit(127);
}

[[noreturn]] void become(prepared const& p) {
  ::setsid();  // a terminal's Ctrl-C is for the test, not for its servers
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int number : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::signal(number, SIG_DFL);

  int const in = ::open("/dev/null", O_RDONLY);
  int const out = ::open(p.log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (in < 0 || out < 0) die(p.log.c_str());
  ::dup2(in, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(out, STDERR_FILENO);
  // The test's own connections must not stay open in a server.
  if (::syscall(SYS_close_range, 3U, ~0U, 0U) != 0) {
    for (int fd = 3; fd < 1024; ++fd) ::close(fd);
  }
  if (!p.directory.empty() && ::chdir(p.directory.c_str()) != 0) die(p.directory.c_str());
  if (p.user) {
    if (::syscall(SYS_setgroups, 0, nullptr) != 0) die("setgroups");
    if (::syscall(SYS_setresgid, p.user->gid, p.user->gid, p.user->gid) != 0) die("setresgid");
    if (::syscall(SYS_setresuid, p.user->uid, p.user->uid, p.user->uid) != 0) die("setresuid");
  }
  // After the change of user, which would clear it.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) die("prctl");
  if (::getppid() != p.parent) ::_exit(127);
  ::execvpe(p.argv[0], p.argv.data(), p.environment.data());
  die(p.argv[0]);
}

// PR_SET_PDEATHSIG fires when the *thread* that forked ends, so one thread that never ends forks.
class spawner {
 public:
  pid_t fork(prepared const& p) {
    std::packaged_task<pid_t()> task{[&p] {
      pid_t const pid = ::fork();
      if (pid < 0) throw std::system_error(errno, std::generic_category(), "fork");
      if (pid == 0) become(p);
      return pid;
    }};
    auto result = task.get_future();
    {
      std::lock_guard lock{mutex_};
      if (owner_ != ::getpid()) {  // the first use, or a forked copy that has no such thread
        owner_ = ::getpid();
        std::thread{[this] { work(); }}.detach();
      }
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
    return result.get();
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock lock{mutex_};
      wake_.wait(lock, [this] { return !tasks_.empty(); });
      auto task = std::move(tasks_.front());
      tasks_.erase(tasks_.begin());
      lock.unlock();
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::packaged_task<pid_t()>> tasks_;
  pid_t owner_ = -1;
};

spawner& the_spawner() {
  static auto* const instance = new spawner;  // its thread never ends, so neither may it
  return *instance;
}

}  // namespace

std::optional<user_ids> server_user() {
  if (::geteuid() != 0) return std::nullopt;
  passwd const* const entry = ::getpwnam("postgres");
  if (entry == nullptr) throw std::runtime_error("root needs a user `postgres` to run servers as");
  return user_ids{entry->pw_uid, entry->pw_gid};
}

child_process::child_process(options const& how) : owner_(::getpid()) {
  prepared const p = prepare(how);
  pid_ = the_spawner().fork(p);
}

child_process::child_process(child_process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), owner_(other.owner_), status_(other.status_) {}

child_process& child_process::operator=(child_process&& other) noexcept {
  if (this != &other) {
    kill();
    pid_ = std::exchange(other.pid_, -1);
    owner_ = other.owner_;
    status_ = other.status_;
  }
  return *this;
}

child_process::~child_process() { kill(); }

void child_process::reap(int raw) noexcept {
  status_ = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
}

bool child_process::running() {
  if (pid_ < 0 || status_) return false;
  int raw = 0;
  if (::waitpid(pid_, &raw, WNOHANG) != pid_) return true;
  reap(raw);
  return false;
}

void child_process::signal(int number) const {
  if (pid_ > 0 && !status_ && owner_ == ::getpid()) ::kill(pid_, number);
}

std::optional<int> child_process::wait(std::chrono::milliseconds bound) {
  if (!eventually([this] { return !running(); }, bound)) return std::nullopt;
  return status_;
}

void child_process::kill() noexcept {
  if (pid_ < 0 || status_ || owner_ != ::getpid()) return;
  ::kill(pid_, SIGKILL);
  int raw = 0;
  while (::waitpid(pid_, &raw, 0) < 0) {
    if (errno != EINTR) return;
  }
  reap(raw);
}

std::string output_of(child_process::options how) {
  temporary_directory const scratch;
  how.log = scratch.path() / "output";
  child_process child{how};
  auto const status = child.wait(patience);
  std::ifstream file{how.log};
  std::stringstream text;
  text << file.rdbuf();
  if (status != 0) {
    throw std::runtime_error(
        how.command.at(0) + (status ? " failed with status " + std::to_string(*status) : " hangs") +
        ": " + text.str());
  }
  return text.str();
}

void run(child_process::options how) { output_of(std::move(how)); }

std::string tail(std::filesystem::path const& log) {
  std::ifstream file{log};
  std::stringstream text;
  text << file.rdbuf();
  std::string const all = text.str();
  return all.size() > 4000 ? all.substr(all.size() - 4000) : all;
}

std::vector<pid_t> children_of(pid_t parent) {
  auto const id = std::to_string(parent);
  std::ifstream file{"/proc/" + id + "/task/" + id + "/children"};
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

}  // namespace fenceguard::test_servers
