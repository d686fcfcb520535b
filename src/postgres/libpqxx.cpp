#include "postgres/libpqxx.hpp"

#include <poll.h>

#include <fenceguard/core/errors.hpp>
#include <optional>

namespace fenceguard::postgres::libpqxx {
namespace {

void refuse_nul(std::string const& text, char const* what) {
  if (text.find('\0') != std::string::npos) {
    throw invalid_request{std::string{what} + " holds a NUL character"};
  }
}

}  // namespace

connection_base& connection_of(pqxx::transaction_base& tx) { return tx.conn(); }

pqxx::result send_message(pqxx::transaction_base& tx, std::string const& message) {
  refuse_nul(message, "a statement");
  return tx.exec(message);
}

pqxx::result send_statement(pqxx::transaction_base& tx, std::string const& statement,
                            parameters const& args) {
  refuse_nul(statement, "a statement");
  for (parameter const& arg : args) {
    if (arg.text()) refuse_nul(*arg.text(), "an argument");
  }
#if PQXX_VERSION_MAJOR >= 7
  pqxx::params list;
  list.reserve(args.size());
  for (parameter const& arg : args) {
    if (arg.text()) {
      list.append(*arg.text());
    } else {
      list.append();
    }
  }
#if PQXX_VERSION_MAJOR >= 8 || PQXX_VERSION_MINOR >= 10
  return tx.exec(statement, list);
#else
  return tx.exec_params(statement, list);
#endif
#else
  std::vector<char const*> list;
  list.reserve(args.size());
  for (parameter const& arg : args) list.push_back(arg.text() ? arg.text()->c_str() : nullptr);
  return tx.exec_params(statement, pqxx::prepare::make_dynamic_params(list.begin(), list.end()));
#endif
}

std::string quoted(connection_base& db, std::string const& text) {
  refuse_nul(text, "an argument");
  return db.quote(text);
}

std::string quoted(connection_base& db, parameter const& value) {
  return value.text() ? quoted(db, *value.text()) : "NULL";
}

std::string sqlstate_of(std::exception const& failed) {
#if PQXX_VERSION_MAJOR < 7
  if (dynamic_cast<pqxx::serialization_failure const*>(&failed) != nullptr) return "40001";
  if (dynamic_cast<pqxx::deadlock_detected const*>(&failed) != nullptr) return "40P01";
  if (dynamic_cast<pqxx::statement_completion_unknown const*>(&failed) != nullptr) return "40003";
  if (dynamic_cast<pqxx::transaction_rollback const*>(&failed) != nullptr) return "40000";
  if (dynamic_cast<pqxx::insufficient_privilege const*>(&failed) != nullptr) return "42501";
#endif
#if PQXX_VERSION_MAJOR >= 8
  if (auto const* error = dynamic_cast<pqxx::failure const*>(&failed)) {
    return std::string{error->sqlstate()};
  }
#else
  if (auto const* error = dynamic_cast<pqxx::sql_error const*>(&failed)) return error->sqlstate();
#endif
  return {};
}

bool is_connection_lost(std::exception const& failed) noexcept {
  return dynamic_cast<pqxx::broken_connection const*>(&failed) != nullptr ||
         dynamic_cast<pqxx::in_doubt_error const*>(&failed) != nullptr;
}

bool is_closed_by_server(pqxx::transaction_base& tx) noexcept {
  connection_base& db = connection_of(tx);
  if (!db.is_open()) return true;
  pollfd socket{.fd = db.sock(), .events = POLLIN, .revents = 0};
  if (::poll(&socket, 1, 0) == 0) return false;
  try {
    // The first reads what has come, without a look at it. The second looks, then asks.
    db.get_notifs();
    tx.exec("");
  } catch (std::exception const&) {
    return true;
  }
  return false;
}

pinned_session::pinned_session(connection_base& db) : db_{&db} {
#if PQXX_VERSION_MAJOR < 7
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  db.activate();
#pragma GCC diagnostic pop
#endif
  backend_pid_ = db.backendpid();
}

bool pinned_session::holds() const noexcept {
  return db_->is_open() && db_->backendpid() == backend_pid_;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored \
    "-Wdeprecated-declarations"  // from 7.10 on; it works in all versions
class notices::collector final : public pqxx::errorhandler {
 public:
  explicit collector(connection_base& db) : pqxx::errorhandler{db} {}
  bool operator()(char const message[]) noexcept override {
    try {
      messages.emplace_back(message);
    } catch (std::exception const&) {
      // Out of memory. What cannot be kept is not lost: it goes on to the user's handlers.
    }
    return true;
  }
  std::vector<std::string> messages{};
};
#pragma GCC diagnostic pop

notices::notices(connection_base& db) : collector_{std::make_unique<collector>(db)} {}
notices::~notices() = default;
std::vector<std::string> const& notices::messages() const noexcept { return collector_->messages; }

void notices::clear() noexcept { collector_->messages.clear(); }

#if PQXX_VERSION_MAJOR < 7
verbose_messages::verbose_messages(connection_base& db) : db_{&db}, before_{db.get_verbosity()} {
  db.set_verbosity(connection_base::verbose);
}
verbose_messages::~verbose_messages() { db_->set_verbosity(before_); }
#else
verbose_messages::verbose_messages(connection_base& db) : db_{&db} {
  db.set_verbosity(pqxx::error_verbosity::verbose);
}
verbose_messages::~verbose_messages() { db_->set_verbosity(pqxx::error_verbosity::normal); }
#endif

}  // namespace fenceguard::postgres::libpqxx
