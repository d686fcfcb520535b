#include "cli/database.hpp"

#include <stdexcept>

namespace fenceguard::cli {
namespace {

template <class Field>  // its type has another name from libpqxx 8 on
nlohmann::ordered_json value_of(Field const& field) {
  constexpr pqxx::oid bool_type = 16;
  constexpr pqxx::oid int8_type = 20;
  constexpr pqxx::oid int4_type = 23;
  if (field.is_null()) return nullptr;
  if (field.type() == bool_type) return field.template as<bool>();
  if (field.type() == int8_type || field.type() == int4_type) {
    return field.template as<std::int64_t>();
  }
  return field.template as<std::string>();
}

}  // namespace

void database::require_schema() {
  if (!exec("SELECT pg_catalog.to_regnamespace('fenceguard') IS NOT NULL")[0][0].as<bool>()) {
    throw std::runtime_error{"the database has no schema fenceguard; run: fenceguard migrate"};
  }
}

void add_rows(report& out, pqxx::result const& rows) {
  for (auto const& row : rows) {
    std::vector<std::pair<std::string, nlohmann::ordered_json>> line;
    for (auto const& field : row) line.emplace_back(std::string{field.name()}, value_of(field));
    out.add(line);
  }
}

}  // namespace fenceguard::cli
