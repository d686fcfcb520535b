#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "servers/child_process.hpp"
#include "servers/temporary_directory.hpp"

namespace fenceguard::test_servers {

// Where initdb and postgres are: FENCEGUARD_TEST_POSTGRES_BIN, else the newest under
// /usr/lib/postgresql, else `pg_config --bindir`.
std::filesystem::path postgres_bin();

// One database of a server.
struct test_database {
  std::string name;
  std::string url;       // over TCP
  std::string url_unix;  // over the Unix socket
};

// A private PostgreSQL server on a free port of 127.0.0.1 and on a Unix socket. Its superuser is
// `postgres`, without a password; as root the server runs as the system's user `postgres`.
// The port stays the same over stop() and start(). One thread at a time.
class postgres_server {
 public:
  using rows = std::vector<std::vector<std::optional<std::string>>>;
  using settings = std::map<std::string, std::string>;

  struct options {
    settings configuration = {};  // postgresql.conf, e.g. {{"wal_level", "logical"}}
    bool durable = false;         // fsync; off by default, for speed
    // Every server is a copy of one cluster, so all have the same system identifier. With this one
    // is made from scratch (takes a second).
    bool own_identity = false;
    bool start = true;
  };

  struct standby_options {
    std::optional<int> port = {};       // where the standby reaches its primary (a relay's port)
    std::string application_name = {};  // for synchronous_standby_names
    settings configuration = {};
  };

  // SIGINT: sessions end, clean shutdown. SIGQUIT: no checkpoint, recovery at the next start.
  // SIGKILL of all its processes: a crash.
  enum class stop_mode { fast, immediate, crash };

  postgres_server();
  explicit postgres_server(options how);
  ~postgres_server();
  postgres_server(postgres_server&& other) noexcept = default;

  // A streaming standby of `primary`, made by pg_basebackup, started and connected.
  static postgres_server standby_of(postgres_server& primary, standby_options how);
  static postgres_server standby_of(postgres_server& primary);
  // A copy of a running server by pg_basebackup, not started: without a signal file it starts as if
  // it were the original.
  static postgres_server base_backup_of(postgres_server& primary);

  int port() const noexcept { return port_; }
  pid_t pid() const noexcept;
  std::string host() const { return "127.0.0.1"; }
  std::string socket_directory() const { return directory_.path().string(); }
  std::filesystem::path data_directory() const { return directory_.path() / "data"; }
  std::string log() const;
  std::string url(std::string const& database = "postgres",
                  std::string const& user = "postgres") const;
  std::string url_unix(std::string const& database = "postgres",
                       std::string const& user = "postgres") const;

  // An empty database that no other test has, or a copy of `from` (to which nobody may be
  // connected).
  test_database fresh_database(std::string const& from = "template1");

  // Returns once connections are accepted. Throws std::runtime_error with the log when they are
  // not.
  void start();
  void stop(stop_mode mode = stop_mode::fast);
  void restart(stop_mode mode = stop_mode::fast);
  bool running();

  // SIGSTOP and SIGCONT of the server and all its backends.
  void pause();
  void resume();

  // Takes effect at the next start(), or with reload() where the setting allows it.
  void configure(std::string const& name, std::string const& value);
  void reload();
  void promote();  // returns once the standby is a primary

  // SQL over a connection of its own on the Unix socket, as superuser. Throws std::runtime_error
  // with the server's message.
  rows query(std::string const& sql, std::string const& database = "postgres") const;
  // First column of the first row; "" for NULL. Throws when there is no row.
  std::string value(std::string const& sql, std::string const& database = "postgres") const;

 private:
  void write_configuration() const;
  bool try_start();
  void copy_from(postgres_server& primary, bool standby);

  options options_;
  temporary_directory directory_;
  int port_ = 0;
  bool started_before_ = false;
  int databases_ = 0;
  std::optional<child_process> process_;
};

}  // namespace fenceguard::test_servers
