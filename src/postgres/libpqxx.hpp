#pragma once

#include <exception>
#include <fenceguard/postgres/parameter.hpp>
#include <memory>
#include <pqxx/pqxx>
#include <string>
#include <vector>

// What differs between libpqxx 6.4.5, 7.10 and 8 is said in this file and its source, and nowhere
// else.
namespace fenceguard::postgres::libpqxx {

#if PQXX_VERSION_MAJOR >= 7
using connection_base = pqxx::connection;
#else
using connection_base = pqxx::connection_base;
#endif

// The connection that a transaction belongs to.
connection_base& connection_of(pqxx::transaction_base& tx);

// Sends one message of the simple protocol, which may hold several statements, and returns the last
// one's result.
pqxx::result send_message(pqxx::transaction_base& tx, std::string const& message);

// Sends one statement with its arguments (extended protocol: the server takes no second statement).
// Throws invalid_request where an argument holds a NUL character, which PostgreSQL's text cannot.
pqxx::result send_statement(pqxx::transaction_base& tx, std::string const& statement,
                            parameters const& args);

// A literal with its quotes, or NULL. Throws invalid_request for a NUL character.
std::string quoted(connection_base& db, std::string const& text);
std::string quoted(connection_base& db, parameter const& value);

// The SQLSTATE, also of the errors that libpqxx 6 keeps none for; empty where there is none.
std::string sqlstate_of(std::exception const& failed);

// Whether the connection was lost, so that nothing is known about a request that was under way.
bool is_connection_lost(std::exception const& failed) noexcept;

// Looks, without waiting, whether the server has closed the connection already.
bool is_closed_by_server(connection_base& db) noexcept;

// While it lives, libpqxx does not replace a lost connection by a new one. libpqxx 6 does that
// silently; 7 and later never do.
class pinned_connection {
 public:
  explicit pinned_connection(connection_base& db);
  ~pinned_connection();
  pinned_connection(pinned_connection const&) = delete;
  pinned_connection& operator=(pinned_connection const&) = delete;

  // Whether the session is still the one that it was.
  bool holds() const noexcept;
  int backend_pid() const noexcept { return backend_pid_; }

 private:
  connection_base* db_;
  int backend_pid_;
};

// Collects the server's notices and warnings while it lives.
class notices {
 public:
  explicit notices(connection_base& db);
  ~notices();
  notices(notices const&) = delete;
  notices& operator=(notices const&) = delete;

  std::vector<std::string> const& messages() const noexcept;

 private:
  class collector;
  std::unique_ptr<collector> collector_;
};

}  // namespace fenceguard::postgres::libpqxx
