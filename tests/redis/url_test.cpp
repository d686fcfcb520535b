#include "redis/url.hpp"

#include <doctest/doctest.h>

#include <fenceguard/core/errors.hpp>
#include <string>

using namespace fenceguard::redis;

namespace {

std::string refusal(std::string const& text) {
  try {
    static_cast<void>(parse_url(text));
  } catch (fenceguard::invalid_request const& e) {
    return e.what();
  }
  return "";
}

bool mentions(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("host, port and database, and their defaults") {
  auto const full = parse_url("redis://db.example.org:6380/7");
  CHECK(full.kind == deployment::standalone);
  CHECK_FALSE(full.tls);
  REQUIRE(full.addresses.size() == 1);
  CHECK(full.addresses[0] == address{"db.example.org", 6380, ""});
  CHECK(full.database == 7);
  CHECK(full.login == credentials{});

  for (auto const* text : {"redis://h", "redis://h/", "redis://h/0", "redis://h:6379"}) {
    auto const found = parse_url(text);
    CHECK(found.addresses[0] == address{"h", 6379, ""});
    CHECK(found.database == 0);
  }
  CHECK(parse_url("rediss://h").tls);
}

TEST_CASE("TLS: files and the server's name are parameters, as redis-cli calls them") {
  auto const all =
      parse_url("rediss://h/2?cacert=/a%20b.pem&cert=/c.pem&key=/k.pem&sni=redis.example");
  CHECK(all.database == 2);
  CHECK(all.files == tls_files{"/a b.pem", "", "/c.pem", "/k.pem", "redis.example"});
  CHECK(parse_url("rediss+cluster://a,b?cacertdir=/d").files.authorities_directory == "/d");
  CHECK(parse_url("rediss+sentinel://a/s?db=1&cacert=/x").files.authorities == "/x");
  CHECK(mentions(refusal("rediss://h?cert=/c.pem"), "cert and key belong together"));
  CHECK(mentions(refusal("rediss://h?cacert="), "empty"));
  CHECK(mentions(refusal("rediss://h?insecure=1"), "cacert, cacertdir, cert, key, sni"));
  CHECK(mentions(refusal("redis://h?cacert=/x"), "nothing may follow"));
  CHECK(mentions(refusal("unix:///s?cacert=/x"), "db, user, password"));
}

TEST_CASE("user and password are percent-decoded") {
  auto const both = parse_url("redis://al%69ce:p%40s%2Fs%3a%25%00x@h");
  CHECK(both.login.user == "alice");
  CHECK(both.login.password == std::string{"p@s/s:%\0x", 9});
  CHECK(parse_url("redis://:secret@h").login == credentials{"", "secret"});
  // What follows the last '@' is the host.
  CHECK(parse_url("redis://u:a@b@h").login == credentials{"u", "a@b"});
  CHECK(parse_url("redis://u:a:b@h").login == credentials{"u", "a:b"});
}

TEST_CASE("literal IPv6 addresses stand in brackets") {
  auto const found = parse_url("redis://[::1]:7000/2");
  CHECK(found.addresses[0] == address{"::1", 7000, ""});
  CHECK(found.addresses[0].to_string() == "[::1]:7000");
  CHECK(parse_url("redis://u:p@[fe80::1%25eth0]").addresses[0].host == "fe80::1%eth0");
}

TEST_CASE("a Unix socket with its parameters") {
  auto const found = parse_url("unix:///run/my%20redis.sock?db=3&user=u&password=p%26q");
  CHECK(found.addresses[0].path == "/run/my redis.sock");
  CHECK(found.addresses[0].to_string() == "unix:/run/my redis.sock");
  CHECK(found.database == 3);
  CHECK(found.login == credentials{"u", "p&q"});
  CHECK(parse_url("unix://u:p@/s.sock").login == credentials{"u", "p"});
}

TEST_CASE("several sentinels and their service") {
  auto const found =
      parse_url("redis+sentinel://u:p@s1,s2:5000,[::1]/prim%61ry?db=4&sentinel_password=q");
  CHECK(found.kind == deployment::sentinel);
  REQUIRE(found.addresses.size() == 3);
  CHECK(found.addresses[0] == address{"s1", 26379, ""});
  CHECK(found.addresses[1] == address{"s2", 5000, ""});
  CHECK(found.addresses[2] == address{"::1", 26379, ""});
  CHECK(found.service == "primary");
  CHECK(found.database == 4);
  CHECK(found.login == credentials{"u", "p"});
  CHECK(found.sentinel_login == credentials{"", "q"});
  CHECK(parse_url("rediss+sentinel://s/x").tls);
}

TEST_CASE("several cluster nodes") {
  auto const found = parse_url("redis+cluster://n1,n2:7001");
  CHECK(found.kind == deployment::cluster);
  REQUIRE(found.addresses.size() == 2);
  CHECK(found.addresses[0] == address{"n1", 6379, ""});
  CHECK(found.addresses[1] == address{"n2", 7001, ""});
  CHECK(mentions(refusal("redis+cluster://n1/1"), "database 0"));
}

TEST_CASE("to_string() gives the URL without user and password") {
  for (auto const* text :
       {"redis://h:6379", "redis://h:1/2", "rediss://[::1]:6379", "unix:///a/b?db=2",
        "redis+sentinel://a:1,b:2/s?db=1", "redis+cluster://a:1,b:2"}) {
    CHECK(parse_url(text).to_string() == text);
  }
  CHECK(parse_url("redis://user:secret@h").to_string() == "redis://h:6379");
  CHECK(parse_url("unix:///s?password=secret").to_string() == "unix:///s");
}

TEST_CASE("what is no Redis URL is refused, and the message says why") {
  CHECK(mentions(refusal(""), "scheme"));
  CHECK(mentions(refusal("localhost:6379"), "scheme"));
  CHECK(mentions(refusal("http://h"), "unknown scheme 'http'"));
  CHECK(mentions(refusal("REDIS://h"), "unknown scheme"));
  CHECK(mentions(refusal("redis://"), "host is missing"));
  CHECK(mentions(refusal("redis://u:p@"), "host is missing"));
  CHECK(mentions(refusal("redis://:6379"), "host is missing"));
  for (auto const* port : {"", "0", "65536", "-1", "+1", "12x", "99999999999999999999"}) {
    CAPTURE(port);
    CHECK(mentions(refusal(std::string{"redis://h:"} + port), "port"));
  }
  for (auto const* database : {"x", "-1", "1/", "1.5", "99999999999"}) {
    CAPTURE(database);
    CHECK(mentions(refusal(std::string{"redis://h/"} + database), "database"));
    CHECK(mentions(refusal(std::string{"unix:///s?db="} + database), "database"));
  }
  CHECK(mentions(refusal("redis://user@h"), "without a password"));
  CHECK(mentions(refusal("redis://user:@h"), "password is empty"));
  CHECK(mentions(refusal("unix:///s?user=u"), "without a password"));
  CHECK(mentions(refusal("redis://a,b"), "several hosts"));
  CHECK(mentions(refusal("redis+sentinel://a,b"), "service name"));
  CHECK(mentions(refusal("redis+sentinel://a,,b/s"), "host is missing"));
  CHECK(mentions(refusal("redis://::1"), "brackets"));
  CHECK(mentions(refusal("redis://[::1"), "']'"));
  CHECK(mentions(refusal("redis://[::1]7"), "':'"));
  CHECK(mentions(refusal("redis://[h]"), "IPv6"));
  CHECK(mentions(refusal("redis://h%zz"), "%25"));
  CHECK(mentions(refusal("redis://h%4"), "%25"));
  CHECK(mentions(refusal("redis://h%00"), "host"));
  CHECK(mentions(refusal("redis://h?db=1"), "path"));
  CHECK(mentions(refusal("unix://host/s"), "no host"));
  CHECK(mentions(refusal("unix://"), "path is missing"));
  CHECK(mentions(refusal("unix:///" + std::string(200, 'x')), "longer"));
  CHECK(mentions(refusal("unix:///s?database=1"), "unknown parameter"));
}

TEST_CASE("no message shows any part of a password") {
  for (auto const* text :
       {"redis://u:s3cr3t@h:x", "redis://u:pre/s3cr3t@h", "redis://u:pre@s3cr3t:x@h:y",
        "redis://u:pre/s3cr3t", "s3cr3t://h", "s3cr3t", "redis://u:s3cr3t%zz@h",
        "redis://u:12?s3cr3t@h", "unix:///s?password=s3cr3t&x=1", "unix:///s?s3cr3t",
        "redis+sentinel://u:s3cr3t@h", "redis://h:s3cr3t", "redis://[s3cr3t]"}) {
    CAPTURE(text);
    auto const message = refusal(text);
    CHECK_FALSE(message.empty());
    CHECK_FALSE(mentions(message, "s3cr3t"));
  }
}
