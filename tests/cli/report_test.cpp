#include "cli/report.hpp"

#include <doctest/doctest.h>

#include <sstream>

using fenceguard::cli::report;

TEST_CASE("a report is aligned columns for people") {
  report out;
  out.add({{"name", "a"}, {"count", 10}});
  out.add({{"name", "longer"}, {"count", nullptr}});
  std::ostringstream text;
  out.print(text, false, "nothing");
  CHECK(text.str() == "name    count\na       10\nlonger  -\n");
}

TEST_CASE("a report is one JSON array for programs") {
  report out;
  out.add({{"name", "a"}, {"count", 10}});
  std::ostringstream text;
  out.print(text, true, "nothing");
  auto const parsed = nlohmann::json::parse(text.str());
  REQUIRE(parsed.size() == 1);
  CHECK(parsed[0]["name"] == "a");
  CHECK(parsed[0]["count"] == 10);
}

TEST_CASE("an empty report says so to people and is an empty array for programs") {
  report const out;
  std::ostringstream text;
  out.print(text, false, "nothing");
  CHECK(text.str() == "nothing\n");
  std::ostringstream json;
  out.print(json, true, "nothing");
  CHECK(json.str() == "[]\n");
}
