// What was won and is not wanted, or was never a majority, is given back everywhere.

#include <array>
#include <fenceguard/core/errors.hpp>
#include <string>
#include <thread>
#include <vector>

#include "redis/redlock_fixture.hpp"

namespace fenceguard::redis_tests {

using test_servers::direction;
using test_servers::eventually;

namespace {

// Of servers that a competitor has not.
int copies_beside(quorum& servers, std::string const& resource, std::size_t from) {
  int count = 0;
  for (std::size_t i = from; i < 5; ++i) count += static_cast<int>(servers.has(i, resource));
  return count;
}

// What the server counts of SET, which is what takes a lease.
std::string sets(test_servers::redis_server const& server) {
  return server.info("commandstats", "cmdstat_set").value_or("none");
}

}  // namespace

TEST_CASE("partial quorum left behind: what a loser had won is given back") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens);
  for (std::size_t i : {0U, 1U, 2U}) servers.put(i, "account/1", new_holder(), 40s);
  for (int i = 0; i < 20; ++i) {
    auto const answer = try_acquire(*store, "account/1", new_holder(), 1h);
    INFO(describe(answer));
    REQUIRE(std::holds_alternative<backend::busy>(answer));
    CHECK(std::get<backend::busy>(answer).remaining > 0ms);
    CHECK(std::get<backend::busy>(answer).remaining <= 40s);
    CHECK(eventually([&] { return copies_beside(servers, "account/1", 3) == 0; }));
  }
  CHECK(tokens.calls() == 0);
  CHECK(servers.copies("account/1") == 3);
}

TEST_CASE("partial quorum left behind: a split vote leaves nothing, and both sides may try again") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens);
  auto const one = new_holder();
  auto const another = new_holder();
  servers.put(0, "account/1", one);
  servers.put(1, "account/1", one);
  servers.put(2, "account/1", another);
  auto const answer = try_acquire(*store, "account/1", new_holder(), 1h);
  INFO(describe(answer));
  REQUIRE(std::holds_alternative<backend::busy>(answer));
  CHECK(eventually([&] { return copies_beside(servers, "account/1", 3) == 0; }));
  CHECK(!store->inspect("account/1", in(5s)).has_value());
  REQUIRE(servers.drop(2, "account/1"));
  token_of(try_acquire(*store, "account/1", new_holder()));
}

TEST_CASE("partial quorum left behind: a server that answers too late gives back as well") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens, {.relayed = true});
  auto const warm = new_holder();
  token_of(try_acquire(*store, "account/0", warm));
  for (std::size_t i : {0U, 1U, 2U}) servers.put(i, "account/1", new_holder());
  SUBCASE("its reply is late") { servers.relay(4).stall(direction::to_client); }
  SUBCASE("the request is late") { servers.relay(4).stall(direction::to_server); }
  SUBCASE("it is slow") { servers.relay(4).delay(300ms); }
  auto const answer = try_acquire(*store, "account/1", new_holder(), 1h, 4s);
  INFO(describe(answer));
  CHECK(std::holds_alternative<backend::busy>(answer));
  servers.relay(4).delay(0ms);
  servers.relay(4).flow();
  // A hold that reaches the server after this is followed by what undoes it.
  auto const again = new_holder();
  CHECK(eventually([&] {
    token_of(try_acquire(*store, "account/2", again));
    auto const there = servers.has(4, "account/2");
    REQUIRE(store->release("account/2", again, in(5s)) == release_outcome::released);
    return there;
  }));
  CHECK(eventually([&] { return copies_beside(servers, "account/1", 3) == 0; }));
}

TEST_CASE("key left by a timed-out acquire: every server gives it back once it answers") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens, {.relayed = true, .command_timeout = 20s});
  auto const warm = new_holder();
  token_of(try_acquire(*store, "account/0", warm));
  REQUIRE(eventually([&] { return servers.copies("account/0") == 5; }));
  // A server that still owes a reply is sent nothing more. With the other two held up, a majority
  // is these three, which owe nothing once they have renewed.
  for (std::size_t i : {3U, 4U}) servers.relay(i).stall(direction::to_client);
  REQUIRE(eventually(
      [&] { return renew(*store, "account/0", warm).answer == backend::renew_answer::renewed; }));
  for (std::size_t i : {0U, 1U, 2U}) servers.relay(i).stall(direction::to_client);
  for (std::size_t i : {3U, 4U}) servers.relay(i).flow();
  std::array<std::string, 5> before;
  for (std::size_t i = 0; i < 5; ++i) before[i] = sets(servers.server(i));
  auto const answer = try_acquire(*store, "account/1", new_holder(), 1h, 6s);
  INFO(describe(answer));
  CHECK(std::holds_alternative<backend::unknown>(answer));
  // Every server has had it, and may have given it back by now: what undoes it follows at once.
  for (std::size_t i = 0; i < 5; ++i) CHECK(sets(servers.server(i)) != before[i]);
  CHECK(eventually([&] { return copies_beside(servers, "account/1", 3) == 0; }));
  for (std::size_t i : {0U, 1U, 2U}) servers.relay(i).flow();
  CHECK(eventually([&] { return servers.copies("account/1") == 0; }));
}

TEST_CASE("key left by a timed-out acquire: one that may yet come is undone after its time") {
  // What has to happen within a hold's time takes longer on a busy machine: then with more of it.
  bool in_time = false;
  for (auto time = 4s; !in_time; time *= 2) {
    REQUIRE(time < 1min);
    quorum servers;
    counted_tokens tokens;
    event_log log;
    auto const store =
        servers.open(tokens, {.relayed = true, .command_timeout = 200ms, .log = &log});
    token_of(try_acquire(*store, "account/0", new_holder()));
    REQUIRE(eventually([&] { return servers.copies("account/0") == 5; }));
    // The hold vanishes on its way to one server.
    servers.relay(0).swallow(direction::to_server);
    auto const holder = new_holder();
    auto const end = in(time);
    token_of(try_acquire(*store, "account/1", holder, 1h, time));
    REQUIRE(eventually([&] { return !log.errors().empty(); }));  // the server does not answer
    servers.relay(0).flow();
    CHECK(store->release("account/1", holder, in(5s)) == release_outcome::released);
    REQUIRE(eventually([&] { return servers.copies("account/1") == 0; }));
    REQUIRE(eventually([&] {
      auto const name = new_holder();
      token_of(try_acquire(*store, name, name));
      return servers.has(0, name);
    }));
    // A network that delivers it only now, after the release and in time still.
    servers.put(0, "account/1", holder, 1h);
    in_time = boottime::now() < end;
    if (in_time) CHECK(eventually([&] { return servers.copies("account/1") == 0; }));
  }
}

TEST_CASE("release: a server that hangs gives back what it holds when it goes on") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens, {.command_timeout = 200ms});
  auto const holder = new_holder();
  token_of(try_acquire(*store, "account/1", holder, 1h));
  REQUIRE(eventually([&] { return servers.copies("account/1") == 5; }));
  servers.server(2).pause();
  CHECK(time_of([&] {
          CHECK(store->release("account/1", holder, in(10s)) == release_outcome::released);
        }) < 5s);
  servers.server(2).resume();
  CHECK(eventually([&] { return servers.copies("account/1") == 0; }));
}

TEST_CASE("release: a server that was down gives back what it kept on its disk") {
  quorum servers{{.persistent = true}};
  counted_tokens tokens;
  auto const store = servers.open(tokens, {.command_timeout = 200ms});
  auto const holder = new_holder();
  token_of(try_acquire(*store, "account/1", holder, 1h));
  REQUIRE(eventually([&] { return servers.copies("account/1") == 5; }));
  for (std::size_t i : {0U, 1U, 2U}) servers.kill(i);
  CHECK(store->release("account/1", holder, in(200ms)) == release_outcome::unknown);
  for (std::size_t i : {0U, 1U, 2U}) servers.server(i).start();
  CHECK(eventually([&] { return servers.copies("account/1") == 0; }));
}

TEST_CASE("release never deletes another's lease") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens);
  auto const holder = new_holder();
  token_of(try_acquire(*store, "account/1", holder, 1h));
  auto const newer = new_holder();
  for (std::size_t i = 0; i < 5; ++i) servers.put(i, "account/1", newer);
  CHECK(store->release("account/1", holder, in(5s)) == release_outcome::already_lost);
  auto const info = store->inspect("account/1", in(5s));
  REQUIRE(info.has_value());
  CHECK(info->holder == newer);
  CHECK(servers.copies("account/1") == 5);
}

TEST_CASE("release: servers that were down when the lease was taken do not make it a loss") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens);
  servers.kill(0);
  servers.kill(1);
  auto const holder = new_holder();
  token_of(try_acquire(*store, "account/1", holder, 1h));
  servers.server(0).start();
  servers.server(1).start();
  REQUIRE(eventually([&] {
    auto const name = new_holder();
    token_of(try_acquire(*store, name, name));
    return servers.copies(name) == 5;
  }));
  SUBCASE("three delete it, two deny it") {
    CHECK(store->release("account/1", holder, in(5s)) == release_outcome::released);
  }
  SUBCASE("two delete it, two deny it, one is dead by now") {
    servers.kill(2);
    CHECK(store->release("account/1", holder, in(5s)) == release_outcome::released);
  }
  SUBCASE("two delete it, three deny it") {
    REQUIRE(servers.drop(2, "account/1"));
    CHECK(store->release("account/1", holder, in(5s)) == release_outcome::already_lost);
  }
  CHECK(eventually([&] { return servers.copies("account/1") == 0; }));
}

TEST_CASE("the token source is down: an error, and nothing stays held") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens);
  tokens.set_available(false);
  // An error, or an unknown outcome where a server was too slow to confirm the undo at once.
  auto const fails = [&](std::chrono::milliseconds time) {
    try {
      auto const answer = try_acquire(*store, "account/1", new_holder(), 1h, time);
      INFO(describe(answer));
      CHECK(std::holds_alternative<backend::unknown>(answer));
    } catch (token_source_unavailable const&) {
    }
    CHECK(eventually([&] { return servers.copies("account/1") == 0; }));
  };
  fails(5s);
  tokens.set_available(true);
  tokens.hold_up();
  fails(300ms);  // the time is over before there is a token; the undo comes after it
  tokens.go_on();
}

TEST_CASE("a grant that a majority has lost before it was numbered is none") {
  quorum servers;
  counted_tokens tokens;
  auto const store = servers.open(tokens);
  tokens.hold_up();
  backend::acquire_answer answer = backend::busy{};
  std::thread caller{[&] { answer = try_acquire(*store, "account/1", new_holder(), 1h, 20s); }};
  REQUIRE(eventually([&] { return tokens.waiting() == 1 && servers.copies("account/1") == 5; }));
  bool enough = false;
  SUBCASE("by three") {
    for (std::size_t i : {0U, 2U, 4U}) REQUIRE(servers.drop(i, "account/1"));
  }
  SUBCASE("by two: a majority still stands") {
    enough = true;
    for (std::size_t i : {0U, 2U}) REQUIRE(servers.drop(i, "account/1"));
  }
  tokens.go_on();
  caller.join();
  INFO(describe(answer));
  CHECK(std::holds_alternative<backend::granted>(answer) == enough);
  if (!enough) CHECK(eventually([&] { return servers.copies("account/1") == 0; }));
}

TEST_CASE("stores that compete split votes and come to an end") {
  quorum servers;
  counted_tokens tokens;
  std::atomic<int> inside{0};
  std::atomic<int> grants{0};
  std::atomic<bool> wrong{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      auto const store = servers.open(tokens);
      auto const until = in(30s);
      for (int done = 0; done < 10 && boottime::now() < until;) {
        auto const holder = new_holder();
        auto const answer = try_acquire(*store, "account/1", holder);
        if (std::holds_alternative<backend::granted>(answer)) {
          if (++inside != 1) wrong = true;
          ++grants;
          ++done;
          --inside;
          if (store->release("account/1", holder, in(5s)) != release_outcome::released) {
            wrong = true;
          }
        } else if (!std::holds_alternative<backend::busy>(answer)) {
          wrong = true;
        }
        std::this_thread::sleep_for(std::chrono::microseconds{500 + 700 * t});
      }
    });
  }
  for (auto& one : threads) one.join();
  CHECK(!wrong);
  CHECK(grants == 80);
  CHECK(eventually([&] { return servers.copies("account/1") == 0; }));
}

}  // namespace fenceguard::redis_tests
