#include <algorithm>
#include <chrono>
#include <fenceguard/core/errors.hpp>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cli/command_line.hpp"
#include "cli/database.hpp"
#include "cli/lease_servers.hpp"
#include "redis/lease_listing.hpp"

namespace fenceguard::cli {
namespace {

using std::chrono::duration_cast;
using std::chrono::system_clock;

struct leases_options {
  std::string store{};  ///< Empty: Redis where a URL is given for it, else PostgreSQL.
  std::string prefix = "fenceguard";
  double watch_s = 0;
  int rounds = 0;  ///< 0: until the program is ended.
};

std::string time_text(system_clock::time_point at) {
  auto const since = at.time_since_epoch();
  auto const days = std::chrono::floor<std::chrono::days>(at);
  std::chrono::year_month_day const date{days};
  std::chrono::hh_mm_ss const time{std::chrono::floor<std::chrono::milliseconds>(at - days)};
  if (since.count() == 0) return "unknown";
  char text[40];
  std::snprintf(text, sizeof text, "%04d-%02u-%02uT%02d:%02d:%02d.%03dZ", int{date.year()},
                unsigned{date.month()}, unsigned{date.day()},
                static_cast<int>(time.hours().count()), static_cast<int>(time.minutes().count()),
                static_cast<int>(time.seconds().count()),
                static_cast<int>(time.subseconds().count()));
  return text;
}

void add_row(report& to, redis::listed_lease const& one, system_clock::time_point now) {
  auto const held = duration_cast<std::chrono::milliseconds>(now - one.held.since);
  to.add({{"resource", one.resource},
          {"holder", one.held.holder},
          {"token", one.held.token ? nlohmann::ordered_json(one.held.token->value())
                                   : nlohmann::ordered_json(nullptr)},
          {"since", time_text(one.held.since)},
          {"held_ms", held.count()},
          {"remaining_ms", one.held.remaining.count()},
          {"label", one.held.label}});
}

std::vector<redis::listed_lease> leases_in_redis(session const& with,
                                                 leases_options const& options) {
  if (with.redis_url.empty()) {
    throw invalid_request{"leases: give the servers with --redis-url or FENCEGUARD_REDIS_URL"};
  }
  std::vector<redis::listed_lease> all;
  for (auto const& server : lease_servers(with.redis_url)) {
    redis::connection peer{server};
    auto more =
        redis::list_leases(peer, options.prefix, boottime::now() + std::chrono::seconds{30});
    std::move(more.begin(), more.end(), std::back_inserter(all));
  }
  std::sort(all.begin(), all.end(),
            [](auto const& a, auto const& b) { return a.resource < b.resource; });
  return all;
}

// The leases of postgres::lease_store, with the times of the database.
void list_leases_in_postgres(session const& with, report& rows) {
  database db{with.database_url};
  db.require_schema();
  add_rows(
      rows,
      db.exec("SELECT resource, holder, token,"
              " to_char(since AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"') AS since,"
              " (extract(epoch FROM clock_timestamp() - since) * 1000)::bigint AS held_ms,"
              " remaining_ms, label FROM fenceguard.live_leases() ORDER BY resource"));
}

int show(session& with, leases_options const& options) {
  bool const in_redis =
      options.store == "redis" || (options.store.empty() && !with.redis_url.empty());
  report rows;
  if (in_redis) {
    auto const all = leases_in_redis(with, options);
    auto const now = system_clock::now();
    for (auto const& one : all) add_row(rows, one, now);
  } else {
    list_leases_in_postgres(with, rows);
  }
  rows.print(*with.text_out, with.json, "Nobody holds a lease.");
  with.text_out->flush();
  return done;
}

int watch(session& with, leases_options const& options) {
  for (int round = 1;; ++round) {
    if (!with.json) *with.text_out << time_text(system_clock::now()) << '\n';
    show(with, options);
    if (round == options.rounds) return done;
    if (!with.json) *with.text_out << '\n';
    std::this_thread::sleep_for(std::chrono::duration<double>{options.watch_s});
  }
}

}  // namespace

void add_lease_commands(CLI::App& program, session& with) {
  auto* const command =
      program.add_subcommand("leases", "Show who holds which lease, since when, how long");
  auto const options = std::make_shared<leases_options>();
  command
      ->add_option("--store", options->store,
                   "redis or postgres (default: redis where its URL is given)")
      ->check(CLI::IsMember({"redis", "postgres"}));
  command->add_option("--prefix", options->prefix, "The prefix of the store in Redis")
      ->capture_default_str();
  command
      ->add_option("--watch", options->watch_s, "Show them again every so many seconds (default 1)")
      ->expected(0, 1)
      ->default_str("1")
      ->check(CLI::Range(0.05, 3600.0));
  command->add_option("--rounds", options->rounds, "End after so many times of showing")
      ->check(CLI::PositiveNumber);
  command->callback([&with, options] {
    with.chosen = [&with, options] {
      return options->watch_s > 0 ? watch(with, *options) : show(with, *options);
    };
  });
}

}  // namespace fenceguard::cli
