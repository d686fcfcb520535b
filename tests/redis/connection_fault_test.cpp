#include <doctest/doctest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "redis/byte_server.hpp"
#include "redis/connection.hpp"
#include "servers/redis_server.hpp"
#include "servers/relay.hpp"
#include "servers/wait.hpp"

using namespace fenceguard::redis;
using namespace std::chrono_literals;
using fenceguard::boottime;
using fenceguard::redis_tests::byte_server;
using fenceguard::test_servers::direction;
using fenceguard::test_servers::eventually;
using fenceguard::test_servers::reaction;
using fenceguard::test_servers::redis_server;
using fenceguard::test_servers::relay;

namespace {
std::atomic<bool> pause_after_send = false;
}

// In front of the C library's: the kernel has taken the bytes, the server answers, and the sending
// thread is held up before it can go on. The scheduler does this too, but rarely.
extern "C" ssize_t send(int descriptor, void const* bytes, std::size_t size, int flags) {
  static std::atomic<unsigned> calls = 0;
  auto const sent = ::syscall(SYS_sendto, descriptor, bytes, size, flags, nullptr, 0);
  int const fault = errno;
  if (pause_after_send && ++calls % 3 == 0) std::this_thread::sleep_for(400us);
  errno = fault;
  return sent;
}

namespace {

// What a busy machine may add to a deadline. What these tests would find is a call that waits for a
// server or for another caller's deadline, and those are far longer here.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::chrono::nanoseconds slack = 400ms;
#else
constexpr std::chrono::nanoseconds slack = 150ms;
#endif

connection_options options_for(redis_server const& server) {
  return connection_options::from_url(parse_url(server.url()));
}

connection_options options_for_port(int port) {
  connection_options options;
  options.server = {"127.0.0.1", static_cast<std::uint16_t>(port), ""};
  return options;
}

result echo(connection& store, std::string const& value, std::chrono::nanoseconds time) {
  return store.call(command{"ECHO", value}, boottime::now() + time);
}

struct tally {
  std::atomic<int> replied{0}, not_sent{0}, unknown{0}, crossed{0}, late{0}, unexplained{0};
  std::atomic<std::int64_t> worst{0};

  void count(result const& outcome, std::string const& expected, std::chrono::nanoseconds over) {
    if (outcome.replied()) {
      ++replied;
      if (outcome.answer.text() != expected) ++crossed;
    } else {
      ++(outcome.outcome == fate::unknown ? unknown : not_sent);
      if (outcome.why == failure::none) ++unexplained;
    }
    if (over > slack) ++late;
    auto seen = worst.load();
    while (over.count() > seen && !worst.compare_exchange_weak(seen, over.count())) {
    }
  }
};

}  // namespace

TEST_CASE("32 threads, stopped server, killed connections: no late call, no crossed reply") {
  redis_server server;
  auto options = options_for(server);
  options.silence_limit = 300ms;
  connection store{options};
  std::atomic<bool> stop = false;
  tally seen;
  std::vector<std::thread> callers;
  for (unsigned t = 0; t < 32; ++t) {
    callers.emplace_back([&, t] {
      std::mt19937 random{t};
      std::vector<std::string> values;
      for (int i = 0; !stop; ++i) {
        auto const value = std::to_string(t) + "/" + std::to_string(i);
        auto const time = std::chrono::milliseconds{5 + random() % 250};
        auto const deadline = boottime::now() + time;
        if (i % 7 == 0) {
          std::vector<command> several;
          for (int n = 0; n < 5; ++n) several.push_back(command{"ECHO", value + std::to_string(n)});
          auto const results = store.call_all(several, deadline);
          for (int n = 0; n < 5; ++n) {
            seen.count(results[static_cast<std::size_t>(n)], value + std::to_string(n),
                       boottime::now() - deadline);
          }
        } else {
          auto const order = i % 5 == 0 ? priority::urgent : priority::normal;
          auto const outcome = store.call(command{"ECHO", value}, deadline, order);
          seen.count(outcome, value, boottime::now() - deadline);
        }
      }
    });
  }
  for (int pause = 60; pause <= 480; pause += 60) {
    auto const before = seen.replied.load();
    CHECK(eventually([&] { return seen.replied > before + 200; }));  // it works again
    server.pause();
    std::this_thread::sleep_for(std::chrono::milliseconds{pause});
    server.resume();
    server.command({"CLIENT", "KILL", "TYPE", "normal"});
  }
  auto const before = seen.replied.load();
  CHECK(eventually([&] { return seen.replied > before + 200; }));
  stop = true;
  for (auto& one : callers) one.join();
  MESSAGE("replied " << seen.replied.load() << ", unknown " << seen.unknown.load() << ", not sent "
                     << seen.not_sent.load() << ", worst overrun " << seen.worst.load() / 1000
                     << " us");
  CHECK(seen.crossed == 0);
  CHECK(seen.late == 0);
  CHECK(seen.unexplained == 0);
  CHECK(seen.unknown > 0);
  CHECK(seen.not_sent > 0);
  auto const counters = store.counters();
  CHECK(counters.drops > 0);
  CHECK(counters.connects > 1);
  CHECK(counters.handovers > 0);
}

TEST_CASE("a sender that is interrupted after its send: no crossed and no lost reply") {
  redis_server server;
  auto options = options_for(server);
  options.silence_limit = 60s;
  connection store{options};
  tally seen;
  pause_after_send = true;
  for (int threads : {2, 8, 12, 32}) {
    std::vector<std::thread> callers;
    for (int t = 0; t < threads; ++t) {
      callers.emplace_back([&, t] {
        for (int i = 0; i < 8000 / threads; ++i) {
          auto const value = std::to_string(t) + "/" + std::to_string(i);
          seen.count(echo(store, value, 30s), value, 0ns);
        }
      });
    }
    for (auto& caller : callers) caller.join();
  }
  pause_after_send = false;
  CHECK(seen.crossed == 0);
  CHECK(seen.unknown + seen.not_sent == 0);
  CHECK(store.counters().connects == 1);
}

TEST_CASE("the role is handed over in mid-batch when the leader's own reply is there") {
  // The server answers one command of each batch at a time, half a second apart.
  byte_server server{[](int descriptor) {
    std::string heard;
    for (;;) {
      auto const bytes = byte_server::hear(descriptor);
      if (bytes.empty()) return;
      heard += bytes;
      for (auto end = heard.find("ECHO\r\n$1\r\n"); end != std::string::npos;
           end = heard.find("ECHO\r\n$1\r\n")) {
        heard.erase(0, end + 10);
        byte_server::say(descriptor, "$1\r\n" + heard.substr(0, 1) + "\r\n");
        std::this_thread::sleep_for(500ms);
      }
    }
  }};
  connection store{options_for_port(server.port())};
  std::vector<command> two;
  two.push_back(command{"ECHO", "0"});
  two.push_back(command{"ECHO", "1"});
  std::thread first{
      [&] { CHECK(store.call_all(two, boottime::now() + 10s)[1].answer.text() == "1"); }};
  REQUIRE(eventually([&] { return store.counters().commands == 2; }));
  std::atomic<int> right = 0;
  std::vector<std::thread> callers;
  std::vector<boottime::time_point> ended(3);
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&, i] {
      auto const value = std::to_string(i + 2);
      right += echo(store, value, 10s).answer.text() == value ? 1 : 0;
      ended[static_cast<std::size_t>(i)] = boottime::now();
    });
  }
  first.join();
  for (auto& one : callers) one.join();
  CHECK(right == 3);
  CHECK(store.counters().batches == 2);
  CHECK(store.counters().handovers >= 3);
  std::sort(ended.begin(), ended.end());
  CHECK(ended[1] - ended[0] > 250ms);  // nobody waited for the whole batch
  CHECK(ended[2] - ended[1] > 250ms);
}

TEST_CASE("the role is handed over when the leader's deadline has come") {
  redis_server server;
  auto options = options_for(server);
  options.silence_limit = 30s;
  connection store{options};
  REQUIRE(echo(store, "x", 10s).replied());
  server.pause();
  result leader, follower;
  std::thread first{[&] { leader = echo(store, "leader", 300ms); }};
  REQUIRE(eventually([&] { return store.counters().commands == 2; }));
  std::thread second{[&] { follower = echo(store, "follower", 30s); }};
  first.join();
  CHECK(leader.outcome == fate::unknown);
  CHECK(leader.why == failure::deadline);
  server.resume();
  second.join();
  CHECK(follower.answer.text() == "follower");
}

TEST_CASE("late reply taken for the next command: it is never") {
  redis_server server;
  relay between{server.port()};
  connection store{options_for_port(between.port())};
  REQUIRE(echo(store, "before", 10s).replied());
  for (int i = 0; i < 5; ++i) {
    between.stall(direction::to_client);
    auto const value = std::to_string(i);
    CHECK(echo(store, "late" + value, 100ms).outcome == fate::unknown);
    between.flow();
    CHECK(echo(store, "next" + value, 10s).answer.text() == "next" + value);
  }
}

TEST_CASE("a late reply is counted off while others wait on the same stream") {
  redis_server server;
  auto options = options_for(server);
  options.silence_limit = 30s;
  connection store{options};
  REQUIRE(echo(store, "x", 10s).replied());
  server.pause();
  std::thread holder{[&] { CHECK(echo(store, "first", 30s).answer.text() == "first"); }};
  REQUIRE(eventually([&] { return store.counters().commands == 2; }));
  // Both go out in one batch behind the first; one of them is given up before its reply comes.
  std::thread patient{[&] { CHECK(echo(store, "patient", 30s).answer.text() == "patient"); }};
  std::thread other{[&] { CHECK(echo(store, "other", 30s).answer.text() == "other"); }};
  CHECK(echo(store, "hasty", 200ms).outcome == fate::not_sent);
  server.resume();
  holder.join();
  patient.join();
  other.join();
  CHECK(store.counters().connects == 1);

  byte_server slow{[](int descriptor) {
    std::string heard;
    while (heard.find("two") == std::string::npos) {
      auto const bytes = byte_server::hear(descriptor);
      if (bytes.empty()) return;
      heard += bytes;
      if (heard.find("zero") != std::string::npos && heard.find("one") == std::string::npos) {
        std::this_thread::sleep_for(300ms);
        byte_server::say(descriptor, "$4\r\nzero\r\n");
      }
    }
    std::this_thread::sleep_for(400ms);
    bool const ordered = heard.find("one") < heard.find("two");
    byte_server::say(descriptor,
                     ordered ? "$3\r\none\r\n$3\r\ntwo\r\n" : "$3\r\ntwo\r\n$3\r\none\r\n");
    byte_server::hear(descriptor);
  }};
  connection stream{options_for_port(slow.port())};
  std::thread zero{[&] { CHECK(echo(stream, "zero", 10s).answer.text() == "zero"); }};
  REQUIRE(eventually([&] { return stream.counters().commands == 1; }));
  result one;
  std::thread hasty{[&] { one = echo(stream, "one", 500ms); }};
  CHECK(echo(stream, "two", 10s).answer.text() == "two");
  hasty.join();
  zero.join();
  CHECK(one.outcome == fate::unknown);
  CHECK(stream.counters().late == 1);
  CHECK(stream.counters().connects == 1);
}

TEST_CASE("timed out: unknown when sent, not_sent when still queued") {
  redis_server server;
  auto options = options_for(server);
  options.silence_limit = 30s;
  connection store{options};
  REQUIRE(echo(store, "x", 10s).replied());
  server.pause();
  result sent, queued;
  std::thread first{[&] {
    sent = store.call(command{"SET", "sent", "1"}, boottime::now() + 600ms);
  }};
  REQUIRE(eventually([&] { return store.counters().commands == 2; }));
  auto const deadline = boottime::now() + 200ms;
  queued = store.call(command{"SET", "queued", "1"}, deadline);
  CHECK(boottime::now() - deadline < slack);
  first.join();
  server.resume();
  CHECK(queued.outcome == fate::not_sent);
  CHECK(queued.why == failure::deadline);
  CHECK(sent.outcome == fate::unknown);
  CHECK(sent.why == failure::deadline);
  CHECK(eventually([&] { return server.command({"EXISTS", "sent"}).integer == 1; }));
  CHECK(echo(store, "y", 10s).replied());
  CHECK(server.command({"EXISTS", "queued"}).integer == 0);
}

TEST_CASE("signals and a server that drips bytes do not extend a deadline") {
  byte_server server{[](int descriptor) {
    byte_server::hear(descriptor);
    if (!byte_server::say(descriptor, "$100000\r\n")) return;
    while (byte_server::say(descriptor, "x")) std::this_thread::sleep_for(10ms);
  }};
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  REQUIRE(::sigaction(SIGUSR1, &action, &before) == 0);
  for (auto time : {15ms, 300ms}) {  // near the deadline, and far from it, it waits differently
    connection store{options_for_port(server.port())};
    std::atomic<bool> done = false;
    auto const caller = ::pthread_self();
    std::thread signaller{[&] {
      while (!done) {
        ::pthread_kill(caller, SIGUSR1);
        std::this_thread::sleep_for(5ms);
      }
    }};
    auto const deadline = boottime::now() + time;
    auto const outcome = store.call(command{"GET", "k"}, deadline);
    auto const over = boottime::now() - deadline;
    done = true;
    signaller.join();
    CHECK(outcome.outcome == fate::unknown);
    CHECK(outcome.why == failure::deadline);
    CHECK(over >= 0ns);
    CHECK(over < slack);
  }
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST_CASE("a server that drips its login does not extend a deadline") {
  byte_server server{[](int descriptor) {
    byte_server::hear(descriptor);
    while (byte_server::say(descriptor, "+")) std::this_thread::sleep_for(10ms);
  }};
  auto options = options_for_port(server.port());
  options.login.password = "x";
  connection store{options};
  auto const deadline = boottime::now() + 300ms;
  auto const outcome = store.call(command{"PING"}, deadline);
  CHECK(boottime::now() - deadline < slack);
  CHECK(outcome.outcome == fate::not_sent);
  CHECK(outcome.why == failure::unreachable);
}

TEST_CASE("a server restarted while the connection is open: the next call works") {
  redis_server server;
  for (auto const& url : {server.url(), server.url_unix()}) {
    connection store{connection_options::from_url(parse_url(url))};
    REQUIRE(echo(store, "before", 10s).replied());
    server.restart();
    CHECK(echo(store, "after", 10s).answer.text() == "after");
    server.stop(redis_server::stop_mode::kill);
    std::this_thread::sleep_for(5ms);  // longer than what counts as idle
    auto const down = echo(store, "down", 10s);
    CHECK(down.outcome == fate::not_sent);
    CHECK(down.why == failure::unreachable);
    server.start();
    CHECK(echo(store, "again", 10s).answer.text() == "again");
    CHECK(store.counters().connects == 3);
  }
}

TEST_CASE("a killed connection: the next call works") {
  redis_server server;
  connection store{options_for(server)};
  REQUIRE(echo(store, "before", 10s).replied());
  server.command({"CLIENT", "KILL", "TYPE", "normal"});
  std::this_thread::sleep_for(5ms);  // longer than what counts as idle
  CHECK(echo(store, "after", 10s).answer.text() == "after");
}

TEST_CASE("a connection reset under a call is unknown, and SIGPIPE never ends the process") {
  ::signal(SIGPIPE, SIG_DFL);
  redis_server server;
  relay between{server.port()};
  connection store{options_for_port(between.port())};
  int unknown = 0;
  for (int i = 0; i < 20; ++i) {
    REQUIRE(echo(store, "before", 10s).replied());
    between.when_seen(direction::to_server, "cut" + std::to_string(i) + ".", reaction::cut_before);
    auto const cut = echo(store, "cut" + std::to_string(i) + ".", 10s);
    CHECK_FALSE(cut.replied());
    CHECK(cut.why == failure::disconnected);
    unknown += cut.outcome == fate::unknown ? 1 : 0;
    between.cut();
    // Without the pause the next send meets the reset: SIGPIPE's moment.
    auto const next = echo(store, "next", 10s);
    CHECK((!next.replied() || next.answer.text() == "next"));
  }
  CHECK(unknown == 20);
  // A large command to a peer that has gone: the later parts are sent into a reset connection.
  std::string const large(8'000'000, 'x');
  for (int i = 0; i < 5; ++i) {
    between.cut_after_bytes(direction::to_server, 10'000);
    auto const outcome = store.call(command{"SET", "large", large}, boottime::now() + 10s);
    CHECK(outcome.outcome == fate::unknown);
  }
  CHECK(echo(store, "after", 10s).replied());
}

TEST_CASE("sending to a peer that has gone is an outcome, not a SIGPIPE") {
  ::signal(SIGPIPE, SIG_DFL);
  byte_server server{[](int) {}};  // hangs up at once
  resolver names;
  std::atomic<bool> const cancelled = false;
  auto peer = socket::connect({"127.0.0.1", server.port(), ""}, names,
                              {boottime::now() + 10s, cancelled}, nullptr);
  // The first bytes are answered by a reset; what is sent after it raises the signal.
  CHECK(eventually([&] {
    std::size_t sent = 0;
    return peer.send("x", sent) == socket::status::closed;
  }));
  std::size_t sent = 0;
  CHECK(peer.send("x", sent) == socket::status::closed);
  CHECK(sent == 0);
}

TEST_CASE("half-open: one deadline is lost, then a new connection is made") {
  redis_server server;
  relay between{server.port()};
  auto options = options_for_port(between.port());
  options.silence_limit = 60s;  // it is the lost deadline that counts here
  connection store{options};
  REQUIRE(echo(store, "before", 10s).replied());
  between.swallow(direction::to_server);
  auto const deadline = boottime::now() + 200ms;
  auto const lost = echo(store, "lost", 200ms);
  CHECK(boottime::now() - deadline < slack);
  CHECK(lost.outcome == fate::unknown);
  between.flow();  // what was swallowed stays lost
  CHECK(echo(store, "after", 10s).answer.text() == "after");
  CHECK(store.counters().connects == 2);
}

TEST_CASE("half-open under a command of a long deadline: the silence limit frees the others") {
  redis_server server;
  relay between{server.port()};
  auto options = options_for_port(between.port());
  options.silence_limit = 300ms;
  connection store{options};
  REQUIRE(echo(store, "before", 10s).replied());
  between.when_seen(direction::to_server, "swallowed", reaction::stall);
  result lost;
  std::thread patient{[&] { lost = echo(store, "swallowed", 60s); }};
  REQUIRE(eventually([&] { return between.fired() == 1; }));
  auto const start = boottime::now();
  std::thread freeing{[&] {
    // The stalled direction holds for new connections too; it is lifted once the old one is
    // dropped.
    CHECK(eventually([&] { return store.counters().drops == 1; }));
    between.flow();
  }};
  CHECK(echo(store, "after", 20s).answer.text() == "after");
  CHECK(boottime::now() - start < 5s);
  patient.join();
  freeing.join();
  CHECK(lost.outcome == fate::unknown);
  CHECK(lost.why == failure::disconnected);
}

TEST_CASE("callers that were queued share the answer of a refused connection") {
  redis_server server;
  connection store{options_for(server)};
  REQUIRE(echo(store, "x", 10s).replied());
  server.stop();
  std::atomic<int> refused = 0;
  std::vector<std::thread> callers;
  auto const start = boottime::now();
  for (int i = 0; i < 32; ++i) {
    callers.emplace_back([&] {
      auto const outcome = echo(store, "x", 30s);
      refused += outcome.outcome == fate::not_sent && outcome.why == failure::unreachable ? 1 : 0;
    });
  }
  for (auto& one : callers) one.join();
  CHECK(refused == 32);
  CHECK(boottime::now() - start < 5s);
}

TEST_CASE("callers that wait for a login share its refusal instead of trying in turn") {
  std::atomic<int> logins = 0;
  byte_server server{[&](int descriptor) {
    byte_server::hear(descriptor);
    ++logins;
    std::this_thread::sleep_for(400ms);  // the others queue up behind the first attempt
    byte_server::say(descriptor, "-WRONGPASS no\r\n");
    byte_server::hear(descriptor);
  }};
  auto options = options_for_port(server.port());
  options.login.password = "x";
  options.connect_timeout = 20s;
  connection store{options};
  std::atomic<int> refused = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 12; ++i) {
    callers.emplace_back([&] { refused += echo(store, "x", 30s).why == failure::refused ? 1 : 0; });
  }
  for (auto& one : callers) one.join();
  CHECK(refused == 12);
  CHECK(logins <= 4);
}

TEST_CASE("what is no RESP, and a reply that nobody asked for, end the connection") {
  std::atomic<int> turn = 0;
  byte_server server{[&](int descriptor) {
    byte_server::hear(descriptor);
    switch (turn++) {
      case 0:
        byte_server::say(descriptor, "HTTP/1.1 400 Bad Request\r\n\r\n");
        break;
      case 1:
        byte_server::say(descriptor, "$2\r\nok\r\n$4\r\nmore\r\n");
        break;
      default:
        byte_server::say(descriptor, "$2\r\nok\r\n");
    }
    byte_server::hear(descriptor);
  }};
  connection store{options_for_port(server.port())};
  auto const garbage = echo(store, "x", 10s);
  CHECK(garbage.outcome == fate::unknown);
  CHECK(garbage.why == failure::protocol);
  CHECK(echo(store, "x", 10s).answer.text() == "ok");  // its own reply came first
  CHECK(store.counters().drops == 2);
  CHECK(echo(store, "x", 10s).answer.text() == "ok");
  CHECK(store.counters().connects == 3);
}

TEST_CASE("a server that accepts and hangs up is not asked for ever") {
  std::atomic<int> accepted = 0;
  byte_server server{[&](int) { ++accepted; }};
  connection store{options_for_port(server.port())};
  auto const start = boottime::now();
  for (int i = 0; i < 20; ++i) {
    auto const outcome = echo(store, "x", 10s);
    CHECK_FALSE(outcome.replied());
    CHECK(outcome.why == failure::disconnected);
  }
  CHECK(boottime::now() - start < 5s);
  CHECK(accepted <= 60);
}
