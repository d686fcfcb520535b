#include "servers/redis_server.hpp"

#include <hiredis/hiredis.h>

#include <csignal>
#include <memory>
#include <stdexcept>

#include "servers/free_port.hpp"
#include "servers/wait.hpp"

namespace fenceguard::test_servers {
namespace {

redis_reply copy_of(redisReply const& raw) {
  redis_reply reply;
  switch (raw.type) {
    case REDIS_REPLY_INTEGER:
      reply.type = redis_reply::kind::integer;
      reply.integer = raw.integer;
      break;
    case REDIS_REPLY_STATUS:
    case REDIS_REPLY_STRING:
      reply.type = redis_reply::kind::text;
      reply.text.assign(raw.str, static_cast<std::size_t>(raw.len));
      break;
    case REDIS_REPLY_ERROR:
      reply.type = redis_reply::kind::error;
      reply.text.assign(raw.str, static_cast<std::size_t>(raw.len));
      break;
    case REDIS_REPLY_ARRAY:
      reply.type = redis_reply::kind::array;
      for (std::size_t i = 0; i < raw.elements; ++i) {
        reply.elements.push_back(copy_of(*raw.element[i]));
      }
      break;
    default:
      break;
  }
  return reply;
}

struct free_context {
  void operator()(redisContext* context) const { ::redisFree(context); }
};

using context_ptr = std::unique_ptr<redisContext, free_context>;

timeval time_limit(std::chrono::milliseconds bound) {
  auto const seconds = std::chrono::duration_cast<std::chrono::seconds>(bound);
  auto const rest = std::chrono::duration_cast<std::chrono::microseconds>(bound - seconds);
  return {seconds.count(), rest.count()};
}

context_ptr connected(redisContext* raw, std::chrono::milliseconds bound) {
  context_ptr context{raw};
  if (!context || context->err != 0) {
    throw std::runtime_error(std::string{"redis: "} + (context ? context->errstr : "no memory"));
  }
  if (::redisSetTimeout(context.get(), time_limit(bound)) != REDIS_OK) {
    throw std::runtime_error("redis: no timeout set");
  }
  return context;
}

redis_reply send(redisContext& context, std::vector<std::string> const& words) {
  std::vector<char const*> pointers;
  std::vector<std::size_t> lengths;
  for (auto const& word : words) {
    pointers.push_back(word.data());
    lengths.push_back(word.size());
  }
  auto* const raw = static_cast<redisReply*>(::redisCommandArgv(
      &context, static_cast<int>(words.size()), pointers.data(), lengths.data()));
  if (raw == nullptr) {
    throw std::runtime_error("redis " + words.at(0) + ": " + std::string{context.errstr});
  }
  redis_reply reply = copy_of(*raw);
  ::freeReplyObject(raw);
  return reply;
}

}  // namespace

redis_reply redis_command(int port, std::vector<std::string> const& words,
                          std::chrono::milliseconds bound) {
  return send(*connected(::redisConnectWithTimeout("127.0.0.1", port, time_limit(bound)), bound),
              words);
}

redis_server::redis_server() : redis_server(options{}) {}

redis_server::redis_server(options how) : options_(std::move(how)), port_(free_port()) {
  if (options_.start) start();
}

redis_server::~redis_server() = default;

pid_t redis_server::pid() const noexcept { return process_ ? process_->pid() : -1; }

std::string redis_server::url(int database) const {
  std::string const secret = options_.password.empty() ? "" : ":" + options_.password + "@";
  std::string const place = secret + "127.0.0.1:" + std::to_string(port_) + "/";
  if (!options_.encrypted) return "redis://" + place + std::to_string(database);
  return "rediss://" + place + std::to_string(database) +
         "?cacert=" + options_.encrypted->authority.string();
}

std::string redis_server::socket_path() const {
  return (directory_.path() / "redis.sock").string();
}

std::string redis_server::url_unix() const { return "unix://" + socket_path(); }

bool redis_server::try_start() {
  std::vector<std::string> command{options_.program,
                                   options_.encrypted ? "--tls-port" : "--port",
                                   std::to_string(port_),
                                   "--bind",
                                   "127.0.0.1",
                                   "--unixsocket",
                                   socket_path(),
                                   "--dir",
                                   directory_.path().string(),
                                   "--save",
                                   "",
                                   "--repl-diskless-sync-delay",
                                   "0",
                                   "--daemonize",
                                   "no"};
  auto add = [&](std::vector<std::string> const& words) {
    command.insert(command.end(), words.begin(), words.end());
  };
  if (auto const& with = options_.encrypted) {
    add({"--port", "0", "--tls-cert-file", with->own.certificate.string(), "--tls-key-file",
         with->own.key.string(), "--tls-ca-cert-file", with->authority.string(),
         "--tls-auth-clients", with->demand_certificates ? "yes" : "no", "--tls-replication", "yes",
         "--tls-cluster", "yes"});
  }
  if (options_.persistent) add({"--appendonly", "yes", "--appendfsync", "always"});
  if (!options_.password.empty()) add({"--requirepass", options_.password});
  add(options_.arguments);
  process_.emplace(
      child_process::options{.command = command, .log = directory_.path() / "redis.log"});

  bool answered = false;
  bool const settled = eventually([&] {
    if (!process_->running()) return true;
    try {
      // Only our own child has this socket; the port could answer for another server.
      redis_reply const pong = this->command({"PING"});
      answered = !(pong.is_error() && pong.text.starts_with("LOADING"));
    } catch (std::runtime_error const&) {
    }
    return answered;
  });
  return settled && answered && process_->running();
}

void redis_server::start() {
  if (running()) return;
  for (int attempt = 0; attempt < 20; ++attempt) {
    if (try_start()) {
      started_before_ = true;
      return;
    }
    process_.reset();
    // Users know the old port by now; a port that was never announced is exchanged.
    if (!started_before_) port_ = free_port();
  }
  throw std::runtime_error(options_.program +
                           " does not start: " + tail(directory_.path() / "redis.log"));
}

void redis_server::stop(stop_mode mode) {
  if (!process_) return;
  if (mode == stop_mode::terminate) {
    process_->signal(SIGTERM);
    process_->signal(SIGCONT);
    if (!process_->wait(patience)) throw std::runtime_error("redis-server does not stop");
  }
  process_.reset();
}

void redis_server::restart(stop_mode mode) {
  stop(mode);
  start();
}

bool redis_server::running() { return process_ && process_->running(); }

void redis_server::pause() {
  if (process_) process_->signal(SIGSTOP);
}

void redis_server::resume() {
  if (process_) process_->signal(SIGCONT);
}

redis_reply redis_server::command(std::vector<std::string> const& words,
                                  std::chrono::milliseconds bound) const {
  auto const context =
      connected(::redisConnectUnixWithTimeout(socket_path().c_str(), time_limit(bound)), bound);
  if (!options_.password.empty()) {
    redis_reply const in = send(*context, {"AUTH", options_.password});
    if (in.is_error()) return in;
  }
  return send(*context, words);
}

redis_reply redis_server::command_asking(std::vector<std::string> const& words) const {
  constexpr std::chrono::seconds bound{30};
  auto const context =
      connected(::redisConnectUnixWithTimeout(socket_path().c_str(), time_limit(bound)), bound);
  send(*context, {"ASKING"});
  return send(*context, words);
}

std::optional<std::string> redis_server::info(std::string const& section,
                                              std::string const& field) const {
  std::string const text = "\r\n" + command({"INFO", section}).text;
  std::string const start = "\r\n" + field + ":";
  auto const at = text.find(start);
  if (at == std::string::npos) return std::nullopt;
  auto const from = at + start.size();
  return text.substr(from, text.find("\r\n", from) - from);
}

void redis_server::replica_of(redis_server const& primary, std::optional<int> port) {
  if (!primary.options_.password.empty()) {
    command({"CONFIG", "SET", "masterauth", primary.options_.password});
  }
  redis_reply const reply =
      command({"REPLICAOF", "127.0.0.1", std::to_string(port.value_or(primary.port()))});
  if (reply.is_error()) throw std::runtime_error("REPLICAOF: " + reply.text);
  wait_until("replica's link to its primary",
             [&] { return info("replication", "master_link_status") == "up"; });
}

void redis_server::promote() {
  redis_reply const reply = command({"REPLICAOF", "NO", "ONE"});
  if (reply.is_error()) throw std::runtime_error("REPLICAOF NO ONE: " + reply.text);
}

}  // namespace fenceguard::test_servers
