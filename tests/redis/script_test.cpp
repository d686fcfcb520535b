#include "redis/script.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "servers/redis_server.hpp"

using namespace fenceguard::redis;
using namespace std::chrono_literals;
using fenceguard::boottime;
using fenceguard::test_servers::redis_server;

namespace {

connection_options options_for(redis_server const& server) {
  return connection_options::from_url(parse_url(server.url()));
}

long long calls_of(redis_server const& server, std::string const& command) {
  auto const field = server.info("commandstats", "cmdstat_" + command);
  return field ? std::stoll(field->substr(field->find('=') + 1)) : 0;
}

constexpr char const* echo = "return {KEYS[1], ARGV[1]}";

}  // namespace

TEST_CASE("the first run teaches the digest, later ones send only it") {
  redis_server server;
  connection store{options_for(server)};
  script const what{echo};
  std::array<std::string_view, 1> const keys{"k"};
  std::array<std::string_view, 1> const arguments{std::string_view{"binary\r\n\0.", 10}};
  CHECK_FALSE(what.digest());
  for (int i = 0; i < 3; ++i) {
    auto const outcome = evaluate(store, what, {keys, arguments}, boottime::now() + 10s);
    REQUIRE(outcome.replied());
    REQUIRE(outcome.answer.size() == 2);
    CHECK(outcome.answer[0].text() == "k");
    CHECK(outcome.answer[1].text() == arguments[0]);
  }
  auto const loaded = server.command({"SCRIPT", "LOAD", echo});
  REQUIRE(what.digest());
  CHECK(*what.digest() == loaded.text);
  CHECK(calls_of(server, "eval") == 2);  // the script, and the question for its digest
  CHECK(calls_of(server, "evalsha") == 2);
}

TEST_CASE("NOSCRIPT is answered by the whole text, also when the cache is flushed all the time") {
  redis_server server;
  connection store{options_for(server)};
  script const what{echo};
  std::atomic<bool> stop = false;
  std::thread flusher{[&] {
    while (!stop) server.command({"SCRIPT", "FLUSH"});
  }};
  std::vector<std::thread> callers;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        auto const mine = std::to_string(t) + "/" + std::to_string(i);
        std::array<std::string_view, 1> const keys{mine};
        std::array<std::string_view, 1> const arguments{mine};
        auto const outcome = evaluate(store, what, {keys, arguments}, boottime::now() + 20s);
        if (!outcome.replied() || outcome.answer[1].text() != mine) ++wrong;
      }
    });
  }
  for (auto& one : callers) one.join();
  stop = true;
  flusher.join();
  CHECK(wrong == 0);
}

TEST_CASE("many runs at once keep their order, with and without a known script") {
  redis_server server;
  connection store{options_for(server)};
  script const what{echo};
  constexpr std::size_t count = 1500;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back("n" + std::to_string(i));
  std::vector<std::array<std::string_view, 1>> words;
  for (auto const& name : names) words.push_back({name});
  std::vector<script_call> calls;
  for (auto const& word : words) calls.push_back({word, word});

  for (auto const* stage : {"digest unknown", "script known", "script flushed"}) {
    CAPTURE(stage);
    if (std::string_view{stage} == "script flushed") server.command({"SCRIPT", "FLUSH"});
    auto const results = evaluate_all(store, what, calls, boottime::now() + 20s);
    REQUIRE(results.size() == count);
    std::size_t right = 0;
    for (std::size_t i = 0; i < count; ++i) {
      right += results[i].replied() && results[i].answer[1].text() == names[i] ? 1U : 0U;
    }
    CHECK(right == count);
  }
  // unknown: all whole, and the question; known: none; flushed: one teaches the others
  CHECK(calls_of(server, "eval") == static_cast<long long>(count) + 2);
}

TEST_CASE("a script's own error is a reply") {
  redis_server server;
  connection store{options_for(server)};
  script const wrong{"return redis.call('NOSUCH')"};
  auto const outcome = evaluate(store, wrong, {}, boottime::now() + 10s);
  REQUIRE(outcome.replied());
  CHECK(outcome.answer.is_error());
  script const broken{"this is no Lua"};
  for (int i = 0; i < 2; ++i) {
    auto const refused = evaluate(store, broken, {}, boottime::now() + 10s);
    REQUIRE(refused.replied());
    CHECK(refused.answer.is_error());
  }
}

TEST_CASE("a user with the least rights can run scripts") {
  redis_server server;
  server.command({"ACL", "SETUSER", "u", "on", ">pw", "~*", "+eval", "+evalsha"});
  auto options = options_for(server);
  options.login = {"u", "pw"};
  connection store{options};
  script const what{"return ARGV[1]"};
  std::array<std::string_view, 1> const arguments{"x"};
  for (int i = 0; i < 2; ++i) {
    auto const outcome = evaluate(store, what, {{}, arguments}, boottime::now() + 10s);
    REQUIRE(outcome.replied());
    CHECK(outcome.answer.text() == "x");
  }
  CHECK(what.digest());
}

TEST_CASE("EVALSHA and EVAL share one deadline") {
  redis_server server;
  connection store{options_for(server)};
  script const what{echo};
  std::array<std::string_view, 1> const word{"w"};
  REQUIRE(evaluate(store, what, {word, word}, boottime::now() + 10s).replied());
  server.command({"SCRIPT", "FLUSH"});
  server.pause();
  auto const start = boottime::now();
  auto const outcome = evaluate(store, what, {word, word}, start + 200ms);
  auto const took = boottime::now() - start;
  server.resume();
  CHECK(outcome.outcome == fate::unknown);
  CHECK(took >= 200ms);
  CHECK(took < 700ms);
}
