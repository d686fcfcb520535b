#include "servers/postgres_server.hpp"

#include <fcntl.h>
#include <libpq-fe.h>
#include <sys/file.h>
#include <unistd.h>

#include <cctype>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>

#include "servers/free_port.hpp"
#include "servers/wait.hpp"

namespace fenceguard::test_servers {
namespace {

namespace fs = std::filesystem;

void run_as_server_user(std::vector<std::string> command) {
  run({.command = std::move(command), .directory = "/", .as_server_user = true});
}

void make_cluster(fs::path const& data) {
  run_as_server_user({postgres_bin() / "initdb", "-D", data, "-U", "postgres", "--auth=trust",
                      "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"});
  std::ofstream{data / "postgresql.conf", std::ios::app} << "include_if_exists = 'test.conf'\n";
}

void copy_tree(fs::path const& from, fs::path const& to) {
  run({.command = {"cp", "-a", from, to}});
}

// A new cluster, made once per version of PostgreSQL and user, whichever test comes first.
fs::path cluster_template() {
  std::string key = output_of({.command = {postgres_bin() / "postgres", "--version"}});
  for (char& c : key) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.') c = '_';
  }
  key += std::to_string(::geteuid());
  fs::path const folder{FENCEGUARD_TEST_TEMPLATES};
  fs::create_directories(folder);
  fs::path const made = folder / key;

  int const lock = ::open((folder / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0 || ::flock(lock, LOCK_EX) != 0) throw std::runtime_error("lock " + folder.string());
  std::shared_ptr<void> const unlock{nullptr, [lock](void*) { ::close(lock); }};
  if (!fs::exists(made)) {
    // Made where the server's user may write, then moved.
    temporary_directory const scratch;
    make_cluster(scratch.path() / "data");
    fs::remove_all(made.string() + ".new");
    copy_tree(scratch.path() / "data", made.string() + ".new");
    fs::rename(made.string() + ".new", made);
  }
  return made;
}

using connection = std::unique_ptr<PGconn, decltype(&::PQfinish)>;
using result = std::unique_ptr<PGresult, decltype(&::PQclear)>;

}  // namespace

fs::path postgres_bin() {
  if (char const* chosen = std::getenv("FENCEGUARD_TEST_POSTGRES_BIN")) return chosen;
  int newest = 0;
  std::error_code ignored;
  for (auto const& entry : fs::directory_iterator("/usr/lib/postgresql", ignored)) {
    if (!fs::exists(entry.path() / "bin" / "initdb")) continue;
    newest = std::max(newest, std::atoi(entry.path().filename().c_str()));
  }
  if (newest > 0) return fs::path{"/usr/lib/postgresql"} / std::to_string(newest) / "bin";
  std::string folder = output_of({.command = {"pg_config", "--bindir"}});
  while (!folder.empty() && folder.back() == '\n') folder.pop_back();
  return folder;
}

postgres_server::postgres_server() : postgres_server(options{}) {}

postgres_server::postgres_server(options how) : options_(std::move(how)), port_(free_port()) {
  if (!options_.start) return;
  if (options_.own_identity) {
    make_cluster(data_directory());
  } else {
    copy_tree(cluster_template(), data_directory());
  }
  start();
}

postgres_server::~postgres_server() {
  if (!process_) return;
  try {
    stop(stop_mode::immediate);  // so that it removes its shared memory itself
  } catch (std::exception const&) {
    process_.reset();
  }
}

void postgres_server::copy_from(postgres_server& primary, bool standby) {
  std::vector<std::string> command{postgres_bin() / "pg_basebackup",
                                   "--pgdata",
                                   data_directory(),
                                   "--host",
                                   primary.socket_directory(),
                                   "--port",
                                   std::to_string(primary.port()),
                                   "--username",
                                   "postgres",
                                   "--wal-method",
                                   "stream",
                                   "--checkpoint",
                                   "fast",
                                   "--no-sync"};
  if (standby) command.emplace_back("--write-recovery-conf");
  run_as_server_user(std::move(command));
}

postgres_server postgres_server::base_backup_of(postgres_server& primary) {
  postgres_server copy{options{.configuration = primary.options_.configuration,
                               .durable = primary.options_.durable,
                               .start = false}};
  copy.copy_from(primary, false);
  return copy;
}

postgres_server postgres_server::standby_of(postgres_server& primary) {
  return standby_of(primary, standby_options{});
}

postgres_server postgres_server::standby_of(postgres_server& primary, standby_options how) {
  postgres_server standby{options{.configuration = primary.options_.configuration,
                                  .durable = primary.options_.durable,
                                  .start = false}};
  for (auto const& [name, text] : how.configuration) standby.options_.configuration[name] = text;
  standby.options_.configuration.erase("synchronous_standby_names");
  std::string const name = how.application_name.empty() ? "standby" : how.application_name;
  standby.options_.configuration["primary_conninfo"] =
      "host=127.0.0.1 port=" + std::to_string(how.port.value_or(primary.port())) +
      " user=postgres application_name=" + name;
  standby.copy_from(primary, true);
  // pg_basebackup -R writes its own primary_conninfo there, which would win.
  fs::resize_file(standby.data_directory() / "postgresql.auto.conf", 0);
  standby.start();
  wait_until("standby streams from its primary", [&] {
    return primary.value("SELECT count(*) FROM pg_stat_replication WHERE application_name = '" +
                         name + "' AND state = 'streaming'") != "0";
  });
  return standby;
}

pid_t postgres_server::pid() const noexcept { return process_ ? process_->pid() : -1; }

std::string postgres_server::log() const { return tail(directory_.path() / "postgres.log"); }

std::string postgres_server::url(std::string const& database, std::string const& user) const {
  return "postgresql://" + user + "@127.0.0.1:" + std::to_string(port_) + "/" + database;
}

std::string postgres_server::url_unix(std::string const& database, std::string const& user) const {
  return "postgresql:///" + database + "?host=" + socket_directory() +
         "&port=" + std::to_string(port_) + "&user=" + user;
}

test_database postgres_server::fresh_database(std::string const& from) {
  std::string const name = "test_" + std::to_string(++databases_);
  query("CREATE DATABASE " + name + " TEMPLATE " + from);
  return {name, url(name), url_unix(name)};
}

void postgres_server::write_configuration() const {
  settings all{{"listen_addresses", "127.0.0.1"},
               {"port", std::to_string(port_)},
               {"unix_socket_directories", socket_directory()},
               {"max_prepared_transactions", "16"},
               {"shared_buffers", "32MB"},
               {"timezone", "UTC"},
               {"log_line_prefix", "%m [%p] %a "}};
  if (!options_.durable) {
    all["fsync"] = "off";
    all["full_page_writes"] = "off";
  }
  for (auto const& [name, text] : options_.configuration) all[name] = text;
  std::ofstream file{data_directory() / "test.conf"};
  for (auto const& [name, text] : all) {
    file << name << " = '";
    for (char const c : text) file << (c == '\'' ? "''" : std::string{c});
    file << "'\n";
  }
}

bool postgres_server::try_start() {
  write_configuration();
  process_.emplace(
      child_process::options{.command = {postgres_bin() / "postgres", "-D", data_directory()},
                             .log = directory_.path() / "postgres.log",
                             .directory = "/",
                             .as_server_user = true});
  std::string const target = url_unix() + "&connect_timeout=5";
  bool accepted = false;
  bool const settled = eventually([&] {
    accepted = ::PQping(target.c_str()) == PQPING_OK;
    return accepted || !process_->running();
  });
  return settled && accepted && process_->running();
}

void postgres_server::start() {
  if (running()) return;
  for (int attempt = 0; attempt < 20; ++attempt) {
    if (try_start()) {
      started_before_ = true;
      return;
    }
    process_.reset();
    // Users know the old port by now; a port that was never announced is exchanged.
    if (!started_before_) port_ = free_port();
  }
  throw std::runtime_error("postgres does not start: " + log());
}

void postgres_server::stop(stop_mode mode) {
  if (!process_) return;
  if (mode == stop_mode::crash) {
    auto const backends = children_of(process_->pid());
    process_->signal(SIGSTOP);  // so that it cleans up after none of them
    for (pid_t const backend : backends) ::kill(backend, SIGKILL);
    process_.reset();
    return;
  }
  process_->signal(mode == stop_mode::fast ? SIGINT : SIGQUIT);
  resume();
  if (!process_->wait(patience)) throw std::runtime_error("postgres does not stop: " + log());
  process_.reset();
}

void postgres_server::restart(stop_mode mode) {
  stop(mode);
  start();
}

bool postgres_server::running() { return process_ && process_->running(); }

void postgres_server::pause() {
  if (!process_) return;
  process_->signal(SIGSTOP);
  for (pid_t const backend : children_of(process_->pid())) ::kill(backend, SIGSTOP);
}

void postgres_server::resume() {
  if (!process_) return;
  for (pid_t const backend : children_of(process_->pid())) ::kill(backend, SIGCONT);
  process_->signal(SIGCONT);
}

void postgres_server::configure(std::string const& name, std::string const& text) {
  options_.configuration[name] = text;
}

void postgres_server::reload() {
  write_configuration();
  std::string const before = value("SELECT pg_conf_load_time()");
  query("SELECT pg_reload_conf()");
  wait_until("configuration loaded anew",
             [&] { return value("SELECT pg_conf_load_time()") != before; });
}

void postgres_server::promote() {
  query("SELECT pg_promote(true, 60)");
  wait_until("promotion", [&] { return value("SELECT pg_is_in_recovery()") == "f"; });
}

postgres_server::rows postgres_server::query(std::string const& sql,
                                             std::string const& database) const {
  connection const db{::PQconnectdb((url_unix(database) + "&connect_timeout=30").c_str()),
                      &::PQfinish};
  if (::PQstatus(db.get()) != CONNECTION_OK) throw std::runtime_error(::PQerrorMessage(db.get()));
  result const answer{::PQexec(db.get(), sql.c_str()), &::PQclear};
  auto const status = ::PQresultStatus(answer.get());
  if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) {
    throw std::runtime_error(::PQresultErrorMessage(answer.get()));
  }
  rows all;
  for (int row = 0; row < ::PQntuples(answer.get()); ++row) {
    auto& fields = all.emplace_back();
    for (int column = 0; column < ::PQnfields(answer.get()); ++column) {
      if (::PQgetisnull(answer.get(), row, column) != 0) {
        fields.emplace_back(std::nullopt);
      } else {
        fields.emplace_back(::PQgetvalue(answer.get(), row, column));
      }
    }
  }
  return all;
}

std::string postgres_server::value(std::string const& sql, std::string const& database) const {
  auto const all = query(sql, database);
  if (all.empty() || all[0].empty()) throw std::runtime_error("no row: " + sql);
  return all[0][0].value_or("");
}

}  // namespace fenceguard::test_servers
