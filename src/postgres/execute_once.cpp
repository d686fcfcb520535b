#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/execute_once.hpp>
#include <optional>
#include <sstream>

#include "postgres/claim.hpp"
#include "postgres/commit_doubt.hpp"
#include "postgres/idempotency.hpp"
#include "postgres/libpqxx.hpp"
#include "postgres/server_errors.hpp"
#include "postgres/statement_arguments.hpp"

namespace fenceguard::postgres {
namespace {

using std::chrono::milliseconds;

inlined_statement inlined(libpqxx::connection_base& db, std::string const& sql,
                          parameters const& args) {
  std::vector<std::string> literals;
  literals.reserve(args.size());
  for (parameter const& arg : args) literals.push_back(libpqxx::quoted(db, arg));
  // libpq doubles a backslash where the session's strings take it for an escape.
  bool const escapes = libpqxx::quoted(db, std::string{"\\"}) != "'\\'";
  return inline_arguments(sql, literals, {.backslash_escapes = escapes});
}

// The stored answer in the DETAIL of a raised replay; nothing where it is not found there (libpq
// may be set to translate the word). The last one: the line before it quotes the key.
std::optional<nlohmann::json> answer_in_detail(std::exception const& failed) {
  std::string const text = failed.what();
  std::string const label = "\nDETAIL:  ";
  std::size_t const at = text.rfind(label);
  if (at == std::string::npos) return std::nullopt;
  try {
    std::istringstream detail{text.substr(at + label.size())};
    nlohmann::json answer;
    detail >> answer;  // stops at its end; other fields of the error follow
    return answer;
  } catch (nlohmann::json::exception const&) {
    return std::nullopt;
  }
}

class once_call {
 public:
  once_call(pqxx::connection& db, lease const& held, idempotency_key const& key,
            execute_once_options const& options)
      : key_{key},
        options_{options},
        claim_{held, options.observer},
        carrier_{db, "fenceguard"},
        session_{db},
        notices_{db} {}

  execute_once_result run(std::string const& sql, parameters const& args) {
    inlined_statement const business = inlined(db(), sql, args);
    for (;;) {
      claim_.take_tokens();
      std::string const message = opening() + closing(business);
      require_connection();
      notices_.clear();
      try {
        return accept(send(message));
      } catch (commit_unknown const&) {
        throw;
      } catch (std::exception const& failed) {
        if (leaves_commit_in_doubt(failed, session_)) in_doubt(server_message(failed));
        if (libpqxx::sqlstate_of(failed) == "TF007") return replay(failed);
        if (!claim_.mend(failed, carrier_)) refuse(failed);
      }
    }
  }

 private:
  libpqxx::connection_base& db() { return libpqxx::connection_of(carrier_); }
  std::string literal(std::string const& text) { return libpqxx::quoted(db(), text); }

  std::string key_arguments() {
    return literal(key_.scope) + ", " + literal(key_.key) + ", " +
           literal(json_text(key_.request, "request"));
  }

  // The statements of one message are one transaction, whose level its first statement says. The
  // claim is a statement of its own: the business gets a snapshot from after it.
  std::string opening() {
    return "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; SELECT " +
           std::string{hear_warnings} + ", fenceguard.execute_once_open(" + claim_.arguments(db()) +
           ", " + key_arguments() + ", " + std::to_string(options_.patience.count()) + ", " +
           std::to_string(claim_.shortest_ttl().count()) + ");";
  }

  std::string closing(inlined_statement const& business) {
    std::string const rows =
        business.returns_rows
            ? "coalesce(pg_catalog.json_agg(pg_catalog.to_json(fenceguard_row)), '[]')"
            : "'[]'::json";
    return "\nWITH fenceguard_business AS (\n" + business.text +
           (business.returns_rows ? "\n" : "\nRETURNING 1\n") +
           "), fenceguard_answer AS (SELECT pg_catalog.json_build_object('row_count', "
           "pg_catalog.count(*), 'rows', " +
           rows +
           ") AS answer FROM fenceguard_business AS fenceguard_row) SELECT answer, "
           "fenceguard.execute_once_close(" +
           key_arguments() + ", answer, " + std::to_string(claim_.highest_token().value()) +
           ", pg_catalog.make_interval(hours => " + std::to_string(key_.retention.count()) +
           ")) FROM fenceguard_answer";
  }

  // Before anything is sent a connection that is over has committed nothing.
  void require_connection() {
    if (session_.holds() && !libpqxx::is_closed_by_server(carrier_)) return;
    throw pqxx::broken_connection{
        "the connection to PostgreSQL was lost before the statement was sent: nothing was written"};
  }

  pqxx::result send(std::string const& message) {
    libpqxx::verbose_messages const verbose{db()};
    return libpqxx::send_message(carrier_, message);
  }

  execute_once_result accept(pqxx::result const& rows) {
    if (says_standby_wait_cancelled(notices_.messages())) {
      in_doubt("it stands on this server only, the wait for its standby was cancelled");
    }
    claim_.note_committed(rows[0][1].as<std::string>());
    return {.replayed = false, .answer = nlohmann::json::parse(rows[0][0].as<std::string>())};
  }

  execute_once_result replay(std::exception const& raised) {
    std::optional<nlohmann::json> answer = answer_in_detail(raised);
    if (!answer) answer = stored_answer();
    claim_.tell(events::replayed{key_.scope});
    return {.replayed = true, .answer = std::move(*answer)};
  }

  nlohmann::json stored_answer() {
    pqxx::result const rows = libpqxx::send_message(
        carrier_, "SELECT answer FROM fenceguard.replay(" + key_arguments() + ")");
    return rows[0][0].is_null() ? nlohmann::json{}
                                : nlohmann::json::parse(rows[0][0].as<std::string>());
  }

  [[noreturn]] void refuse(std::exception const& failed) {
    std::string const sqlstate = libpqxx::sqlstate_of(failed);
    std::string const message = failed.what();
    if (sqlstate == "23505" && message.find("idempotency_pkey") != std::string::npos) {
      throw already_stored{"the idempotency key was stored meanwhile: " + server_message(failed)};
    }
    // The error's first line (no such schema) or its context tells whose statement it was.
    bool const ours = message.find("fenceguard.execute_once_") != std::string::npos ||
                      message.substr(0, message.find('\n')).find("fenceguard") != std::string::npos;
    if (auto const own =
            own_error(failed, ours ? failed_call::own_function : failed_call::callers_statement)) {
      std::rethrow_exception(own);
    }
    throw;
  }

  [[noreturn]] void in_doubt(std::string const& why) {
    claim_.note_unknown();
    for (auto const& one : claim_.grants()) claim_.tell(events::commit_unknown{one->resource()});
    throw commit_unknown{"the statement was sent and its outcome is not known: " + why};
  }

  idempotency_key const& key_;
  execute_once_options options_;
  claim claim_;
  pqxx::nontransaction carrier_;
  libpqxx::pinned_session session_;
  libpqxx::notices notices_;
};

}  // namespace

execute_once_result execute_once_with(pqxx::connection& db, lease const& held,
                                      idempotency_key const& key, std::string const& sql,
                                      parameters const& args, execute_once_options options) {
  if (options.patience < milliseconds{1} || options.patience > std::chrono::minutes{10}) {
    throw invalid_request{"execute_once_options.patience must be between 1 ms and 10 min"};
  }
  check(key);
  return once_call{db, held, key, options}.run(sql, args);
}

}  // namespace fenceguard::postgres
