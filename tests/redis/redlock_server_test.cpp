// One server of a quorum that does not keep up with what is asked of it, or refuses it.

#include "redis/redlock_server.hpp"

#include <fenceguard/core/errors.hpp>
#include <memory>
#include <string>
#include <vector>

#include "redis/redlock_fixture.hpp"

namespace fenceguard::redis_tests {

using redis::redlock_ballot;
using redis::redlock_request;
using redis::redlock_server;
using test_servers::direction;
using test_servers::eventually;
using ballot = std::shared_ptr<redlock_ballot>;

namespace {

redis::connection_options link_to(int port, std::chrono::milliseconds patience) {
  redis::connection_options link;
  link.server.host = "127.0.0.1";
  link.server.port = static_cast<std::uint16_t>(port);
  link.connect_timeout = link.silence_limit = patience;
  return link;
}

ballot ask(redlock_server& whom, redlock_request what, std::string const& holder,
           std::chrono::milliseconds patience = 60s) {
  std::vector<std::string> arguments{holder};
  if (what == redlock_request::confirm) arguments.push_back("7");
  if (what == redlock_request::inspect) arguments.clear();
  if (what == redlock_request::hold) arguments.insert(arguments.end(), {"3600000", "", "a test"});
  auto made = std::make_shared<redlock_ballot>(
      redlock_ballot::question{.what = what,
                               .calls = {{quorum::key(holder), std::move(arguments)}},
                               .deadline = in(patience),
                               .expires = in(1h)},
      1);
  whom.ask(made);
  return made;
}

// Whether the server said yes, once its vote is there.
bool yes(ballot const& one) {
  REQUIRE(one->sleep(in(60s)));
  return redis::tally(one->take(), 0, one->asked().what).yes == 1;
}

}  // namespace

TEST_CASE("a server that does not keep up: what waits for it does not pile up") {
  test_servers::redis_server server;
  test_servers::relay relay{server.port()};
  redlock_server asked{{.link = link_to(relay.port(), 1'500ms), .number = 0}};
  auto const first = new_holder();
  auto const last = new_holder();
  REQUIRE(yes(ask(asked, redlock_request::hold, first)));
  REQUIRE(yes(ask(asked, redlock_request::hold, last)));
  SUBCASE("it hangs") { relay.stall(direction::to_server); }
  SUBCASE("it is slow") { relay.delay(300ms); }
  std::vector<ballot> all{ask(asked, redlock_request::release, first, 500ms)};
  for (int i = 0; i < 20'000; ++i) {
    auto const name = new_holder();
    all.push_back(ask(asked, redlock_request::hold, name, 500ms));
    all.push_back(ask(asked, redlock_request::release, name, 500ms));
  }
  all.push_back(ask(asked, redlock_request::release, last, 500ms));
  auto const took = time_of([&] {
    for (auto const& one : all) REQUIRE(one->sleep(in(60s)));
  });
  CHECK(took < 9s);
  relay.delay(0ms);
  relay.flow();
  // What was to be given back is, and the server takes part again.
  CHECK(eventually([&] { return server.command({"DBSIZE"}).integer == 0; }));
  CHECK(eventually([&] { return yes(ask(asked, redlock_request::hold, new_holder())); }));
}

TEST_CASE("a server that lags gets a hold and its release in one message, and nothing stays") {
  test_servers::redis_server server;
  test_servers::relay relay{server.port()};
  redlock_server asked{{.link = link_to(relay.port(), 5s), .number = 0}};
  auto const nobody = new_holder();
  auto const teach = [&](redlock_request what) {
    static_cast<void>(yes(ask(asked, what, nobody)));
  };
  bool repeated = true;
  SUBCASE("one whose clock is known") {
    teach(redlock_request::hold);
    repeated = false;
  }
  SUBCASE("one whose clock is not known yet: it refuses the hold at first") {}
  SUBCASE("one that has forgotten the script of the hold alone") {
    teach(redlock_request::hold);
    teach(redlock_request::release);
    REQUIRE(!server.command({"SCRIPT", "FLUSH"}).is_error());
  }
  teach(redlock_request::confirm);
  teach(redlock_request::release);
  REQUIRE(server.command({"DBSIZE"}).integer == 0);

  relay.delay(100ms);
  auto const sent = relay.bytes(direction::to_server);
  auto const before = ask(asked, redlock_request::inspect, nobody);
  // On its way, so that what follows waits for its reply and goes together.
  REQUIRE(eventually([&] { return relay.bytes(direction::to_server) > sent; }));
  auto const holder = new_holder();
  auto const hold = ask(asked, redlock_request::hold, holder);
  auto const confirm = ask(asked, redlock_request::confirm, holder);
  auto const release = ask(asked, redlock_request::release, holder);
  CHECK(yes(hold));
  // What came too early says nothing; it is no loss.
  for (auto const& one : {confirm, release}) {
    REQUIRE(one->sleep(in(60s)));
    auto const said = redis::tally(one->take(), 0, one->asked().what);
    CHECK(said.no == 0);
    CHECK(said.failed == (repeated ? 1 : 0));
  }
  CHECK(eventually([&] { return server.command({"DBSIZE"}).integer == 0; }));
}

TEST_CASE("no more is remembered for a server that hangs than the bound allows") {
  test_servers::redis_server server;
  test_servers::relay relay{server.port()};
  event_log log;
  redlock_server asked{
      {.link = link_to(relay.port(), 300ms), .number = 0, .observer = &log, .most_leftovers = 3}};
  std::vector<std::string> holders;
  for (int i = 0; i < 10; ++i) {
    holders.push_back(new_holder());
    REQUIRE(yes(ask(asked, redlock_request::hold, holders.back())));
  }
  relay.swallow(direction::to_server);
  std::vector<ballot> all;
  for (auto const& one : holders) all.push_back(ask(asked, redlock_request::release, one, 200ms));
  for (auto const& one : all) REQUIRE(one->sleep(in(60s)));
  auto const told = [&] {
    int count = 0;
    for (auto const& text : log.errors()) count += text.find("than is remembered") != text.npos;
    return count;
  };
  REQUIRE(eventually([&] { return told() == 1; }));
  relay.flow();
  CHECK(eventually([&] { return server.command({"DBSIZE"}).integer == 7; }));
  // Once the server answers, nothing more is given back, and nothing more is told.
  auto const next = new_holder();
  CHECK(eventually([&] { return yes(ask(asked, redlock_request::hold, next)); }));
  CHECK(yes(ask(asked, redlock_request::release, next)));
  CHECK(server.command({"DBSIZE"}).integer == 7);
  CHECK(told() == 1);
}

TEST_CASE("a server that refuses is told of, once, though the quorum does without it") {
  quorum servers;
  counted_tokens tokens;
  event_log log;
  auto const store = servers.open(tokens, {.log = &log});
  auto const grant = [&] {
    auto const holder = new_holder();
    token_of(try_acquire(*store, holder, holder));
    CHECK(store->release(holder, holder, in(5s)) == release_outcome::released);
  };
  auto const limit = [&](char const* bytes) {
    REQUIRE(!servers.server(3).command({"CONFIG", "SET", "maxmemory", bytes}).is_error());
  };
  grant();
  CHECK(log.errors().empty());
  limit("1");
  REQUIRE(eventually([&] {
    grant();
    return !log.errors().empty();
  }));
  auto const name = "127.0.0.1:" + std::to_string(servers.server(3).port());
  CHECK(log.errors()[0].find(name) != std::string::npos);
  CHECK(log.errors()[0].find("OOM") != std::string::npos);
  for (int i = 0; i < 20; ++i) grant();
  CHECK(log.errors().size() <= 2);  // of hold and of confirm
  // Once it has served again, the next refusal is news.
  limit("0");
  REQUIRE(eventually([&] {
    auto const holder = new_holder();
    token_of(try_acquire(*store, holder, holder));
    return servers.has(3, holder);
  }));
  auto const before = log.errors().size();
  limit("1");
  CHECK(eventually([&] {
    grant();
    return log.errors().size() > before;
  }));
}

}  // namespace fenceguard::redis_tests
