#include "servers/child_process.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "servers/temporary_directory.hpp"
#include "servers/wait.hpp"

using namespace std::chrono_literals;
namespace ts = fenceguard::test_servers;

TEST_CASE("child_process reports the exit status and the output") {
  CHECK(ts::output_of({.command = {"sh", "-c", "echo $GREETING"},
                       .environment = {"GREETING=hello"}}) == "hello\n");
  CHECK_THROWS_WITH_AS(ts::run({.command = {"sh", "-c", "echo why >&2; exit 3"}}),
                       "sh failed with status 3: why\n", std::runtime_error);
  CHECK_THROWS_AS(ts::run({.command = {"/nonexistent/program"}}), std::runtime_error);
}

TEST_CASE("child_process outlives the thread that made it, and dies with the object") {
  pid_t pid = -1;
  {
    std::optional<ts::child_process> child;
    std::thread{[&] {
      child.emplace(ts::child_process::options{.command = {"sleep", "300"}});
    }}.join();
    pid = child->pid();
    CHECK_FALSE(child->wait(100ms).has_value());
    child->signal(SIGSTOP);
  }
  CHECK(::kill(pid, 0) != 0);
}

// The other half of the next test, in a process of its own: what forks must not start threads
// afterwards (ThreadSanitizer forbids it).
TEST_CASE("a parent that will be killed" * doctest::skip()) {
  char const* const file = std::getenv("PID_FILE");
  REQUIRE(file != nullptr);
  ts::child_process const child{{.command = {"sleep", "300"}}};
  std::ofstream{file + std::string{".new"}} << child.pid() << '\n';
  std::filesystem::rename(file + std::string{".new"}, file);
  ::pause();
}

TEST_CASE("child_process is killed when its parent is killed") {
  ts::temporary_directory const scratch;
  auto const file = scratch.path() / "pid";
  ts::child_process parent{
      {.command = {"/proc/self/exe", "--no-skip", "--test-case=a parent that will be killed"},
       .environment = {"PID_FILE=" + file.string()}}};
  REQUIRE(ts::eventually([&] { return std::filesystem::exists(file); }));
  pid_t pid = 0;
  std::ifstream{file} >> pid;
  REQUIRE(pid > 0);
  CHECK(::kill(pid, 0) == 0);
  parent.kill();
  // Gone, or a zombie that nobody above us reaps.
  CHECK(ts::eventually([&] {
    std::ifstream stat{"/proc/" + std::to_string(pid) + "/stat"};
    std::string id, name, state;
    stat >> id >> name >> state;
    return !stat || state == "Z";
  }));
}

TEST_CASE("temporary_directory is removed, also after its owner was killed") {
  std::filesystem::path kept;
  {
    ts::temporary_directory const one;
    kept = one.path();
    CHECK(std::filesystem::is_directory(kept));
  }
  CHECK_FALSE(std::filesystem::exists(kept));

  ts::temporary_directory const mine;
  auto const file = mine.path() / "theirs";
  pid_t const other = ::fork();
  if (other == 0) {
    ts::temporary_directory const theirs;
    std::ofstream{file.string() + ".new"} << theirs.path().string();
    std::filesystem::rename(file.string() + ".new", file);
    ::pause();
    ::_exit(0);
  }
  REQUIRE(ts::eventually([&] { return std::filesystem::exists(file); }));
  std::string theirs;
  std::ifstream{file} >> theirs;
  ts::remove_abandoned_directories();
  CHECK(std::filesystem::is_directory(theirs));
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  ts::remove_abandoned_directories();
  CHECK_FALSE(std::filesystem::exists(theirs));
  CHECK(std::filesystem::is_directory(mine.path()));
}
