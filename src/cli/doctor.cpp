#include <algorithm>
#include <fenceguard/core/errors.hpp>
#include <memory>
#include <ostream>
#include <pqxx/pqxx>

#include "cli/command_line.hpp"
#include "cli/database_checks.hpp"
#include "cli/redis_checks.hpp"

namespace fenceguard::cli {
namespace {

struct doctor_options {
  bool notices = false;
  std::int64_t old_transaction_s = 300;
};

/// Adds what `look` finds. A server that cannot be reached does not keep the other from being
/// looked at.
template <class Look>
bool reached(session& with, std::vector<diagnosis>& found, Look&& look) try {
  for (diagnosis& one : look()) found.push_back(std::move(one));
  return true;
} catch (pqxx::broken_connection const& failed) {
  *with.text_err << "fenceguard: cannot reach PostgreSQL: " << message_of(failed) << '\n';
  return false;
} catch (lease_store_unavailable const& failed) {
  *with.text_err << "fenceguard: " << message_of(failed) << '\n';
  return false;
}

void print_for_people(std::ostream& out, diagnosis const& one) {
  out << to_string(one.grade) << ": " << one.subject << ": " << one.finding << '\n'
      << "  why:    " << one.reason << '\n';
  if (!one.remedy.empty()) out << "  remedy: " << one.remedy << '\n';
}

void print(session& with, std::vector<diagnosis> const& found) {
  if (!with.json) {
    for (auto const& one : found) print_for_people(*with.text_out, one);
    return;
  }
  for (auto const& one : found) {
    with.out.add({{"severity", to_string(one.grade)},
                  {"subject", one.subject},
                  {"finding", one.finding},
                  {"reason", one.reason},
                  {"remedy", one.remedy}});
  }
  with.out.print(*with.text_out, true, "");
}

int examine(session& with, doctor_options const& options) {
  examination const how{.old_transaction = std::chrono::seconds{options.old_transaction_s}};
  std::vector<diagnosis> found;
  bool all = reached(with, found, [&] { return check_database(with.database_url, how); });
  if (!with.redis_url.empty()) {
    all = reached(with, found, [&] { return check_redis(with.redis_url, how); }) && all;
  }
  std::stable_sort(found.begin(), found.end(),
                   [](auto const& a, auto const& b) { return a.grade < b.grade; });
  auto const notices = std::find_if(found.begin(), found.end(),
                                    [](auto const& f) { return f.grade == severity::notice; });
  bool const mended = notices == found.begin();
  if (!options.notices) {
    // Silence must not pass for health where nobody could look.
    if (std::any_of(notices, found.end(), [](auto const& f) { return f.unchecked; })) {
      *with.text_err << "fenceguard: something could not be checked; see: doctor --notices\n";
    }
    found.erase(notices, found.end());
  }
  print(with, found);
  if (!all) return unreachable;
  return mended ? done : finding;
}

}  // namespace

void add_doctor(CLI::App& program, session& with) {
  auto* const command = program.add_subcommand(
      "doctor",
      "Say what is wrong with the live PostgreSQL, and with Redis where its URL is given");
  auto const options = std::make_shared<doctor_options>();
  command->add_flag("--notices", options->notices,
                    "Also what is merely good to know; it does not change the exit status");
  command
      ->add_option("--old-transaction", options->old_transaction_s,
                   "Seconds after which an open transaction is reported")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->callback(
      [&with, options] { with.chosen = [&with, options] { return examine(with, *options); }; });
}

}  // namespace fenceguard::cli
