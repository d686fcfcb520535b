#include <algorithm>
#include <fenceguard/postgres/transaction.hpp>
#include <utility>

#include "postgres/claim.hpp"
#include "postgres/commit_doubt.hpp"
#include "postgres/idempotency.hpp"
#include "postgres/libpqxx.hpp"
#include "postgres/record_text.hpp"
#include "postgres/server_errors.hpp"
#include "postgres/statement.hpp"

namespace fenceguard::postgres {
namespace {

using std::chrono::milliseconds;

char const* isolation_words(isolation level) {
  switch (level) {
    case isolation::read_committed:
      return "READ COMMITTED";
    case isolation::repeatable_read:
      return "REPEATABLE READ";
    case isolation::serializable:
      return "SERIALIZABLE";
  }
  throw invalid_request{"transaction_options: unknown isolation level"};
}

transaction_options checked(transaction_options options) {
  if (options.patience < milliseconds{1} || options.patience > std::chrono::minutes{10}) {
    throw invalid_request{"transaction_options.patience must be between 1 ms and 10 min"};
  }
  if (options.max_idle < milliseconds{0} || options.max_idle > std::chrono::hours{24}) {
    throw invalid_request{"transaction_options.max_idle must be between 0 and 24 h"};
  }
  return options;
}

// What open_guarded() answered, in the server's text forms.
struct opening {
  bool replayed = false;
  std::string answer{};
  std::string fingerprint{};
  std::string xid{};
  std::string started_at{};
  std::string previous_xids{};  // an array
  std::string previous_ats{};   // an array
  std::string database{};
};

opening read_opening(pqxx::result const& rows) {
  auto const fields = read_record(rows[0][0].c_str());
  auto const text = [&](std::size_t column) { return fields.at(column).value_or(""); };
  return opening{.replayed = text(0) == "t",
                 .answer = text(1),
                 .fingerprint = text(2),
                 .xid = text(3),
                 .started_at = text(4),
                 .previous_xids = text(5),
                 .previous_ats = text(6),
                 .database = text(7)};
}

commit_state commit_state_of(std::string const& word) {
  if (word == "committed") return commit_state::committed;
  if (word == "not_committed") return commit_state::not_committed;
  return commit_state::unknown;
}

}  // namespace

char const* to_string(commit_state state) noexcept {
  switch (state) {
    case commit_state::committed:
      return "committed";
    case commit_state::not_committed:
      return "not_committed";
    case commit_state::unknown:
      return "unknown";
  }
  return "?";
}

class transaction::implementation {
 public:
  implementation(pqxx::connection& db, claim with, std::optional<idempotency_key> key,
                 transaction_options const& options)
      : options_{checked(options)}, claim_{std::move(with)}, key_{std::move(key)} {
    if (key_) check(*key_);
    open(db);
  }

  ~implementation() { rollback(); }
  implementation(implementation const&) = delete;
  implementation& operator=(implementation const&) = delete;

  std::optional<nlohmann::json> const& replay() const noexcept { return replay_; }
  pqxx::result exec(std::string const& sql, parameters const& args);
  void commit(nlohmann::json const* answer);
  void rollback() noexcept;
  commit_state resolve(pqxx::connection& db);

 private:
  enum class state { open, replayed, latched, committed, rolled_back, unknown };

  // What belongs to the connection, from BEGIN to the end of the transaction.
  struct session {
    explicit session(pqxx::connection& db) : carrier{db, "fenceguard"}, pin{db}, notices{db} {}
    pqxx::nontransaction carrier;
    libpqxx::pinned_session pin;
    libpqxx::notices notices;
  };

  void open(pqxx::connection& db);
  pqxx::result try_open(std::string const& claims);
  bool replay_without_claim();
  void accept(pqxx::result const& rows);
  void tell_times_in_iso(opening& opened);
  void roll_back_session() noexcept;
  [[noreturn]] void throw_lost(std::string const& when);
  void require_session();
  void require_open(char const* what) const;
  std::string closing_message(nlohmann::json const* answer);
  [[noreturn]] void commit_failed(std::exception const& failed);
  [[noreturn]] void commit_in_doubt(std::string const& why);
  commit_state resolve_by_key(pqxx::transaction_base& with);
  commit_state resolve_by_fences(pqxx::transaction_base& with);

  transaction_options options_;
  claim claim_;
  std::optional<idempotency_key> key_;
  std::optional<session> session_{};
  opening opened_{};
  std::optional<nlohmann::json> replay_{};
  state state_ = state::rolled_back;
  std::string latched_by_{};
};

void transaction::implementation::open(pqxx::connection& db) {
  session_.emplace(db);
  for (;;) {
    try {
      claim_.take_tokens();
    } catch (error const&) {
      if (replay_without_claim()) return;
      throw;
    }
    try {
      accept(try_open(claim_.arguments(libpqxx::connection_of(session_->carrier))));
      return;
    } catch (std::exception const& failed) {
      if (!session_->pin.holds()) {
        claim_.note_unknown();
        throw;
      }
      roll_back_session();
      if (claim_.mend(failed, session_->carrier)) continue;
      if (auto const own = own_error(failed, failed_call::own_function)) {
        std::rethrow_exception(own);
      }
      throw;
    }
  }
}

// A repeat is answered also where its holder could not claim any more.
bool transaction::implementation::replay_without_claim() {
  if (!key_) return false;
  try {
    auto const rows =
        with_own_errors(failed_call::own_function, [&] { return try_open("'{}', '{}', '{}'"); });
    if (read_opening(rows).replayed) {
      accept(rows);
      return true;
    }
    roll_back_session();
    return false;
  } catch (std::exception const&) {
    roll_back_session();
    throw;
  }
}

pqxx::result transaction::implementation::try_open(std::string const& claims) {
  auto& db = libpqxx::connection_of(session_->carrier);
  milliseconds const idle =
      options_.max_idle > milliseconds{0} ? options_.max_idle : claim_.shortest_ttl();
  std::string message = "BEGIN ISOLATION LEVEL ";
  message += isolation_words(options_.level);
  message += " READ WRITE; ";
  message += "SELECT fenceguard.open_guarded(";
  message += claims + ", ";
  message += key_ ? libpqxx::quoted(db, key_->scope) + ", " + libpqxx::quoted(db, key_->key) +
                        ", " + libpqxx::quoted(db, json_text(key_->request, "request"))
                  : "NULL, NULL, NULL";
  message += ", " + std::to_string(options_.patience.count());
  message += ", " + std::to_string(idle.count());
  message += "), pg_catalog.current_setting('DateStyle')";
  return libpqxx::send_message(session_->carrier, message);
}

// Times are told to resolve() over another connection, which may read them in another way, and the
// abbreviation of a time zone says nothing for certain: only ISO's form will do. To claim again is
// harmless, and finds what the first claim found.
void transaction::implementation::tell_times_in_iso(opening& opened) {
  auto& db = libpqxx::connection_of(session_->carrier);
  auto const rows = libpqxx::send_message(
      session_->carrier,
      "SELECT pg_catalog.to_json(o.started_at) OPERATOR(pg_catalog.#>>) '{}', "
      "pg_catalog.translate(pg_catalog.to_json(o.previous_ats)::pg_catalog.text, '[]', '{}') "
      "FROM fenceguard.open_guarded(" +
          claim_.arguments(db) + ", NULL, NULL, NULL, NULL, NULL) o");
  opened.started_at = rows[0][0].c_str();
  opened.previous_ats = rows[0][1].c_str();
}

void transaction::implementation::accept(pqxx::result const& rows) {
  opening opened = read_opening(rows);
  bool const iso = std::string_view{rows[0][1].c_str()}.starts_with("ISO");
  if (!opened.replayed && !iso) tell_times_in_iso(opened);
  opened_ = opened;
  if (!opened.replayed) {
    state_ = state::open;
    return;
  }
  replay_ = opened.answer.empty() ? nlohmann::json{} : nlohmann::json::parse(opened.answer);
  roll_back_session();
  session_.reset();
  state_ = state::replayed;
  claim_.tell(events::replayed{key_->scope});
}

void transaction::implementation::roll_back_session() noexcept {
  if (!session_ || !session_->pin.holds()) return;
  try {
    libpqxx::send_message(session_->carrier, "ROLLBACK");
  } catch (std::exception const&) {
    // The connection is lost, and the server rolls back what a lost connection left open.
  }
}

void transaction::implementation::throw_lost(std::string const& when) {
  std::string message = "the connection to PostgreSQL was lost " + when;
  if (!session_->notices.messages().empty()) {
    message += " (the server's last words: " + session_->notices.messages().back() + ")";
  }
  latched_by_ = message;
  state_ = state::latched;
  session_.reset();
  throw pqxx::broken_connection{message};
}

void transaction::implementation::require_session() {
  if (session_->pin.holds() && !libpqxx::is_closed_by_server(session_->carrier)) return;
  claim_.note_unknown();
  throw_lost("in the transaction: nothing of it was committed");
}

void transaction::implementation::require_open(char const* what) const {
  std::string const prefix = std::string{what} + ": ";
  switch (state_) {
    case state::open:
      return;
    case state::replayed:
      throw invalid_request{prefix + "the request was answered before; use replay()"};
    case state::latched:
      throw invalid_request{
          prefix + "the transaction has failed and can only be rolled back: " + latched_by_};
    case state::committed:
    case state::rolled_back:
    case state::unknown:
      throw invalid_request{prefix + "the transaction is over"};
  }
}

pqxx::result transaction::implementation::exec(std::string const& sql, parameters const& args) {
  require_open("exec()");
  try {
    if (auto const word = transaction_control(sql)) {
      throw invalid_request{"exec(): " + *word +
                            " is not for a statement: use commit(), rollback()"};
    }
    require_session();
    return with_own_errors(failed_call::callers_statement,
                           [&] { return libpqxx::send_statement(session_->carrier, sql, args); });
  } catch (std::exception const& failed) {
    state_ = state::latched;
    if (latched_by_.empty()) latched_by_ = failed.what();
    if (session_ && !session_->pin.holds()) {
      claim_.note_unknown();
      throw_lost("while a statement ran: nothing of the transaction was committed");
    }
    throw;
  }
}

std::string transaction::implementation::closing_message(nlohmann::json const* answer) {
  auto& db = libpqxx::connection_of(session_->carrier);
  std::string message = std::string{"SELECT "} + hear_warnings + ", ";
  if (key_) {
    message +=
        "fenceguard.close_guarded('" + opened_.xid + "', " + libpqxx::quoted(db, key_->scope) +
        ", " + libpqxx::quoted(db, key_->key) + ", " + libpqxx::quoted(db, opened_.fingerprint) +
        ", " + libpqxx::quoted(db, json_text(*answer, "answer")) + ", " +
        std::to_string(claim_.highest_token().value()) + ", pg_catalog.make_interval(hours => " +
        std::to_string(key_->retention.count()) + "))";
  } else {
    // The function would look at no more than this, and costs more than all the rest of COMMIT.
    message +=
        "CASE WHEN pg_catalog.pg_current_xact_id_if_assigned() OPERATOR(pg_catalog.=) '" +
        opened_.xid +
        "' THEN NULL ELSE fenceguard.close_guarded(NULL, NULL, NULL, NULL, NULL, NULL, NULL) END";
  }
  return message + "; COMMIT";
}

void transaction::implementation::commit(nlohmann::json const* answer) {
  if (state_ == state::latched) rollback();
  require_open("commit()");
  if (key_ && answer == nullptr) {
    throw invalid_request{"commit(): a transaction with an idempotency key needs an answer"};
  }
  if (!key_ && answer != nullptr) {
    throw invalid_request{"commit(answer): the transaction has no idempotency key"};
  }
  std::string const message = closing_message(answer);
  require_session();  // nothing has been sent yet: a session that is over has committed nothing
  session_->notices.clear();
  try {
    libpqxx::verbose_messages const verbose{libpqxx::connection_of(session_->carrier)};
    libpqxx::send_message(session_->carrier, message);
  } catch (std::exception const& failed) {
    commit_failed(failed);
  }
  if (says_standby_wait_cancelled(session_->notices.messages())) {
    commit_in_doubt("COMMIT stands on this server only, the wait for its standby was cancelled");
  }
  state_ = state::committed;
  session_.reset();
  claim_.note_committed(opened_.database);
}

void transaction::implementation::commit_failed(std::exception const& failed) {
  if (leaves_commit_in_doubt(failed, session_->pin)) commit_in_doubt(server_message(failed));
  std::string const sqlstate = libpqxx::sqlstate_of(failed);
  std::string const message = server_message(failed);
  roll_back_session();
  session_.reset();
  state_ = state::rolled_back;
  if (sqlstate == "25000" || sqlstate == "25P02") {
    throw invalid_request{"commit(): the transaction was ended behind its back: " + message};
  }
  if (sqlstate == "23505" && message.find("idempotency_pkey") != std::string::npos) {
    throw already_stored{"the idempotency key was stored meanwhile: " + message};
  }
  if (auto const own = own_error(failed, failed_call::callers_statement)) {
    std::rethrow_exception(own);
  }
  throw;
}

void transaction::implementation::commit_in_doubt(std::string const& why) {
  state_ = state::unknown;
  session_.reset();
  claim_.note_unknown();
  for (auto const& one : claim_.grants()) claim_.tell(events::commit_unknown{one->resource()});
  throw commit_unknown{"COMMIT was sent and its outcome is not known: " + why};
}

void transaction::implementation::rollback() noexcept {
  if (state_ != state::open && state_ != state::latched) return;
  roll_back_session();
  session_.reset();
  if (state_ == state::open) state_ = state::rolled_back;
}

commit_state transaction::implementation::resolve(pqxx::connection& db) {
  if (state_ != state::unknown) {
    throw invalid_request{"resolve(): the outcome of the transaction is not in doubt"};
  }
  pqxx::nontransaction with{db, "fenceguard"};
  commit_state found = commit_state::unknown;
  try {
    found = with_own_errors(failed_call::own_function,
                            [&] { return key_ ? resolve_by_key(with) : resolve_by_fences(with); });
  } catch (in_progress const&) {
    return commit_state::unknown;  // still under way after the whole patience
  } catch (fence_busy const&) {
    return commit_state::unknown;
  }
  if (found == commit_state::committed) claim_.note_committed(opened_.database);
  return found;
}

commit_state transaction::implementation::resolve_by_key(pqxx::transaction_base& with) {
  auto& db = libpqxx::connection_of(with);
  auto const rows = libpqxx::send_message(
      with, std::string{own_transaction} + "SELECT outcome FROM fenceguard.resolve_key(" +
                libpqxx::quoted(db, key_->scope) + ", " + libpqxx::quoted(db, key_->key) + ", " +
                libpqxx::quoted(db, opened_.fingerprint) + ", " +
                std::to_string(options_.patience.count()) + ", " +
                libpqxx::quoted(db, opened_.started_at) + ")");
  return commit_state_of(rows[0][0].as<std::string>());
}

commit_state transaction::implementation::resolve_by_fences(pqxx::transaction_base& with) {
  auto& db = libpqxx::connection_of(with);
  // One element of an array, by the server's own reading of it.
  auto const element = [&](std::string const& array, char const* type, std::size_t index) {
    return "(" + libpqxx::quoted(db, array) + "::pg_catalog." + type + "[])[" +
           std::to_string(index + 1) + "]";
  };
  // The transaction is one whole: what is known of one of its claims is known of all.
  for (std::size_t i = 0; i < claim_.grants().size(); ++i) {
    auto const rows = libpqxx::send_message(
        with, std::string{own_transaction} + "SELECT fenceguard.resolve(" +
                  libpqxx::quoted(db, claim_.grants()[i]->resource()) + ", '" + opened_.xid +
                  "', " + libpqxx::quoted(db, opened_.started_at) + ", " +
                  element(opened_.previous_xids, "xid8", i) + ", " +
                  element(opened_.previous_ats, "timestamptz", i) + ", " +
                  std::to_string(options_.patience.count()) + ")");
    commit_state const found = commit_state_of(rows[0][0].as<std::string>());
    if (found != commit_state::unknown) return found;
  }
  return commit_state::unknown;
}

transaction::transaction(pqxx::connection& db, lease const& held, transaction_options options)
    : implementation_{std::make_unique<implementation>(db, claim{held, options.observer},
                                                       std::nullopt, options)} {}

transaction::transaction(pqxx::connection& db, lease const& held, idempotency_key key,
                         transaction_options options)
    : implementation_{std::make_unique<implementation>(db, claim{held, options.observer},
                                                       std::move(key), options)} {}

transaction::transaction(pqxx::connection& db, lease_set const& held, transaction_options options)
    : implementation_{std::make_unique<implementation>(db, claim{held, options.observer},
                                                       std::nullopt, options)} {}

transaction::transaction(pqxx::connection& db, lease_set const& held, idempotency_key key,
                         transaction_options options)
    : implementation_{std::make_unique<implementation>(db, claim{held, options.observer},
                                                       std::move(key), options)} {}

transaction::~transaction() = default;

std::optional<nlohmann::json> const& transaction::replay() const noexcept {
  return implementation_->replay();
}

pqxx::result transaction::exec_with(std::string const& sql, parameters const& args) {
  return implementation_->exec(sql, args);
}

void transaction::commit() { implementation_->commit(nullptr); }
void transaction::commit(nlohmann::json const& answer) { implementation_->commit(&answer); }
void transaction::rollback() noexcept { implementation_->rollback(); }
commit_state transaction::resolve(pqxx::connection& db) { return implementation_->resolve(db); }

}  // namespace fenceguard::postgres
