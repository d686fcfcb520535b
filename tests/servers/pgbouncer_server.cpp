#include "servers/pgbouncer_server.hpp"

#include <libpq-fe.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "servers/free_port.hpp"
#include "servers/wait.hpp"

namespace fenceguard::test_servers {

pgbouncer_server::pgbouncer_server(postgres_server const& behind,
                                   std::map<std::string, std::string> configuration)
    : configuration_(std::move(configuration)) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    port_ = free_port();
    if (try_start(behind)) return;
    process_.reset();
  }
  throw std::runtime_error("pgbouncer does not start: " +
                           tail(directory_.path() / "pgbouncer.log"));
}

pgbouncer_server::~pgbouncer_server() = default;

bool pgbouncer_server::try_start(postgres_server const& behind) {
  std::map<std::string, std::string> all{{"listen_addr", "127.0.0.1"},
                                         {"listen_port", std::to_string(port_)},
                                         {"unix_socket_dir", directory_.path().string()},
                                         {"auth_type", "any"},
                                         {"pool_mode", "transaction"},
                                         {"max_client_conn", "500"},
                                         {"ignore_startup_parameters", "extra_float_digits"}};
  for (auto const& [name, text] : configuration_) all[name] = text;
  auto const file = directory_.path() / "pgbouncer.ini";
  {
    std::ofstream out{file};
    out << "[databases]\n* = host=127.0.0.1 port=" << behind.port() << " user=postgres\n"
        << "[pgbouncer]\n";
    for (auto const& [name, text] : all) out << name << " = " << text << '\n';
  }
  // Debian keeps it in /usr/sbin, which is in no ordinary user's PATH.
  std::string const program =
      std::filesystem::exists("/usr/sbin/pgbouncer") ? "/usr/sbin/pgbouncer" : "pgbouncer";
  process_.emplace(child_process::options{.command = {program, file.string()},
                                          .log = directory_.path() / "pgbouncer.log",
                                          .directory = "/",
                                          .as_server_user = true});
  bool accepted = false;
  std::string const target = "host=" + directory_.path().string() +
                             " port=" + std::to_string(port_) +
                             " user=postgres dbname=postgres connect_timeout=5";
  bool const settled = eventually([&] {
    accepted = ::PQping(target.c_str()) == PQPING_OK;
    return accepted || !process_->running();
  });
  return settled && accepted && process_->running();
}

std::string pgbouncer_server::url(std::string const& database) const {
  return "postgresql://postgres@127.0.0.1:" + std::to_string(port_) + "/" + database;
}

}  // namespace fenceguard::test_servers
