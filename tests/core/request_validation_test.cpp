#include "core/request_validation.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <fenceguard/core/errors.hpp>
#include <string>
#include <vector>

using namespace std::chrono_literals;
namespace fg = fenceguard;

TEST_CASE("a resource is 1 ... 512 bytes of UTF-8 without NUL") {
  CHECK_NOTHROW(fg::validate_resource("a"));
  CHECK_NOTHROW(fg::validate_resource(std::string(512, 'x')));
  CHECK_NOTHROW(fg::validate_resource("k\xC3\xB6ln/\xE2\x82\xAC/\xF0\x9F\x98\x80"));
  CHECK_NOTHROW(fg::validate_resource("\xF4\x8F\xBF\xBF\xED\x9F\xBF\xEE\x80\x80"));
  CHECK_THROWS_WITH(fg::validate_resource(""), "resource is empty");
  CHECK_THROWS_WITH(fg::validate_resource(std::string(513, 'x')),
                    "resource has 513 bytes; at most 512 are allowed");
  CHECK_THROWS_WITH(fg::validate_resource(std::string{"a\0b", 3}),
                    "resource contains a NUL character");
  for (std::string const bad :
       {"\x80", "\xC3", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "a\xE2\x82", "\xE2\x28\xA1"}) {
    CAPTURE(bad.size());
    CHECK_THROWS_WITH(fg::validate_resource(bad), "resource is not valid UTF-8");
  }
}

TEST_CASE("times of a request have bounds") {
  auto const check = [](fg::lease_request request, bool good) {
    request.resource = "a";
    if (good) {
      CHECK_NOTHROW(fg::validate(request));
    } else {
      CHECK_THROWS_AS(fg::validate(request), fg::invalid_request);
    }
  };
  check({.ttl = 10ms}, true);
  check({.ttl = 24h}, true);
  check({.ttl = 9ms}, false);
  check({.ttl = 0ms}, false);
  check({.ttl = -1ms}, false);
  check({.ttl = 24h + 1ms}, false);
  check({.ttl = std::chrono::milliseconds::max()}, false);
  check({.wait = 24h}, true);
  check({.wait = -1ms}, false);
  check({.wait = 24h + 1ms}, false);
  check({.max_hold = 10ms}, true);
  check({.max_hold = 9ms}, false);
  check({.max_hold = -1ms}, false);
  check({.max_hold = std::chrono::milliseconds::max()}, false);
  CHECK_THROWS_WITH(fg::validate(fg::lease_request{.resource = "a", .ttl = 0ms}),
                    "ttl is 0 ms; allowed are 10 ... 86400000 ms");
}

TEST_CASE("a label is at most 128 bytes without control characters") {
  auto const with = [](std::string label) {
    return fg::lease_request{.resource = "a", .label = std::move(label)};
  };
  CHECK_NOTHROW(fg::validate(with("")));
  CHECK_NOTHROW(fg::validate(with(std::string(128, 'x'))));
  CHECK_NOTHROW(fg::validate(with("worker 7 \xC3\xA9")));
  CHECK_THROWS_AS(fg::validate(with(std::string(129, 'x'))), fg::invalid_request);
  for (std::string const bad : {"a\nb", "\x7F", "\xC2\x85", "\x1B[0m", "\xFF"}) {
    CHECK_THROWS_AS(fg::validate(with(bad)), fg::invalid_request);
  }
}

TEST_CASE("a set has 1 ... 64 different names") {
  auto const of = [](std::vector<std::string> names) {
    return fg::lease_set_request{.resources = std::move(names)};
  };
  std::vector<std::string> many;
  for (int i = 0; i < 64; ++i) many.push_back(std::to_string(i));
  CHECK_NOTHROW(fg::validate(of(many)));
  many.emplace_back("one more");
  CHECK_THROWS_AS(fg::validate(of(many)), fg::invalid_request);
  CHECK_THROWS_AS(fg::validate(of({})), fg::invalid_request);
  CHECK_THROWS_WITH(fg::validate(of({"a", "b", "a"})), "resources names a twice");
  CHECK_THROWS_AS(fg::validate(of({"a", ""})), fg::invalid_request);
  CHECK_THROWS_AS(fg::validate(fg::lease_set_request{.resources = {"a"}, .ttl = 1ms}),
                  fg::invalid_request);
}

TEST_CASE("settings of a store have bounds") {
  auto const good = [](fg::lease_store_settings const& settings) {
    try {
      fg::validate(settings);
    } catch (fg::invalid_request const&) {
      return false;
    }
    return true;
  };
  CHECK(good({}));
  CHECK(good({.command_timeout = 10ms, .release_timeout = 0ms, .clock_drift = 0.0}));
  CHECK(good({.command_timeout = 60s, .release_timeout = 60s, .clock_drift = 0.5}));
  CHECK_FALSE(good({.command_timeout = 9ms}));
  CHECK_FALSE(good({.command_timeout = 61s}));
  CHECK_FALSE(good({.release_timeout = -1ms}));
  CHECK_FALSE(good({.release_timeout = 61s}));
  CHECK_FALSE(good({.clock_drift = -0.1}));
  CHECK_FALSE(good({.clock_drift = 0.6}));
  CHECK_FALSE(good({.clock_drift = std::nan("")}));
  CHECK_FALSE(good({.clock = nullptr}));
}
