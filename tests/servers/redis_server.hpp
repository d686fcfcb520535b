#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "servers/certificates.hpp"
#include "servers/child_process.hpp"
#include "servers/temporary_directory.hpp"

namespace fenceguard::test_servers {

// A reply of Redis, whole.
struct redis_reply {
  enum class kind { nil, integer, text, error, array };
  kind type = kind::nil;
  long long integer = 0;
  std::string text = {};  // also of an error
  std::vector<redis_reply> elements = {};

  bool is_error() const noexcept { return type == kind::error; }
};

// One command over TCP, on a connection of its own. An error reply is returned, not thrown; throws
// std::runtime_error when the server does not answer within `bound`.
redis_reply redis_command(int port, std::vector<std::string> const& words,
                          std::chrono::milliseconds bound = std::chrono::seconds{30});

// A private redis-server on a free port of 127.0.0.1 and on a Unix socket.
// The port stays the same over stop() and start(). One thread at a time.
class redis_server {
 public:
  // The port speaks TLS. The server trusts clients that `authority` has signed.
  struct tls {
    certificates::pair own;
    std::filesystem::path authority;
    bool demand_certificates = false;
  };
  struct options {
    bool persistent = false;    // append-only file, fsync on every write
    std::string password = {};  // requirepass
    std::vector<std::string> arguments =
        {};                                // added to the command line, e.g. {"--maxmemory", "1mb"}
    std::string program = "redis-server";  // another server that takes the same arguments
    bool start = true;
    std::optional<tls> encrypted = {};
  };

  enum class stop_mode { terminate, kill };  // SIGTERM, SIGKILL

  redis_server();
  explicit redis_server(options how);
  ~redis_server();
  redis_server(redis_server&&) = default;

  int port() const noexcept { return port_; }
  pid_t pid() const noexcept;
  // redis://[:password@]127.0.0.1:port/database, with TLS rediss://… and the authority's file
  std::string url(int database = 0) const;
  std::string url_unix() const;  // unix:///path
  std::string socket_path() const;

  // Returns once the server answers. Throws std::runtime_error with the log when it does not start.
  void start();
  void stop(stop_mode mode = stop_mode::terminate);
  // Without persistence the data is gone afterwards.
  void restart(stop_mode mode = stop_mode::terminate);
  bool running();

  // SIGSTOP and SIGCONT: connections stay open, nothing is answered.
  void pause();
  void resume();

  // Follows another server and waits until the first copy is complete. `port`: where to reach it
  // (a relay's port, for example); by default its own.
  void replica_of(redis_server const& primary, std::optional<int> port = {});
  void promote();  // REPLICAOF NO ONE

  // One command over a connection of its own. An error reply is returned, not thrown; throws
  // std::runtime_error when the server does not answer within `bound`.
  redis_reply command(std::vector<std::string> const& words,
                      std::chrono::milliseconds bound = std::chrono::seconds{30}) const;
  // The same behind ASKING, for a key that a cluster is moving to this server.
  redis_reply command_asking(std::vector<std::string> const& words) const;
  // A field of INFO, or nothing.
  std::optional<std::string> info(std::string const& section, std::string const& field) const;

 private:
  bool try_start();

  options options_;
  temporary_directory directory_;
  int port_ = 0;
  bool started_before_ = false;
  std::optional<child_process> process_;
};

}  // namespace fenceguard::test_servers
