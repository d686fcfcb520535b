#include "postgres/server_errors.hpp"

#include <doctest/doctest.h>

#include <pqxx/pqxx>

using namespace fenceguard;
using postgres::failed_call;
using postgres::own_error;
using postgres::parse_stale;

namespace {

pqxx::sql_error refused(char const* sqlstate, std::string const& message) {
  return pqxx::sql_error{message, "", sqlstate};
}

template <class Error>
bool is(std::exception_ptr const& thrown) {
  if (!thrown) return false;
  try {
    std::rethrow_exception(thrown);
  } catch (Error const&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

TEST_CASE("server errors: a stale token is read from the message in any form that libpq gives") {
  for (char const* message :
       {"stale token: presented 5, current 7, resource account/42",
        "ERROR:  stale token: presented 5, current 7, resource account/42\n",
        "FEHLER:  stale token: presented 5, current 7, resource account/42\nDETAIL:  holder ab\n",
        "ERROR:  TF001: stale token: presented 5, current 7, resource account/42\nHINT:  Ask "
        "again.\nLOCATION:  exec_stmt_raise, pl_exec.c:3890\n"}) {
    CAPTURE(message);
    auto const stale = parse_stale(message);
    REQUIRE(stale.has_value());
    CHECK(stale->resource == "account/42");
    CHECK(stale->presented == fencing_token{5});
    CHECK(stale->current == fencing_token{7});
  }
  auto const odd = parse_stale(
      "ERROR:  stale token: presented 5, current 7, resource a\nb, resource c: d\nHINT:  x\n");
  REQUIRE(odd.has_value());
  CHECK(odd->resource == "a\nb, resource c: d");
}

TEST_CASE("server errors: what is no stale token is not made one") {
  for (char const* message :
       {"", "stale token", "stale token: presented x, current 7, resource r",
        "stale token: presented 0, current 7, resource r",
        "stale token: presented 5, current 9007199254740992, resource r",
        "stale token: presented 5, current 7", "other: presented 5, current 7, resource r"}) {
    CAPTURE(message);
    CHECK_FALSE(parse_stale(message).has_value());
  }
}

TEST_CASE("server errors: each SQLSTATE of class TF has its type, and advice") {
  auto const what = failed_call::callers_statement;
  CHECK(is<stale_token>(own_error(
      refused("TF001", "ERROR:  stale token: presented 1, current 2, resource r\n"), what)));
  CHECK(is<unguarded_write>(own_error(refused("TF002", "ERROR:  x\n"), what)));
  CHECK(is<key_reused>(own_error(refused("TF003", "ERROR:  x\n"), what)));
  CHECK(is<server_promoted>(own_error(refused("TF004", "ERROR:  x\n"), what)));
  CHECK(is<in_progress>(own_error(refused("TF005", "ERROR:  x\n"), what)));
  CHECK(is<fence_busy>(own_error(refused("TF006", "ERROR:  x\n"), what)));
  CHECK(own_error(refused("TF999", "ERROR:  x\n"), what) == nullptr);
  CHECK(own_error(refused("TF001", "ERROR:  somebody else's\n"), what) == nullptr);
  CHECK(own_error(std::runtime_error{"no SQLSTATE"}, what) == nullptr);
}

TEST_CASE(
    "server errors: standard SQLSTATEs are the caller's, unless fenceguard's function failed") {
  auto const missing = refused(
      "42883", "ERROR:  function fenceguard.open_guarded(text[]) does not exist\nLINE 1: SELECT\n");
  CHECK(own_error(missing, failed_call::callers_statement) == nullptr);
  CHECK(is<schema_mismatch>(own_error(missing, failed_call::own_function)));
  CHECK(is<schema_mismatch>(
      own_error(refused("3F000", "FEHLER:  Schema \"fenceguard\" existiert nicht\n"),
                failed_call::own_function)));
  CHECK(own_error(refused("42P01", "ERROR:  relation \"x\" does not exist\nLINE 1: fenceguard.y\n"),
                  failed_call::own_function) == nullptr);
  CHECK(is<invalid_request>(own_error(refused("22023", "ERROR:  token 5 was never issued\n"),
                                      failed_call::own_function)));
  CHECK(own_error(refused("22023", "ERROR:  x\n"), failed_call::callers_statement) == nullptr);
  CHECK(own_error(refused("23505", "ERROR:  x\n"), failed_call::own_function) == nullptr);
}

TEST_CASE("server errors: the message keeps detail and hint, not the place in the server's code") {
  CHECK(postgres::server_message(
            refused("TF006",
                    "ERROR:  fence busy\nDETAIL:  pid 7\nHINT:  Wait.\nCONTEXT:  PL/pgSQL "
                    "function f() line 3\n")) == "fence busy\nDETAIL:  pid 7\nHINT:  Wait.");
}
