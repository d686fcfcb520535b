#include "postgres/record_text.hpp"

#include <doctest/doctest.h>

#include <stdexcept>

#include "postgres/database.hpp"

using fenceguard::postgres::read_record;
using fields = std::vector<std::optional<std::string>>;

TEST_CASE("a record's fields: plain, NULL, empty, quoted") {
  CHECK(read_record("(1)") == fields{"1"});
  CHECK(read_record("(f,,\"\")") == fields{"f", std::nullopt, ""});
  CHECK(read_record(R"((a,"b,c","d""e","f\\g",{1}))") == fields{"a", "b,c", "d\"e", "f\\g", "{1}"});
  CHECK(read_record("(,)") == fields{std::nullopt, std::nullopt});
}

TEST_CASE("what is no record is refused") {
  for (char const* bad : {"", "(", "(1", "1", "(1)x", "(\"1)", "(1\\"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(read_record(bad), std::invalid_argument);
  }
}

TEST_CASE("the server's own text comes back as it went in") {
  fenceguard::test_postgres::database const db;
  pqxx::connection connection{db.url()};
  pqxx::nontransaction tx{connection};
  std::string const awkward = "({\"a\": \"b\\\\c\"}, 'x' ) \t\n";
  auto const text = tx.exec("SELECT ROW(1, NULL, " + tx.quote(awkward) + ", '{\"q,\"}'::text[])");
  CHECK(read_record(text[0][0].c_str()) == fields{"1", std::nullopt, awkward, "{\"q,\"}"});
}
