#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fenceguard/core/clock.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/background_thread.hpp"
#include "postgres/libpqxx.hpp"

namespace fenceguard::postgres {

// libpq's connection string with bounds for what it does on its own: connecting, and waiting for a
// peer that is gone. What the caller has set stays.
std::string bounded_url(std::string url, std::chrono::milliseconds timeout,
                        std::string const& application_name);

// A connection on which each call has an absolute deadline, which libpq's calls have not. A thread
// of its own talks to the server; a caller whose time is up shuts the socket down, which ends what
// is under way, whatever the server does. Connects with the first call, and anew after a failure.
// The thread is started with the first call.
//
// One caller at a time, except shutdown().
class bounded_connection {
 public:
  using rows = std::vector<std::vector<std::optional<std::string>>>;
  using message = std::function<std::string(libpqxx::connection_base&)>;

  struct outcome {
    enum class kind {
      answered,
      refused,   // the server said an error: what the message did is rolled back
      not_sent,  // no connection, or no time left before it was sent
      unknown,   // it was sent and may have been applied, or may yet be
    };
    kind what = kind::not_sent;
    rows answer{};
    std::string error{};           // for people; empty where answered
    std::exception_ptr failure{};  // where refused

    // Throws where the server refused with an error of fenceguard's own, or an argument could not
    // be sent.
    void throw_own() const;
    // A field as a whole number; 0 where it is NULL or not there.
    [[nodiscard]] std::int64_t number(std::size_t row, std::size_t column) const;
  };

  // `url` as bounded_url() gives it.
  explicit bounded_connection(std::string url);
  ~bounded_connection();
  bounded_connection(bounded_connection const&) = delete;
  bounded_connection& operator=(bounded_connection const&) = delete;

  // Sends one message of the simple protocol, built with the connection's own quoting, and returns
  // the last statement's rows. Throws invalid_request where `build` does.
  [[nodiscard]] outcome execute(message const& build, time_point deadline);

  // Ends a call that is under way and refuses later ones. Any thread.
  void shutdown() noexcept;

 private:
  struct job {
    message build;
    outcome result{};
    bool sent = false;
    bool given_up = false;
    bool done = false;
  };
  using job_ptr = std::shared_ptr<job>;

  void run() noexcept;
  void serve(job& one);
  bool is_alive() noexcept;
  bool begin_sending(job& one);
  void connect();
  void disconnect() noexcept;
  void shut_down_socket() const noexcept;

  std::string const url_;

  std::mutex mutex_;
  std::condition_variable changed_;
  job_ptr next_;
  int socket_ = -1;
  bool closing_ = false;

  std::optional<pqxx::connection> db_;  // the thread's own
  background_thread thread_;            // last: ends before what it uses
};

}  // namespace fenceguard::postgres
