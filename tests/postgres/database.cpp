#include "postgres/database.hpp"

#include <algorithm>
#include <fenceguard/postgres/migrate.hpp>
#include <fenceguard/postgres/transaction.hpp>
#include <stdexcept>

namespace fenceguard::test_postgres {

test_servers::postgres_server& shared_server() {
  static test_servers::postgres_server server = [] {
    test_servers::postgres_server started;
    create_owner(started);
    return started;
  }();
  return server;
}

void create_owner(test_servers::postgres_server& server) {
  server.query(std::string{"CREATE ROLE "} + owner + " LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE");
}

database::database(test_servers::postgres_server& server, bool with_schema)
    : server_{&server}, name_{server.fresh_database().name} {
  server.query("ALTER DATABASE " + name_ + " OWNER TO " + owner);
  url_ = server.url(name_, owner);
  url_unix_ = server.url_unix(name_, owner);
  if (with_schema) postgres::migrate(url_);
  pqxx::connection db{url_};
  pqxx::work tx{db};
  tx.exec("CREATE SCHEMA bank");
  tx.exec("ALTER DATABASE " + name_ + " SET search_path = bank");
  tx.exec("CREATE TABLE bank.account (id int PRIMARY KEY, balance bigint NOT NULL)");
  tx.exec("INSERT INTO bank.account VALUES (1, 1000), (2, 1000)");
  tx.commit();
}

std::string database::url_through(int port) const {
  return "host=127.0.0.1 port=" + std::to_string(port) + " dbname=" + name_ + " user=" + owner;
}

std::string database::value(std::string const& sql) const { return server_->value(sql, name_); }

void database::run(std::string const& sql) const { server_->query(sql, name_); }

long database::balance(int account) const {
  return std::stol(value("SELECT balance FROM bank.account WHERE id = " + std::to_string(account)));
}

lease workplace::acquire(std::string const& resource, std::chrono::milliseconds ttl) {
  auto held = leases.acquire({.resource = resource, .ttl = ttl});
  if (!held) throw std::runtime_error{resource + " is busy"};
  return std::move(*held);
}

void workplace::overtake(lease& held) {
  std::string const resource = held.resource();
  leases.expire(resource);
  lease const newer = acquire(resource);
  pqxx::connection connection{db.url()};
  postgres::transaction tx{connection, newer};
  tx.commit();
}

namespace {

template <class... Events>
std::string name_of(std::variant<Events...> const& what) {
  constexpr char const* names[] = {"granted",         "busy",        "renewed",     "lost",
                                   "released",        "advanced",    "undone",      "tokens_needed",
                                   "tokens_reserved", "store_error", "stale_claim", "replayed",
                                   "commit_unknown"};
  static_assert(std::size(names) == sizeof...(Events));
  return names[what.index()];
}

}  // namespace

void recorder::on_event(event const& what) noexcept {
  std::lock_guard const lock{mutex_};
  names_.push_back(name_of(what));
}

std::size_t recorder::count(std::string const& name) const {
  std::lock_guard const lock{mutex_};
  return static_cast<std::size_t>(std::count(names_.begin(), names_.end(), name));
}

}  // namespace fenceguard::test_postgres
