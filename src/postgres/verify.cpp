#include <fenceguard/postgres/migrate.hpp>
#include <map>

#include "postgres/libpqxx.hpp"
#include "postgres/schema_version.hpp"

namespace fenceguard::postgres {
namespace {

using kind = difference::kind;

struct applied {
  std::string name;
  std::string checksum;  // empty: applied by psql, which keeps none
};

std::map<int, applied> applied_versions(pqxx::transaction_base& with) {
  std::map<int, applied> versions;
  auto const rows = libpqxx::send_message(
      with, "SELECT version, name, coalesce(checksum, '') FROM fenceguard.schema_version");
  for (auto const& row : rows) {
    versions[row[0].as<int>()] = {row[1].as<std::string>(), row[2].as<std::string>()};
  }
  return versions;
}

std::string title(int version, std::string_view name) {
  return std::to_string(version) + " (" + std::string{name} + ")";
}

void compare_versions(std::map<int, applied> const& there, std::vector<difference>& found) {
  for (migration const& step : migrations()) {
    auto const row = there.find(step.version);
    if (row == there.end()) {
      found.push_back({kind::missing_version, title(step.version, step.name),
                       "not applied: run `fenceguard migrate`"});
    } else if (!row->second.checksum.empty() && row->second.checksum != step.checksum) {
      found.push_back({kind::changed_migration, title(step.version, step.name),
                       "applied with checksum " + row->second.checksum + ", this library carries " +
                           step.checksum});
    }
  }
  int const newest = static_cast<int>(migrations().size());
  for (auto row = there.upper_bound(newest); row != there.end(); ++row) {
    found.push_back({kind::newer_version, title(row->first, row->second.name),
                     "this library knows " + std::to_string(newest) + " at most"});
  }
}

void compare_objects(pqxx::transaction_base& with, std::vector<difference>& found) {
  auto const rows =
      libpqxx::send_message(with, "SELECT finding, kind, object FROM fenceguard.altered_objects()");
  for (auto const& row : rows) {
    auto const finding = row[0].as<std::string>();
    std::string const object = row[1].as<std::string>() + " " + row[2].as<std::string>();
    if (finding == "missing") {
      found.push_back({kind::missing, object, "the migrations made it, and it is gone"});
    } else if (finding == "unexpected") {
      found.push_back({kind::unexpected, object, "no migration made it"});
    } else {
      found.push_back({kind::altered, object, "it is not as the migrations made it"});
    }
  }
}

}  // namespace

char const* to_string(difference::kind kind) noexcept {
  switch (kind) {
    case difference::kind::missing_version:
      return "missing_version";
    case difference::kind::newer_version:
      return "newer_version";
    case difference::kind::changed_migration:
      return "changed_migration";
    case difference::kind::missing:
      return "missing";
    case difference::kind::altered:
      return "altered";
    case difference::kind::unexpected:
      return "unexpected";
  }
  return "?";
}

std::vector<difference> verify(std::string const& database_url) {
  pqxx::connection db{database_url};
  pqxx::nontransaction with{db, "fenceguard"};
  std::vector<difference> found;
  if (!schema_version(with)) {
    compare_versions({}, found);
    return found;
  }
  compare_versions(applied_versions(with), found);
  bool const recorded =
      libpqxx::send_message(
          with,
          "SELECT pg_catalog.to_regprocedure('fenceguard.altered_objects()') IS NOT NULL")[0][0]
          .as<bool>();
  if (recorded) {
    compare_objects(with, found);
  } else {
    found.push_back({kind::missing, "function fenceguard.altered_objects()",
                     "without it nothing tells what else was altered"});
  }
  return found;
}

}  // namespace fenceguard::postgres
