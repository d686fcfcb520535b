#include "redis/lease_listing.hpp"

#include <algorithm>
#include <fenceguard/core/errors.hpp>
#include <map>
#include <optional>
#include <utility>

#include "redis/lease_value.hpp"
#include "redis/server_error.hpp"

namespace fenceguard::redis {
namespace {

constexpr char const* portion = "500";
constexpr std::string_view after_partition = "}:lease:";

// Where the resource begins in `{prefix}:{<partition>}:lease:<resource>`; the pattern matches other
// programs' keys as well.
std::optional<std::string> resource_of(std::string_view key, std::string_view prefix) {
  key.remove_prefix(prefix.size() + 2);  // ":{"
  auto const digits = std::min(key.find_first_not_of("0123456789"), key.size());
  if (digits == 0 || !key.substr(digits).starts_with(after_partition)) return std::nullopt;
  return std::string{key.substr(digits + after_partition.size())};
}

std::string pattern_of(std::string_view prefix) {
  std::string pattern;
  for (char c : prefix) {
    if (std::string_view{"*?[]\\^-"}.find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern + ":{*}:lease:*";
}

void require(result const& outcome) {
  if (outcome.replied() && !outcome.answer.is_error()) return;
  throw lease_store_unavailable{judge(outcome, "list leases").message};
}

}  // namespace

std::vector<listed_lease> list_leases(connection& server, std::string_view prefix,
                                      time_point deadline) {
  auto const pattern = pattern_of(prefix);
  std::map<std::string, holder_info> found;  // SCAN may name a key twice
  std::string cursor = "0";
  do {
    auto const scanned =
        server.call(command{"SCAN", cursor, "MATCH", pattern, "COUNT", portion}, deadline);
    require(scanned);
    cursor = scanned.answer[0].text();
    auto const keys = scanned.answer[1];
    std::vector<command> looks;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      looks.push_back(command{"GET", keys[i].text()});
      looks.push_back(command{"PTTL", keys[i].text()});
    }
    auto const answers = server.call_all(looks, deadline);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      require(answers[2 * i]);
      require(answers[2 * i + 1]);
      auto resource = resource_of(keys[i].text(), prefix);
      auto held = parse_lease(answers[2 * i].answer.text());
      auto const remaining = answers[2 * i + 1].answer.integer().value_or(-2);
      if (!resource || !held || remaining == -2) continue;  // gone meanwhile, or no lease
      held->remaining = std::chrono::milliseconds{std::max<std::int64_t>(remaining, 0)};
      found.insert_or_assign(*std::move(resource), *std::move(held));
    }
  } while (cursor != "0");
  std::vector<listed_lease> leases;
  for (auto& [resource, held] : found) leases.push_back({resource, std::move(held)});
  return leases;
}

}  // namespace fenceguard::redis
