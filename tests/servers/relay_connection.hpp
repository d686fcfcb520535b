#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace fenceguard::test_servers {

enum class direction { to_server, to_client };

// What happens when certain bytes pass.
enum class reaction {
  cut_before,  // they are not forwarded, both sides are cut
  cut_after,   // they are forwarded, then both sides are cut
  stall,       // they and what follows is held back until flow()
};

// What holds for one direction of all connections of a relay, and what was counted.
struct relay_rules {
  struct way {
    bool stalled = false;
    bool swallowing = false;
    std::optional<std::size_t> bytes_left;
    std::string trigger;  // empty: none
    reaction what = reaction::cut_before;
    std::int64_t bytes = 0;
  };
  std::array<way, 2> ways;
  std::chrono::nanoseconds delay{0};
  std::int64_t round_trips = 0;
  int fired = 0;

  way& operator[](direction d) { return ways[static_cast<std::size_t>(d)]; }
  way const& operator[](direction d) const { return ways[static_cast<std::size_t>(d)]; }
};

// One connection of a relay: two sockets and, each way, the bytes on their way. Not thread-safe.
class relay_connection {
 public:
  using clock = std::chrono::steady_clock;

  relay_connection(int client, int server);  // takes both non-blocking sockets over
  ~relay_connection();
  relay_connection(relay_connection const&) = delete;
  relay_connection& operator=(relay_connection const&) = delete;

  // What to wait for: one entry each for the client's and the server's socket.
  std::array<pollfd, 2> wanted(relay_rules const& rules, clock::time_point now) const;
  std::optional<clock::time_point> next_due(relay_rules const& rules) const;
  // Reads and writes what can be.
  void step(relay_rules& rules);
  bool finished() const noexcept { return client_ < 0 && server_ < 0; }
  void reset() noexcept;  // both sides see a reset

 private:
  struct chunk {
    clock::time_point due;
    std::string bytes;  // empty: the end
  };
  struct pipe {
    std::deque<chunk> queue;
    std::size_t queued = 0;
    std::string recent;  // for a trigger whose bytes come in two reads
    bool read_ended = false;
    bool ended = false;  // the end has been passed on
  };

  int& source(direction d) { return d == direction::to_server ? client_ : server_; }
  int& sink(direction d) { return d == direction::to_server ? server_ : client_; }
  pipe& pipe_of(direction d) { return pipes_[static_cast<std::size_t>(d)]; }
  bool wants_to_read(direction d) const;
  bool wants_to_write(direction d, relay_rules const& rules, clock::time_point now) const;
  void read(direction d, relay_rules& rules);
  void take(direction d, relay_rules& rules, std::string_view bytes);
  bool triggered(direction d, relay_rules& rules, std::string_view bytes);
  void queue(direction d, relay_rules const& rules, std::string_view bytes);
  void queue_end(direction d, relay_rules const& rules);
  void forward_and_cut(direction d, relay_rules const& rules, std::string_view bytes);
  void write(direction d, relay_rules const& rules);
  void pass_end(direction d);

  int client_;
  int server_;
  std::array<pipe, 2> pipes_;
  std::optional<direction> last_;
};

}  // namespace fenceguard::test_servers
