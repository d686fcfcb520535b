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

// Looks, without waiting, whether the server has ended the session already. What it said then comes
// as a notice. (Where it has sent anything else meanwhile, such as a notification, it is asked.)
bool is_closed_by_server(pqxx::transaction_base& tx) noexcept;

// Remembers which session a connection has. libpqxx 6 replaces a lost connection silently, at the
// next statement, which would then run outside any transaction: ask holds() before each message.
// (Forbidding it to reconnect instead would overwrite what the user has set, which cannot be read.)
class pinned_session {
 public:
  // Lets libpqxx 6 replace a connection that was lost before; it is too late for that afterwards.
  explicit pinned_session(connection_base& db);

  bool holds() const noexcept;

 private:
  connection_base* db_;
  int backend_pid_;
};

// Collects the server's notices and warnings while it lives, and passes them on to the user's
// handlers. What a server says as it ends an idle session comes as a notice too.
class notices {
 public:
  explicit notices(connection_base& db);
  ~notices();
  notices(notices const&) = delete;
  notices& operator=(notices const&) = delete;

  std::vector<std::string> const& messages() const noexcept;
  void clear() noexcept;

 private:
  class collector;
  std::unique_ptr<collector> collector_;
};

// While it lives, errors and notices tell where in the server's code they were raised: words that
// no server translates. libpqxx 7 and later do not say what was set before: it is `normal` then.
class verbose_messages {
 public:
  explicit verbose_messages(connection_base& db);
  ~verbose_messages();
  verbose_messages(verbose_messages const&) = delete;
  verbose_messages& operator=(verbose_messages const&) = delete;

 private:
  connection_base* db_;
#if PQXX_VERSION_MAJOR < 7
  connection_base::error_verbosity before_;
#endif
};

}  // namespace fenceguard::postgres::libpqxx
