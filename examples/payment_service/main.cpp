// A small payment service: HTTP in front, fenceguard between it and the money.
#include <CLI/CLI.hpp>
#include <csignal>
#include <iostream>
#include <thread>

#include "connection_pool.hpp"
#include "http_api.hpp"
#include "payments.hpp"

namespace {

/// Stops the server on SIGINT or SIGTERM; the signals must be blocked in all threads.
class stop_on_signal {
 public:
  explicit stop_on_signal(httplib::Server& server)
      : thread_{[&server, signals = stop_signals()] {
          int received = 0;
          sigwait(&signals, &received);
          server.stop();
        }} {}
  ~stop_on_signal() {
    ::pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }
  stop_on_signal(stop_on_signal const&) = delete;
  stop_on_signal& operator=(stop_on_signal const&) = delete;

  static sigset_t stop_signals() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    return signals;
  }

 private:
  std::thread thread_;
};

}  // namespace

int main(int argc, char** argv) try {
  CLI::App options{"A payment service that a stale lock holder cannot make pay twice."};
  std::string database_url;
  std::string redis_url;
  std::string host = "127.0.0.1";
  int port = 8080;
  std::size_t threads = 8;
  std::size_t connections = 8;
  options.add_option("--database-url", database_url)
      ->envname("FENCEGUARD_DATABASE_URL")
      ->required();
  options.add_option("--redis-url", redis_url)->envname("FENCEGUARD_REDIS_URL")->required();
  options.add_option("--host", host)->capture_default_str();
  options.add_option("--port", port, "0: any free one")->capture_default_str();
  options.add_option("--threads", threads)->capture_default_str()->check(CLI::Range(1, 256));
  options.add_option("--connections", connections)
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  CLI11_PARSE(options, argc, argv);

  sigset_t const signals = stop_on_signal::stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread is made

  connection_pool pool{database_url, connections};
  fenceguard::postgres::token_source tokens{database_url};
  fenceguard::redis::lease_store leases{{.url = redis_url}, tokens};
  payments business{pool, leases};

  httplib::Server server;
  server.new_task_queue = [threads] { return new httplib::ThreadPool(threads); };
  add_routes(server, business);
  if (port == 0) {
    port = server.bind_to_any_port(host.c_str());
  } else if (!server.bind_to_port(host.c_str(), port)) {
    port = -1;
  }
  if (port < 0) throw std::runtime_error{"cannot listen on " + host};

  stop_on_signal const stopper{server};
  std::cout << "payment_service listens on http://" << host << ':' << port << std::endl;
  server.listen_after_bind();
} catch (std::exception const& failed) {
  std::cerr << "payment_service: " << failed.what() << '\n';
  return 2;
}
