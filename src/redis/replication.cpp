#include "redis/replication.hpp"

#include <algorithm>
#include <fenceguard/core/errors.hpp>
#include <utility>

#include "core/sleep_by_clock.hpp"
#include "redis/server_error.hpp"
#include "redis/server_version.hpp"

namespace fenceguard::redis {
namespace {

using std::chrono::milliseconds;

constexpr unsigned most_servers = 1'000;

std::string of(std::int64_t have, unsigned want) {
  return std::to_string(have) + " of " + std::to_string(want);
}

bool unknown_command(reply_view answer) {
  return answer.is_error() && answer.text().find("unknown command") != std::string_view::npos;
}

}  // namespace

// A route of the pool while one caller has it.
class replication::borrowed {
 public:
  borrowed(replication& pool, time_point deadline) : pool_{pool}, one_{pool.take(deadline)} {}
  ~borrowed() {
    if (one_) pool_.give_back(std::move(one_));
  }
  borrowed(borrowed const&) = delete;
  borrowed& operator=(borrowed const&) = delete;

  explicit operator bool() const noexcept { return one_ != nullptr; }
  route* operator->() const noexcept { return one_.get(); }

 private:
  replication& pool_;
  std::unique_ptr<route> one_;
};

replication::replication(std::shared_ptr<topology> where, unsigned partitions,
                         replication_options const& options)
    : topology_{std::move(where)}, partitions_{partitions}, options_{options} {
  if (options_.replicas_to_wait > most_servers || options_.fsync_to_wait > most_servers) {
    throw invalid_request{"replication: at most 1000 servers can be waited for"};
  }
  if (wanted() && options_.timeout < milliseconds{1}) {
    throw invalid_request{"replication.timeout must be at least 1 ms, not " +
                          std::to_string(options_.timeout.count())};
  }
  auto const longest = topology_->connecting().silence_limit / 2;
  if (wanted() && options_.timeout > longest) {
    throw invalid_request{"replication.timeout must be at most half of settings.command_timeout, " +
                          std::to_string(longest.count()) + " ms, not " +
                          std::to_string(options_.timeout.count())};
  }
  idle_.reserve(most_connections);
  all_.reserve(most_connections);
}

replication::~replication() = default;

auto replication::evaluate(script const& what, script_call const& with, unsigned partition,
                           time_point deadline,
                           std::function<bool(result const&)> const& has_effect) -> outcome {
  borrowed const mine{*this, deadline};
  if (!mine) {
    outcome none;
    none.answer.why = failure::deadline;
    none.answer.error = "no connection was free in time to wait for replicas on";
    return none;
  }
  auto timeout = options_.timeout;
  auto done = mine->evaluate_then(what, with, partition, deadline, [&](result const& answer) {
    if (!has_effect(answer)) return std::vector<command>{};
    // Some time is left for the answer.
    auto const left = std::chrono::floor<milliseconds>((deadline - boottime::now()) * 3 / 4);
    timeout = std::clamp(left, milliseconds{1}, options_.timeout);  // 0 is for ever
    return commands(timeout);
  });
  outcome all;
  if (done.asked) all.shortfall = shortfall(done, timeout);
  all.answer = std::move(done.first);
  return all;
}

std::vector<command> replication::commands(milliseconds timeout) const {
  std::vector<command> all;
  auto const ms = std::to_string(timeout.count());
  if (options_.replicas_to_wait > 0) {
    all.push_back(command{"WAIT", std::to_string(options_.replicas_to_wait), ms});
  }
  if (options_.fsync_to_wait > 0) {
    all.push_back(command{"WAITAOF", "1", std::to_string(options_.fsync_to_wait - 1), ms});
  }
  return all;
}

std::string replication::shortfall(route::followed const& what, milliseconds timeout) const {
  if (!what.same_connection) {
    return "the connection was lost before the replicas could be asked";
  }
  auto const within = " within " + std::to_string(timeout.count()) + " ms";
  std::size_t next = 0;
  auto const answer = [&]() -> result const& { return what.then[next++]; };
  if (options_.replicas_to_wait > 0) {
    auto const& waited = answer();
    auto const have = waited.answer.integer();
    if (!have) return judge(waited, "WAIT").message;
    if (*have < options_.replicas_to_wait) {
      return of(*have, options_.replicas_to_wait) + " replicas acknowledged" + within;
    }
  }
  if (options_.fsync_to_wait > 0) {
    auto const& waited = answer();
    auto const local = waited.answer[0].integer();
    auto const remote = waited.answer[1].integer();
    if (!local || !remote) return judge(waited, "WAITAOF").message;
    // Replicas do not stand in for the primary, nor it for them.
    if (*local < 1 || *remote < options_.fsync_to_wait - 1) {
      return of(*local + *remote, options_.fsync_to_wait) + " servers have it on disk" + within;
    }
  }
  return {};
}

void replication::require_support(time_point deadline) {
  if (options_.fsync_to_wait == 0) return;
  borrowed const mine{*this, deadline};
  auto const asked = mine->call(command{"WAITAOF", "1", "0", "1"}, 0, deadline);
  if (asked.answer.is_array()) return;
  auto const verdict = judge(asked, "fsync_to_wait");
  if (unknown_command(asked.answer)) {
    auto const version =
        ask_version([&](command const& what) { return mine->call(what, 0, deadline); });
    throw invalid_request{
        "fsync_to_wait needs Redis 7.2 or later, which has WAITAOF; the server is " +
        (version.text.empty() ? "older" : "Redis " + version.text)};
  }
  bool const no_file = asked.answer.text().find("appendonly is disabled") != std::string_view::npos;
  if (no_file || verdict.kind == refusal::misconfigured) throw invalid_request{verdict.message};
  throw lease_store_unavailable{verdict.message};
}

std::unique_ptr<route> replication::take(time_point deadline) {
  std::unique_lock held{mutex_};
  while (idle_.empty() && all_.size() == most_connections) {
    if (closed_ || boottime::now() >= deadline) return nullptr;
    sleep_by_clock(held, returned_, deadline);
  }
  if (!idle_.empty()) {
    auto one = std::move(idle_.back());
    idle_.pop_back();
    return one;
  }
  auto made = std::make_unique<route>(topology_, partitions_);
  if (closed_) made->shutdown();
  all_.push_back(made.get());
  return made;
}

void replication::give_back(std::unique_ptr<route> one) noexcept {
  std::lock_guard const held{mutex_};
  idle_.push_back(std::move(one));  // within what was reserved
  returned_.notify_one();
}

void replication::shutdown() noexcept {
  std::lock_guard const held{mutex_};
  closed_ = true;
  for (auto* const one : all_) one->shutdown();
  returned_.notify_all();
}

}  // namespace fenceguard::redis
