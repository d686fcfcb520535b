#include "postgres/statement_arguments.hpp"

#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>

using fenceguard::invalid_request;
using fenceguard::postgres::inline_arguments;
using fenceguard::postgres::inlined_statement;

namespace {

// With the literals 'a', 'b', … as many as asked for.
inlined_statement inlined(std::string const& sql, std::size_t count = 1, bool escapes = false) {
  std::vector<std::string> literals;
  for (std::size_t i = 0; i < count; ++i) {
    literals.push_back(std::string{"'"} + static_cast<char>('a' + i) + "'");
  }
  return inline_arguments(sql, literals, {.backslash_escapes = escapes});
}

std::string text(std::string const& sql, std::size_t count = 1, bool escapes = false) {
  return inlined(sql, count, escapes).text;
}

}  // namespace

TEST_CASE("statement_arguments: an argument becomes its literal, in brackets") {
  CHECK(text("SELECT $1") == "SELECT ('a')");
  CHECK(text("SELECT $2, $1 || $2", 2) == "SELECT ('b'), ('a') || ('b')");
  CHECK(text("SELECT $1::int+$1") == "SELECT ('a')::int+('a')");
  CHECK(text("SELECT $1,$2,$3,$4,$5,$6,$7,$8,$9,$10", 10).ends_with(",('i'),('j')"));
  CHECK_THROWS_AS(text("SELECT $1,$2,$3,$4,$5,$6,$7,$8,$9,$10", 9), invalid_request);
}

TEST_CASE("statement_arguments: what is no argument stays as it is") {
  SUBCASE("in a string") {
    CHECK(text("SELECT '$1', 'it''s $1', $1") == "SELECT '$1', 'it''s $1', ('a')");
    CHECK(text(R"(SELECT '\', $1)") == R"(SELECT '\', ('a'))");
  }
  SUBCASE("in a string with escapes") {
    CHECK(text(R"(SELECT E'\'$1', e'\\', $1)") == R"(SELECT E'\'$1', e'\\', ('a'))");
    CHECK(text("SELECT E'x' -- it's\n '\\'$1', $1") == "SELECT E'x' -- it's\n '\\'$1', ('a')");
    CHECK(text("SELECT name'$1', $1") == "SELECT name'$1', ('a')");
  }
  SUBCASE("in a string of a session without standard_conforming_strings") {
    CHECK(text(R"(SELECT '\'$1', $1)", 1, true) == R"(SELECT '\'$1', ('a'))");
  }
  SUBCASE("in a dollar quote") {
    CHECK(text("SELECT $$ $1 ' $$, $x$ $1 $$ $y$ $x$, $1") ==
          "SELECT $$ $1 ' $$, $x$ $1 $$ $y$ $x$, ('a')");
  }
  SUBCASE("in a name") {
    CHECK(text(R"(SELECT "$1", "a""$1", a$1, ä$1, $1)") ==
          R"(SELECT "$1", "a""$1", a$1, ä$1, ('a'))");
  }
  SUBCASE("in a comment") {
    CHECK(text("SELECT /* $1 /* ' */ $1 */ $1 -- $1 '") ==
          "SELECT /* $1 /* ' */ $1 */ ('a') -- $1 '");
    CHECK(text("SELECT 1 --$1\n + $1") == "SELECT 1 --$1\n + ('a')");
  }
}

TEST_CASE("statement_arguments: arguments and literals must match") {
  CHECK_THROWS_AS(text("SELECT $2"), invalid_request);
  CHECK_THROWS_AS(text("SELECT $0, $1"), invalid_request);
  CHECK_THROWS_AS(text("SELECT $1", 2), invalid_request);
  CHECK_THROWS_AS(text("SELECT '$1'"), invalid_request);
  CHECK_THROWS_AS(text("SELECT $1a"), invalid_request);
  CHECK_THROWS_AS(text("SELECT $99999999999999999999"), invalid_request);
}

TEST_CASE("statement_arguments: what does not end is refused") {
  for (char const* const sql :
       {"SELECT 'x", "SELECT \"x", "SELECT $$x", "SELECT $a$ $$ $b$", "SELECT /* /* */",
        "SELECT E'\\'", "SELECT (1", "SELECT 1)", "SELECT E'\\"}) {
    CAPTURE(sql);
    CHECK_THROWS_AS(text(sql, 0), invalid_request);
  }
}

TEST_CASE("statement_arguments: one statement, which reads or writes") {
  CHECK(text("SELECT 1; ; -- end\n", 0) == "SELECT 1");
  CHECK_THROWS_AS(text("SELECT 1; SELECT 2", 0), invalid_request);
  for (char const* const sql :
       {"", "  -- nothing", "COMMIT", "BEGIN", "LOCK TABLE t", "CREATE TABLE t()", "SET a = 1",
        "EXPLAIN SELECT 1", "DO $$ $$", "COPY t TO STDOUT"}) {
    CAPTURE(sql);
    CHECK_THROWS_AS(text(sql, 0), invalid_request);
  }
}

TEST_CASE("statement_arguments: knows whether rows come back") {
  struct expectation {
    char const* sql;
    bool writes;
    bool returns_rows;
  };
  for (expectation const& expected : {
           expectation{"SELECT 1", false, true},
           expectation{"(SELECT 1) UNION (SELECT 2)", false, true},
           expectation{"values (1)", false, true},
           expectation{"/* UPDATE */ table t", false, true},
           expectation{"SELECT 1 FROM t FOR UPDATE", false, true},
           expectation{"update t set a = 1", true, false},
           expectation{"Update t Set a = 1 Returning a", true, true},
           expectation{"DELETE FROM t WHERE a = 'RETURNING' -- RETURNING", true, false},
           expectation{"DELETE FROM t WHERE \"returning\" AND t.returning", true, false},
           expectation{"INSERT INTO t SELECT 1 AS returning", true, false},
           expectation{"INSERT INTO t SELECT 1 RETURNING *", true, true},
           expectation{"WITH a AS (SELECT 1) UPDATE t SET b = 1 FROM a", true, false},
           expectation{"WITH RECURSIVE a (x) AS MATERIALIZED (SELECT 1) SELECT * FROM a", false,
                       true},
           expectation{"WITH a AS (DELETE FROM t RETURNING *) INSERT INTO u SELECT * FROM a", true,
                       false},
       }) {
    CAPTURE(expected.sql);
    inlined_statement const found = inlined(expected.sql, 0);
    CHECK(found.writes == expected.writes);
    CHECK(found.returns_rows == expected.returns_rows);
  }
}
