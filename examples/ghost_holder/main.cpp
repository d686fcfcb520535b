// The ghost holder, twice: with a plain Redis lock, and with fenceguard.
//
// Two real processes share an account. A takes the lock, reads the balance and is stopped (SIGSTOP)
// for longer than its lock lives. B takes over and pays. A wakes up and writes what it computed.
//
// Environment: FENCEGUARD_DATABASE_URL, FENCEGUARD_REDIS_URL (redis://host:port). Exit status 0
// when the plain lock ended with a wrong ledger and fenceguard with a right one.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fenceguard/fenceguard.hpp>
#include <iostream>
#include <thread>

#include "holder.hpp"
#include "ledger.hpp"

namespace {

std::string environment(char const* name) {
  char const* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    throw std::runtime_error{std::string{"set "} + name + " (or run ./scripts/demo)"};
  }
  return value;
}

/// A process of its own, started anew from this program, so that nothing is shared with it.
class process {
 public:
  process(std::string const& kind, std::string const& name) : pid_{::fork()} {
    if (pid_ < 0) throw std::runtime_error{"fork failed"};
    if (pid_ == 0) {
      // A stopped process cannot be asked to end: it ends with the one that stopped it, also on
      // Ctrl-C.
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::execl("/proc/self/exe", "ghost_holder", kind.c_str(), name.c_str(), nullptr);
      ::_exit(127);
    }
  }
  process(process const&) = delete;
  process& operator=(process const&) = delete;
  ~process() {
    if (over_) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  void wait_until_stopped() const {
    int status = 0;
    if (::waitpid(pid_, &status, WUNTRACED) != pid_ || !WIFSTOPPED(status)) {
      throw std::runtime_error{"the process ended before it could be stopped"};
    }
  }
  void resume() const { ::kill(pid_, SIGCONT); }
  int wait_until_over() {
    int status = 0;
    if (::waitpid(pid_, &status, 0) != pid_) throw std::runtime_error{"waitpid failed"};
    over_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_;
  bool over_ = false;
};

struct outcome {
  int a;
  int b;
  ledger::state books;
};

outcome play(std::string const& kind, pqxx::connection& db) {
  process a{kind, "A"};
  a.wait_until_stopped();
  std::cout << "    A is stopped (SIGSTOP), longer than its lock lives: " << lease_ttl.count()
            << " ms" << std::endl;
  process b{kind, "B"};
  int const b_status = b.wait_until_over();
  a.resume();
  int const a_status = a.wait_until_over();
  return {a_status, b_status, ledger::read(db, kind)};
}

void report(ledger::state const& books) {
  std::cout << "    ledger: " << ledger::opening_balance << " at first, " << books.paid
            << " paid, balance " << books.balance << ": "
            << (books.right()
                    ? "RIGHT"
                    : "WRONG, " +
                          std::to_string(books.balance + books.paid - ledger::opening_balance) +
                          " out of nothing")
            << "\n"
            << std::endl;
}

int direct(std::string const& database_url) {
  fenceguard::postgres::migrate(database_url);
  pqxx::connection db{database_url};
  ledger::create(db, "plain");
  ledger::create(db, "fenced");
  {
    pqxx::work tx{db};  // also holds off clients that do not use the library at all
    tx.exec("SELECT fenceguard.protect('fenced_account', 'account/{id}')");
    tx.commit();
  }
  std::cout << "1. A plain Redis lock (SET NX PX, random value, compare-and-delete)" << std::endl;
  outcome const plain = play("plain", db);
  report(plain.books);

  std::cout << "2. fenceguard (the same lock and a fencing token that PostgreSQL checks)"
            << std::endl;
  outcome const fenced = play("fenced", db);
  try {
    pqxx::work tx{db};
    tx.exec("UPDATE fenced_account SET balance = 1000000 WHERE id = 42");
    tx.commit();
  } catch (pqxx::sql_error const& unguarded) {
    std::cout << "    psql, without any lease: REFUSED by PostgreSQL (" << unguarded.sqlstate()
              << ")\n";
  }
  outcome const after{fenced.a, fenced.b, ledger::read(db, "fenced")};
  report(after.books);

  bool const as_promised = plain.a == paid && plain.b == paid && !plain.books.right() &&
                           after.a == refused && after.b == paid && after.books.right();
  std::cout << (as_promised ? "The ghost writer was refused by the database.\n"
                            : "This did not go as it should: see above.\n");
  return as_promised ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  std::string const database_url = environment("FENCEGUARD_DATABASE_URL");
  std::string const redis_url = environment("FENCEGUARD_REDIS_URL");
  if (argc == 1) return direct(database_url);
  std::string const kind = argv[1];
  std::string const name = argc > 2 ? argv[2] : "";
  holder const me{name, name == "A" ? 300 : 500, name == "A", database_url, redis_url};
  return kind == "plain" ? run_plain_holder(me) : run_fenced_holder(me);
} catch (std::exception const& failed) {
  std::cerr << "ghost_holder: " << failed.what() << '\n';
  return 2;
}
