// What is special to leases in PostgreSQL; what all stores have in common is in tests/conformance.
#include "postgres/lease_backend.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/lease_store.hpp>
#include <fenceguard/postgres/migrate.hpp>
#include <fenceguard/testing/token_source.hpp>
#include <optional>
#include <pqxx/pqxx>
#include <string>
#include <thread>
#include <vector>

#include "core/holder_id.hpp"
#include "postgres/database.hpp"
#include "servers/pgbouncer_server.hpp"
#include "servers/relay.hpp"
#include "servers/wait.hpp"

namespace fenceguard::lease_backend_tests {

using postgres::lease_backend;

namespace {

using namespace std::chrono_literals;
using test_postgres::database;
using test_servers::direction;
using test_servers::eventually;

time_point in(std::chrono::milliseconds time) { return boottime::now() + time; }

lease_backend::acquire_answer take(lease_backend& from, std::string const& resource,
                                   std::string const& holder, std::chrono::milliseconds ttl = 30s,
                                   std::chrono::milliseconds patience = 5s) {
  return from.try_acquire({.resource = resource,
                           .holder = holder,
                           .label = "a test",
                           .ttl = ttl,
                           .deadline = in(patience)});
}

bool granted(lease_backend::acquire_answer const& answer) {
  return std::holds_alternative<lease_backend::granted>(answer);
}

// The database's URL with other words where the server's port stands.
std::string with_port(database const& db, test_servers::postgres_server const& server,
                      std::string const& words) {
  auto url = db.url();
  auto const port = ":" + std::to_string(server.port());
  auto const at = url.find(port);
  REQUIRE(at != std::string::npos);
  return url.replace(at, port.size(), words);
}

lease_request request(std::string resource, std::chrono::milliseconds wait = 0ms) {
  lease_request wanted;
  wanted.resource = std::move(resource);
  wanted.ttl = 30s;
  wanted.wait = wait;
  return wanted;
}

}  // namespace

TEST_CASE("lease_backend: the row is as documented, and is used again") {
  database db;
  testing::token_source tokens;
  lease_backend store{{.url = db.url()}, tokens};
  auto const holder = new_holder_id();
  REQUIRE(granted(take(store, "account/42", holder)));
  CHECK(db.value("SELECT holder || ' ' || (token > 0) || ' ' || label FROM fenceguard.lease") ==
        holder + " true a test");
  CHECK(store.release("account/42", holder, in(5s)) == release_outcome::released);
  REQUIRE(granted(take(store, "account/42", new_holder_id())));
  CHECK(db.value("SELECT count(*) FROM fenceguard.lease") == "1");
}

TEST_CASE("lease_backend: names that SQL and arrays would take apart") {
  database db;
  testing::token_source tokens;
  lease_backend store{{.url = db.url()}, tokens};
  std::vector<std::string> const names{"a'b", "a\"b", "a\\b", "{a,b}", "NULL", "a,b", "$1", "%s"};
  std::vector<std::string> holders;
  std::vector<lease_backend::renew_item> batch;
  for (auto const& name : names) {
    holders.push_back(new_holder_id());
    REQUIRE(granted(take(store, name, holders.back())));
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    batch.push_back({.resource = names[i], .holder = holders[i], .ttl = 60s});
  }
  store.renew(batch, in(5s));
  for (std::size_t i = 0; i < names.size(); ++i) {
    INFO(names[i]);
    CHECK(batch[i].answer == lease_backend::renew_answer::renewed);
    CHECK(store.inspect(names[i], in(5s))->remaining > 40s);
    CHECK(store.release(names[i], holders[i], in(5s)) == release_outcome::released);
  }
}

TEST_CASE("lease_backend: an acquisition that arrives after it was undone takes nothing") {
  database db;
  testing::token_source tokens;
  test_servers::relay relay{test_postgres::shared_server().port()};
  lease_backend slow{{.url = db.url_through(relay.port()), .command_timeout = 2s}, tokens};
  lease_backend direct{{.url = db.url()}, tokens};
  REQUIRE(granted(take(slow, "warm up", new_holder_id())));  // it knows the server's clock
  auto const session = db.value(
      "SELECT pid FROM pg_stat_activity WHERE application_name = 'fenceguard-leases' AND datname = "
      "current_database()");
  relay.stall(direction::to_server);
  auto const holder = new_holder_id();
  auto const answer = take(slow, "account/1", holder, 60s, 300ms);
  CHECK(std::holds_alternative<lease_backend::unknown>(answer));
  CHECK(direct.release("account/1", holder, in(5s)) == release_outcome::already_lost);
  relay.flow();
  // The session ends once it has done what it was sent.
  REQUIRE(eventually([&] {
    return db.value("SELECT count(*) FROM pg_stat_activity WHERE pid = " + session) == "0";
  }));
  CHECK_FALSE(direct.inspect("account/1", in(5s)).has_value());
}

TEST_CASE("lease_backend: key left by a timed-out acquire: it is found and undone") {
  database db;
  testing::token_source tokens;
  test_servers::relay relay{test_postgres::shared_server().port()};
  lease_backend slow{{.url = db.url_through(relay.port()), .command_timeout = 2s}, tokens};
  lease_backend direct{{.url = db.url()}, tokens};
  REQUIRE(granted(take(slow, "warm up", new_holder_id())));
  relay.stall(direction::to_client);
  auto const holder = new_holder_id();
  auto const answer = take(slow, "account/1", holder, 60s, 300ms);
  CHECK(std::holds_alternative<lease_backend::unknown>(answer));
  CHECK(eventually(
      [&] { return direct.release("account/1", holder, in(5s)) == release_outcome::released; }));
  CHECK_FALSE(direct.inspect("account/1", in(5s)).has_value());
}

TEST_CASE("lease_backend: a grant that ran out before it was numbered is none") {
  database db;
  // Between the taking and the numbering the lease ends, and another holder takes it.
  class slow_source final : public token_source {
   public:
    std::function<void()> before{};
    fencing_token reserve(std::int64_t count) override {
      if (before) before();
      return fencing_token{next_.fetch_add(count)};
    }

   private:
    std::atomic<std::int64_t> next_{1'000};
  } tokens;
  testing::token_source others;
  lease_backend store{{.url = db.url()}, tokens};
  lease_backend other{{.url = db.url()}, others};
  auto const thief = new_holder_id();
  tokens.before = [&] {
    db.run("UPDATE fenceguard.lease SET expires_at = clock_timestamp()");
    CHECK(granted(take(other, "account/1", thief)));
  };
  auto const answer = take(store, "account/1", new_holder_id());
  CHECK(std::holds_alternative<lease_backend::not_applied>(answer));
  CHECK(other.inspect("account/1", in(5s))->holder == thief);
}

TEST_CASE("lease_backend: a token source that is down leaves nothing held") {
  database db;
  class none final : public token_source {
    fencing_token reserve(std::int64_t) override { throw token_source_unavailable{"down"}; }
  } tokens;
  lease_backend store{{.url = db.url()}, tokens};
  CHECK_THROWS_AS(static_cast<void>(take(store, "account/1", new_holder_id())),
                  token_source_unavailable);
  CHECK_FALSE(store.inspect("account/1", in(5s)).has_value());
}

TEST_CASE("lease_backend: a standby gives no leases") {
  test_servers::postgres_server primary;
  test_postgres::create_owner(primary);
  database db{primary};
  auto standby = test_servers::postgres_server::standby_of(primary);
  testing::token_source tokens;
  auto const port = ":" + std::to_string(standby.port());
  lease_backend store{{.url = with_port(db, primary, port)}, tokens};
  auto const answer = take(store, "account/1", new_holder_id());
  CHECK(std::holds_alternative<lease_backend::not_applied>(answer));
  CHECK(store.release("account/1", new_holder_id(), in(5s)) == release_outcome::unknown);
}

TEST_CASE("lease_backend: the store finds the standby that was promoted, and the leases in it") {
  test_servers::postgres_server primary;
  test_postgres::create_owner(primary);
  database db{primary};
  auto standby = test_servers::postgres_server::standby_of(primary);
  testing::token_source tokens;
  auto const first = ":" + std::to_string(primary.port());
  auto const url =
      with_port(db, primary, first + "," + standby.host() + ":" + std::to_string(standby.port()));
  lease_backend store{{.url = url + "?target_session_attrs=read-write"}, tokens};
  auto const holder = new_holder_id();
  REQUIRE(granted(take(store, "account/1", holder)));
  auto const name = db.value("SELECT current_database()");
  REQUIRE(eventually([&] {
    return standby.value("SELECT count(*) FROM fenceguard.lease WHERE token > 0", name) == "1";
  }));
  primary.stop(test_servers::postgres_server::stop_mode::crash);
  standby.promote();
  CHECK(eventually([&] { return granted(take(store, "account/2", new_holder_id())); }));
  auto const answer = take(store, "account/1", new_holder_id());
  CHECK(std::holds_alternative<lease_backend::busy>(answer));
  CHECK(store.release("account/1", holder, in(5s)) == release_outcome::released);
}

TEST_CASE("lease_backend: a schema that is missing, and a role without rights") {
  database bare{test_postgres::shared_server(), false};
  testing::token_source tokens;
  lease_backend store{{.url = bare.url()}, tokens};
  CHECK_THROWS_AS(static_cast<void>(take(store, "a", new_holder_id())), schema_mismatch);

  database db;
  test_postgres::shared_server().query(
      "DO $$ BEGIN CREATE ROLE lease_stranger LOGIN; EXCEPTION WHEN duplicate_object THEN END $$");
  auto url = db.url();
  auto const at = url.find(test_postgres::owner);
  REQUIRE(at != std::string::npos);
  url.replace(at, std::string{test_postgres::owner}.size(), "lease_stranger");
  lease_backend stranger{{.url = url}, tokens};
  CHECK_THROWS_AS(static_cast<void>(take(stranger, "a", new_holder_id())), invalid_request);

  // It may take leases and not number them: then it holds none.
  db.run(
      "GRANT USAGE ON SCHEMA fenceguard TO lease_stranger; GRANT EXECUTE ON FUNCTION "
      "fenceguard.lease_acquire, fenceguard.lease_release, fenceguard.lease_inspect "
      "TO lease_stranger");
  CHECK_THROWS_AS(static_cast<void>(take(stranger, "a", new_holder_id())), invalid_request);
  CHECK_FALSE(stranger.inspect("a", in(5s)).has_value());
}

TEST_CASE("lease_backend: more callers than connections wait for their turn") {
  database db;
  testing::token_source tokens;
  lease_backend store{{.url = db.url(), .connections = 2, .command_timeout = 20s}, tokens};
  std::atomic<int> grants{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 16; ++i) {
    callers.emplace_back([&, i] {
      if (granted(take(store, "account/" + std::to_string(i), new_holder_id(), 60s, 20s))) ++grants;
    });
  }
  for (auto& one : callers) one.join();
  CHECK(grants == 16);
  CHECK(std::stoi(db.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = "
                           "'fenceguard-leases' AND datname = current_database()")) <= 2);
}

TEST_CASE(
    "lease_backend: nobody waits for a lock beyond his deadline, and the connection is kept") {
  database db;
  testing::token_source tokens;
  lease_backend store{{.url = db.url(), .connections = 1}, tokens};
  auto const holder = new_holder_id();
  REQUIRE(granted(take(store, "account/1", holder)));
  auto const session = [&] {
    return db.value(
        "SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity WHERE "
        "application_name = 'fenceguard-leases' AND datname = current_database()");
  };
  std::vector<lease_backend::renew_item> batch{
      {.resource = "account/1", .holder = holder, .ttl = 60s}};
  store.renew(batch, in(5s));
  auto const before = session();

  pqxx::connection other{db.url()};
  pqxx::work stuck{other};
  stuck.exec("SELECT fenceguard.lease_number('account/1', '" + holder + "', 9007199254740991)");
  stuck.exec("SELECT pg_advisory_xact_lock(fenceguard.lease_lock('account/2'))");
  auto const began = boottime::now();
  store.renew(batch, in(300ms));
  CHECK(batch[0].answer == lease_backend::renew_answer::unknown);
  CHECK(store.release("account/1", holder, in(300ms)) == release_outcome::unknown);
  auto const answer = take(store, "account/2", new_holder_id(), 30s, 300ms);
  CHECK(std::holds_alternative<lease_backend::not_applied>(answer));
  auto const took = boottime::now() - began;
  CHECK(took > 600ms);
  CHECK(took < 2s);
  stuck.abort();
  CHECK(session() == before);
  CHECK(store.release("account/1", holder, in(5s)) == release_outcome::released);
}

TEST_CASE("lease_backend: a session that hangs costs one call, not the next one") {
  struct stopped {
    pid_t pid;
    explicit stopped(pid_t which) : pid{which} { REQUIRE(::kill(pid, SIGSTOP) == 0); }
    ~stopped() { ::kill(pid, SIGCONT); }
  };
  database db;
  testing::token_source tokens;
  lease_backend store{{.url = db.url(), .connections = 1}, tokens};
  REQUIRE(granted(take(store, "warm up", new_holder_id())));
  {
    stopped const session{static_cast<pid_t>(
        std::stoi(db.value("SELECT pid FROM pg_stat_activity WHERE application_name = "
                           "'fenceguard-leases' AND datname = current_database()")))};
    auto const began = boottime::now();
    CHECK(std::holds_alternative<lease_backend::unknown>(
        take(store, "account/1", new_holder_id(), 30s, 300ms)));
    CHECK(boottime::now() - began < 1s);
    CHECK(granted(take(store, "account/2", new_holder_id())));
  }
  // What the session then finds has come too late.
  CHECK(eventually([&] {
    return db.value(
               "SELECT count(*) FROM pg_stat_activity WHERE application_name = "
               "'fenceguard-leases' AND datname = current_database()") == "1";
  }));
  CHECK_FALSE(store.inspect("account/1", in(5s)).has_value());
}

TEST_CASE("lease_backend: the first call after a restart is served, however the server went down") {
  using stop_mode = test_servers::postgres_server::stop_mode;
  test_servers::postgres_server server;
  test_postgres::create_owner(server);
  database db{server};
  testing::token_source tokens;
  lease_backend store{{.url = db.url(), .connections = 1}, tokens};
  REQUIRE(granted(take(store, "warm up", new_holder_id())));
  for (auto how : {stop_mode::fast, stop_mode::immediate, stop_mode::crash}) {
    server.restart(how);
    CHECK(
        granted(take(store, "account/" + std::to_string(static_cast<int>(how)), new_holder_id())));
  }
}

TEST_CASE("lease_backend: each call ends by its deadline while the server hangs") {
  test_servers::postgres_server server;
  test_postgres::create_owner(server);
  database db{server};
  testing::token_source tokens;
  lease_backend store{{.url = db.url(), .connections = 1}, tokens};
  lease_backend not_connected{{.url = db.url(), .connections = 1}, tokens};
  auto const holder = new_holder_id();
  REQUIRE(granted(take(store, "account/1", holder)));
  std::vector<lease_backend::renew_item> batch{
      {.resource = "account/1", .holder = holder, .ttl = 60s}};
  store.renew(batch, in(5s));
  REQUIRE(batch[0].answer == lease_backend::renew_answer::renewed);

  server.pause();
  std::vector<std::chrono::nanoseconds> late_by;
  auto const ends_in_time = [&](auto&& call) {
    auto const deadline = in(200ms);
    call(deadline);
    late_by.push_back(boottime::now() - deadline);
    CHECK(late_by.back() > -10ms);  // it has waited for an answer
    CHECK(late_by.back() < 1s);
  };
  for (auto* one : {&store, &not_connected}) {
    ends_in_time([&](time_point deadline) {
      CHECK_FALSE(granted(one->try_acquire({.resource = "account/2",
                                            .holder = new_holder_id(),
                                            .label = "",
                                            .ttl = 30s,
                                            .deadline = deadline})));
    });
    ends_in_time([&](time_point deadline) {
      CHECK(one->release("account/1", holder, deadline) == release_outcome::unknown);
    });
    ends_in_time([&](time_point deadline) {
      one->renew(batch, deadline);
      CHECK(batch[0].answer == lease_backend::renew_answer::unknown);
    });
    ends_in_time([&](time_point deadline) {
      CHECK_THROWS_AS(static_cast<void>(one->inspect("account/1", deadline)),
                      lease_store_unavailable);
    });
    ends_in_time([&](time_point deadline) {
      auto const answer = one->advance("account/1", holder, std::nullopt, deadline);
      CHECK_FALSE(std::holds_alternative<lease_backend::advanced>(answer));
      CHECK_FALSE(std::holds_alternative<lease_backend::lost>(answer));
    });
  }
  std::sort(late_by.begin(), late_by.end());
  CHECK(late_by[late_by.size() / 2] < 30ms);
  server.resume();
  CHECK(eventually([&] { return granted(take(store, "account/3", new_holder_id())); }));
}

TEST_CASE("lease_backend: close() ends calls that are under way; a lease is released after it") {
  test_servers::postgres_server server;
  test_postgres::create_owner(server);
  database db{server};
  testing::token_source tokens;
  lease_backend store{{.url = db.url(), .connections = 1, .command_timeout = 20s}, tokens};
  auto const holder = new_holder_id();
  REQUIRE(granted(take(store, "account/1", holder)));
  server.pause();
  std::vector<std::thread> callers;
  std::atomic<int> ended{0};
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      CHECK_FALSE(granted(take(store, "account/2", new_holder_id(), 30s, 20s)));
      ++ended;
    });
  }
  CHECK_FALSE(eventually([&] { return ended > 0; }, 200ms));
  auto const began = boottime::now();
  store.close();
  for (auto& one : callers) one.join();
  CHECK(boottime::now() - began < 5s);
  server.resume();
  CHECK(store.release("account/1", holder, in(5s)) == release_outcome::released);
  CHECK_FALSE(granted(take(store, "account/3", new_holder_id())));
}

TEST_CASE("lease_backend: a request that comes late is refused, and says so") {
  database db;
  testing::token_source tokens;
  lease_backend store{{.url = db.url()}, tokens};
  // The server's clock is not known at first: the first request is late and learns it.
  REQUIRE(granted(take(store, "account/1", new_holder_id())));
  CHECK(db.value("SELECT outcome FROM fenceguard.lease_acquire('account/2', repeat('a', 32), '', "
                 "1000, fenceguard.server_us() - 1)") == "late");
  CHECK_FALSE(store.inspect("account/2", in(5s)).has_value());
}

TEST_CASE("lease_backend: of two advances of one grant, the one with the lower token is refused") {
  database db;
  class two_orders final : public token_source {
   public:
    fencing_token reserve(std::int64_t) override { return fencing_token{next--}; }
    std::int64_t next = 1'000;
  } tokens;
  lease_backend store{{.url = db.url()}, tokens};
  auto const holder = new_holder_id();
  REQUIRE(granted(take(store, "account/1", holder)));
  auto const answer = store.advance("account/1", holder, std::nullopt, in(5s));
  CHECK(std::holds_alternative<lease_backend::not_applied>(answer));
  CHECK(store.inspect("account/1", in(5s))->token == fencing_token{1'000});
}

namespace {

// Stores that hand one lease over and over to whoever waits for it.
struct waiting_room {
  database db;
  testing::token_source tokens;
  test_postgres::recorder events{};
  postgres::lease_store first{{.url = db.url()}, tokens};
  postgres::lease_store second;
  std::optional<lease> held{first.acquire(request("account/1"))};
  std::optional<lease> next{};
  std::thread waiter{};

  explicit waiting_room(std::string const& url_of_second = {})
      : second{{.url = url_of_second.empty() ? db.url() : url_of_second,
                .settings = {.observer = &events}},
               tokens} {}

  ~waiting_room() {
    if (waiter.joinable()) waiter.join();
  }

  void begin_to_wait() {
    waiter = std::thread{[this] { next = second.acquire(request("account/1", 30s)); }};
  }
  bool in_line() const {
    return db.value("SELECT cardinality(waiters) FROM fenceguard.lease") == "1";
  }
  int listeners() const {
    return std::stoi(
        db.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = "
                 "current_database()"));
  }
  int refused_connections() const {
    auto const log = test_postgres::shared_server().log();
    auto const refusal =
        "too many connections for database \"" + db.value("SELECT current_database()") + "\"";
    int times = 0;
    for (auto at = log.find(refusal); at != std::string::npos; at = log.find(refusal, at + 1)) {
      ++times;
    }
    return times;
  }
  // How long the waiter's grant came after the release.
  std::chrono::nanoseconds hand_over() {
    auto const began = boottime::now();
    REQUIRE(held->release() == release_outcome::released);
    waiter.join();
    auto const took = boottime::now() - began;
    REQUIRE(next.has_value());
    return took;
  }
  void take_back() {
    REQUIRE(next->release() == release_outcome::released);
    held = first.acquire(request("account/1"));
    REQUIRE(held.has_value());
  }
};

}  // namespace

TEST_CASE("lease_store: a waiter in another store hears of a release, within some milliseconds") {
  waiting_room room;
  std::vector<std::chrono::nanoseconds> took;
  for (int i = 0; i < 5; ++i) {
    room.begin_to_wait();
    // Also where it has heard of releases before, it is in the line at once.
    REQUIRE(eventually([&] { return room.in_line(); }, 900ms));
    took.push_back(room.hand_over());
    room.take_back();
  }
  // Polling alone would take a second at least, each time.
  std::sort(took.begin(), took.end());
  CHECK(took[2] < 200ms);
  CHECK(room.events.count("store_error") == 0);
}

TEST_CASE("lease_store: the listener's session is ended: nothing is lost, and it is heard again") {
  waiting_room room;
  auto const admit = [&](char const* sessions) {
    room.db.run("DO $$BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT " +
                std::string{sessions} + "', current_database()); END$$");
  };
  room.begin_to_wait();
  REQUIRE(eventually([&] { return room.in_line(); }));
  REQUIRE(room.listeners() == 1);
  admit("0");
  room.db.run(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND "
      "datname = current_database()");
  // However often it tries to come back, it tells of it once.
  REQUIRE(eventually([&] { return room.refused_connections() >= 2; }));
  CHECK(room.events.count("store_error") == 1);
  // Whoever waits polls as if there were no notifications: more often than once a second.
  CHECK(room.hand_over() < 600ms);
  room.take_back();
  admit("-1");
  room.begin_to_wait();
  CHECK(eventually([&] { return room.listeners() == 1; }));
  CHECK(eventually([&] { return room.in_line(); }));
  CHECK(room.hand_over() < 20s);
}

TEST_CASE("lease_store: through a pooler it polls, and leaves nothing in the server's session") {
  database const db;
  test_servers::pgbouncer_server pool{test_postgres::shared_server(), {{"default_pool_size", "1"}}};
  testing::token_source tokens;
  auto const url = pool.url(db.value("SELECT current_database()"));
  postgres::lease_store first{{.url = url}, tokens};
  postgres::lease_store second{{.url = url}, tokens};
  pqxx::connection next_client{url};
  auto const session = [&] {
    pqxx::nontransaction tx{next_client};
    return tx
        .exec(
            "SELECT pg_backend_pid() || ' ' || (SELECT count(*) FROM pg_listening_channels()) "
            "|| ' ' || current_setting('statement_timeout') || ' ' || "
            "current_setting('synchronous_commit') || ' ' || (SELECT count(*) FROM "
            "pg_prepared_statements)")[0][0]
        .as<std::string>();
  };
  auto const before = session();
  auto held = first.acquire(request("account/1"));
  REQUIRE(held.has_value());
  std::optional<lease> next;
  std::thread waiter{[&] { next = second.acquire(request("account/1", 30s)); }};
  REQUIRE(eventually([&] { return second.counters().attempts >= 4; }));  // it polls
  CHECK(db.value("SELECT cardinality(waiters) FROM fenceguard.lease") == "0");
  CHECK(held->release() == release_outcome::released);
  waiter.join();
  REQUIRE(next.has_value());
  CHECK(next->release() == release_outcome::released);
  CHECK(session() == before);
}

TEST_CASE("lease_store: options that are not valid") {
  testing::token_source tokens;
  auto const refuses = [&](postgres::lease_store_options const& options) {
    CHECK_THROWS_AS((postgres::lease_store{options, tokens}), invalid_request);
  };
  refuses({.connections = 0});
  refuses({.connections = 65});
  refuses({.url = std::string{"a\0b", 3}});
  refuses({.settings = {.clock = nullptr}});
}

}  // namespace fenceguard::lease_backend_tests
