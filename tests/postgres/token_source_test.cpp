#include <doctest/doctest.h>

#include <algorithm>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/token_source.hpp>
#include <fstream>
#include <future>
#include <vector>

#include "postgres/database.hpp"
#include "servers/forked_child.hpp"
#include "servers/relay.hpp"
#include "servers/wait.hpp"

using namespace std::chrono_literals;
using namespace fenceguard;
using database_tokens = postgres::token_source;
namespace ts = fenceguard::test_servers;

namespace {

template <class Work>
std::chrono::steady_clock::duration time_of(Work&& work) {
  auto const began = std::chrono::steady_clock::now();
  work();
  return std::chrono::steady_clock::now() - began;
}

}  // namespace

TEST_CASE("token_source: ranges do not overlap and rise") {
  test_postgres::database db;
  database_tokens one{db.url()};
  database_tokens two{db.url_unix()};
  auto const first = one.reserve(1000);
  auto const second = two.reserve(1);
  auto const third = one.reserve(1);
  CHECK(second.value() >= first.value() + 1000);
  CHECK(third > second);
}

TEST_CASE("token_source: from many threads") {
  test_postgres::database db;
  database_tokens tokens{db.url()};
  std::vector<std::future<std::vector<std::int64_t>>> threads;
  for (int i = 0; i < 8; ++i) {
    threads.push_back(std::async(std::launch::async, [&] {
      std::vector<std::int64_t> mine;
      for (int n = 0; n < 25; ++n) mine.push_back(tokens.reserve(1).value());
      return mine;
    }));
  }
  std::vector<std::int64_t> all;
  for (auto& one : threads) {
    auto const mine = one.get();
    CHECK(std::is_sorted(mine.begin(), mine.end()));
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
}

TEST_CASE("token_source: arguments out of range are refused before anything is sent") {
  database_tokens tokens{"host=127.0.0.1 port=1"};  // nobody listens there
  CHECK_THROWS_AS(static_cast<void>(tokens.reserve(0)), invalid_request);
  CHECK_THROWS_AS(static_cast<void>(tokens.reserve(-1)), invalid_request);
  CHECK_THROWS_AS(static_cast<void>(tokens.reserve(fenceguard::token_source::max_count + 1)),
                  invalid_request);
  CHECK_THROWS_AS((database_tokens{{.url = "", .timeout = 99ms}}), invalid_request);
  CHECK_THROWS_AS((database_tokens{{.url = "", .timeout = 61s}}), invalid_request);
  CHECK_THROWS_AS((database_tokens{std::string("a\0b", 3)}), invalid_request);
}

TEST_CASE("token_source: the largest count") {
  test_postgres::database db;
  database_tokens tokens{db.url()};
  auto const first = tokens.reserve(fenceguard::token_source::max_count);
  CHECK(tokens.reserve(1).value() >= first.value() + fenceguard::token_source::max_count);
}

TEST_CASE("token_source: a server that cannot be reached, or refuses") {
  test_postgres::database db;
  CHECK_THROWS_AS(static_cast<void>(database_tokens{"host=127.0.0.1 port=1"}.reserve(1)),
                  token_source_unavailable);
  CHECK_THROWS_AS(static_cast<void>(database_tokens{"host=/nowhere"}.reserve(1)),
                  token_source_unavailable);
  CHECK_THROWS_AS(static_cast<void>(database_tokens{"no such=option"}.reserve(1)),
                  token_source_unavailable);
  CHECK_THROWS_AS(
      static_cast<void>(
          database_tokens{test_postgres::shared_server().url("no_such_database")}.reserve(1)),
      token_source_unavailable);
  CHECK_THROWS_AS(
      static_cast<void>(
          database_tokens{test_postgres::shared_server().url("postgres", "no_such_role")}.reserve(
              1)),
      token_source_unavailable);
}

TEST_CASE("token_source: a database without the schema names the command to run") {
  test_postgres::database bare{test_postgres::shared_server(), false};
  CHECK_THROWS_WITH_AS(static_cast<void>(database_tokens{bare.url()}.reserve(1)),
                       doctest::Contains("`fenceguard migrate`"), schema_mismatch);
}

TEST_CASE("token_source: a wrong password is reported, and not shown") {
  ts::postgres_server server{{.configuration = {{"password_encryption", "scram-sha-256"}}}};
  server.query("CREATE ROLE careful LOGIN PASSWORD 'right'");
  std::ofstream{server.data_directory() / "pg_hba.conf"}
      << "local all all trust\nhost all careful 127.0.0.1/32 scram-sha-256\n";
  server.reload();
  auto const url = [&](std::string const& password) {
    return "postgresql://careful:" + password + "@127.0.0.1:" + std::to_string(server.port()) +
           "/postgres";
  };
  REQUIRE(ts::eventually([&] {  // the new rules are in force
    try {
      pqxx::connection const wrong{url("guessed")};
      return false;
    } catch (pqxx::broken_connection const&) {
      return true;
    }
  }));
  database_tokens wrong{url("guessed")};
  try {
    (void)wrong.reserve(1);
    FAIL("a wrong password was accepted");
  } catch (token_source_unavailable const& failed) {
    CHECK(std::string{failed.what()}.find("password") != std::string::npos);
    CHECK(std::string{failed.what()}.find("guessed") == std::string::npos);
  }
  database_tokens right{url("right")};
  CHECK_THROWS_AS(static_cast<void>(right.reserve(1)), schema_mismatch);  // it got in
}

TEST_CASE("token_source: goes on after its connection was ended") {
  test_postgres::database db;
  database_tokens tokens{db.url()};
  auto const before = tokens.reserve(1);
  db.run(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = "
      "'fenceguard-tokens' AND datname = current_database()");
  CHECK(tokens.reserve(1) > before);
}

TEST_CASE("token_source: goes on after the connection broke in the middle of a reservation") {
  test_postgres::database db;
  ts::relay relay{test_postgres::shared_server().port()};
  database_tokens tokens{db.url_through(relay.port())};
  auto const before = tokens.reserve(1);
  relay.when_seen(ts::direction::to_server, "reserve_tokens", ts::reaction::cut_after);
  CHECK(tokens.reserve(1) > before);
  CHECK(relay.fired() == 1);
}

TEST_CASE("token_source: down and up again") {
  ts::postgres_server server;
  test_postgres::create_owner(server);
  test_postgres::database db{server};
  database_tokens tokens{db.url()};
  auto const before = tokens.reserve(1);
  server.stop();
  CHECK_THROWS_AS(static_cast<void>(tokens.reserve(1)), token_source_unavailable);
  server.start();
  CHECK(tokens.reserve(1) > before);
}

TEST_CASE("token_source: a server that hangs, over TCP and the Unix socket") {
  ts::postgres_server server;
  test_postgres::create_owner(server);
  test_postgres::database db{server};
  for (std::string const& url : {db.url(), db.url_unix()}) {
    database_tokens warm{{.url = url, .timeout = 300ms}};
    database_tokens cold{{.url = url, .timeout = 300ms}};
    auto const before = warm.reserve(1);
    server.pause();
    for (database_tokens* const source : {&warm, &cold, &warm}) {
      auto const waited = time_of([&] {
        CHECK_THROWS_AS(static_cast<void>(source->reserve(1)), token_source_unavailable);
      });
      CHECK(waited >= 290ms);
      CHECK(waited < 2s);
    }
    server.resume();
    ts::wait_until("it serves again", [&] {
      try {
        return warm.reserve(1) > before && cold.reserve(1) > before;
      } catch (token_source_unavailable const&) {
        return false;
      }
    });
  }
}

TEST_CASE("token_source: destroyed while the server hangs, it does not wait for it") {
  ts::postgres_server server;
  test_postgres::create_owner(server);
  test_postgres::database db{server};
  auto warm = std::make_unique<database_tokens>(
      postgres::token_source_options{.url = db.url(), .timeout = 200ms});
  static_cast<void>(warm->reserve(1));
  server.pause();
  CHECK_THROWS_AS(static_cast<void>(warm->reserve(1)), token_source_unavailable);
  CHECK(time_of([&] { warm.reset(); }) < 5s);  // libpq's least connect_timeout is 2 s
  server.resume();
}

TEST_CASE("token_source: callers queue, each with a deadline of its own") {
  ts::postgres_server server;
  test_postgres::create_owner(server);
  test_postgres::database db{server};
  database_tokens tokens{{.url = db.url(), .timeout = 500ms}};
  static_cast<void>(tokens.reserve(1));
  server.pause();
  std::vector<std::future<bool>> callers;
  auto const waited = time_of([&] {
    for (int i = 0; i < 4; ++i) {
      callers.push_back(std::async(std::launch::async, [&] {
        try {
          static_cast<void>(tokens.reserve(1));
          return true;
        } catch (token_source_unavailable const&) {
          return false;
        }
      }));
    }
    for (auto& one : callers) CHECK_FALSE(one.get());
  });
  CHECK(waited < 3s);
  server.resume();
}

TEST_CASE("token_source: under defaults that a reservation cannot have") {
  test_postgres::database db;
  std::string const name = db.value("SELECT current_database()");
  db.run("ALTER DATABASE " + name + " SET default_transaction_isolation = serializable");
  db.run("ALTER DATABASE " + name + " SET synchronous_commit = off");
  db.run("ALTER DATABASE " + name + " SET default_transaction_read_only = on");
  database_tokens tokens{db.url()};
  auto const first = tokens.reserve(1);
  CHECK(tokens.reserve(1) > first);
}

TEST_CASE("token_source: inert in a forked child") {
  test_postgres::database db;
  auto tokens = std::make_unique<database_tokens>(db.url());
  static_cast<void>(tokens->reserve(1));
  CHECK(test_servers::status_of_child([&] {
          bool refused = false;
          try {
            static_cast<void>(tokens->reserve(1));
          } catch (invalid_request const&) {
            refused = true;
          }
          tokens.reset();  // neither hangs nor ends the parent's session
          return refused;
        }) == 0);
  CHECK(tokens->reserve(1).value() > 0);
}
