#pragma once

#include <map>
#include <optional>
#include <string>

#include "servers/child_process.hpp"
#include "servers/postgres_server.hpp"
#include "servers/temporary_directory.hpp"

namespace fenceguard::test_servers {

// PgBouncer in transaction mode before a postgres_server, which must outlive it. One thread at a
// time.
class pgbouncer_server {
 public:
  // `configuration` goes into pgbouncer.ini, e.g. {{"default_pool_size", "1"}}.
  explicit pgbouncer_server(postgres_server const& behind,
                            std::map<std::string, std::string> configuration = {});
  ~pgbouncer_server();

  int port() const noexcept { return port_; }
  std::string url(std::string const& database = "postgres") const;

 private:
  bool try_start(postgres_server const& behind);

  std::map<std::string, std::string> configuration_;
  temporary_directory directory_;
  int port_ = 0;
  std::optional<child_process> process_;
};

}  // namespace fenceguard::test_servers
