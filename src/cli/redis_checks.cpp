#include "cli/redis_checks.hpp"

#include <fenceguard/core/errors.hpp>
#include <optional>
#include <sstream>
#include <string_view>

#include "cli/redis_fields.hpp"
#include "redis/connection.hpp"
#include "redis/server_error.hpp"
#include "redis/server_version.hpp"

namespace fenceguard::cli {
namespace {

using findings = std::vector<diagnosis>;

/// One server, asked one command after another.
class redis_under_examination {
 public:
  explicit redis_under_examination(redis::connection_options const& options)
      : connection_{options} {}

  /// An error reply is returned; throws lease_store_unavailable where there is no reply.
  redis::result ask(redis::command const& what) {
    auto answer = connection_.call(what, boottime::now() + patience);
    if (!answer.replied()) {
      throw lease_store_unavailable{redis::judge(answer, "cannot reach Redis").message};
    }
    return answer;
  }

  redis::server_version version() {
    return redis::ask_version([this](redis::command const& what) {
      return connection_.call(what, boottime::now() + patience);
    });
  }

 private:
  static constexpr std::chrono::seconds patience{5};
  redis::connection connection_;
};

diagnosis denied(std::string const& command, std::string_view why, std::string const& remedy) {
  return {severity::notice, command, "could not be checked", std::string{why}, remedy, true};
}

redis_fields read_info(redis_under_examination& server, findings& found) {
  auto const answer = server.ask(redis::command{"INFO"});
  if (answer.answer.is_error()) {
    found.push_back(denied("INFO", answer.answer.text(),
                           "run doctor as a user that may call it: ACL SETUSER <user> +info"));
    return {};
  }
  return redis_fields::from_lines(answer.answer.text());
}

redis_fields read_configuration(redis_under_examination& server, findings& found) {
  redis_fields configuration;
  for (std::string_view const name : {"maxmemory", "maxmemory-policy", "appendonly", "save",
                                      "min-replicas-to-write", "protected-mode", "bind"}) {
    auto const answer = server.ask(redis::command{"CONFIG", "GET", name});
    if (answer.answer.is_error()) {
      found.push_back(
          denied("CONFIG GET", answer.answer.text(),
                 "run doctor as a user that may call it: ACL SETUSER <user> +config|get"));
      return configuration;
    }
    if (answer.answer.size() == 2) {
      configuration.set(answer.answer[0].text(), answer.answer[1].text());
    }
  }
  return configuration;
}

/// INFO has the policy as well, for a user who may not read the configuration.
findings check_memory(redis_fields const& info, redis_fields const& configuration) {
  findings found;
  bool const configured = configuration.has("maxmemory");
  std::int64_t const limit =
      configured ? configuration.number("maxmemory") : info.number("maxmemory");
  std::string const policy =
      configured ? configuration["maxmemory-policy"] : info["maxmemory_policy"];
  if (limit <= 0) return found;
  if (policy != "noeviction" && !policy.empty()) {
    found.push_back({severity::error, "maxmemory-policy",
                     "is " + policy + " with maxmemory " + std::to_string(limit),
                     "leases are keys with a ttl and can be evicted, which lets a second holder in "
                     "while the first believes it holds the lease",
                     "CONFIG SET maxmemory-policy noeviction"});
  }
  std::int64_t const used = info.number("used_memory");
  if (used > limit / 10 * 9) {
    found.push_back({severity::warning, "maxmemory",
                     std::to_string(used) + " of " + std::to_string(limit) + " bytes are used",
                     "with the memory full, no lease is granted any more (OOM)",
                     "CONFIG SET maxmemory <more>, or give the leases a server of their own"});
  }
  return found;
}

findings check_persistence(redis_fields const& info, redis_fields const& configuration) {
  findings found;
  if (configuration.has("appendonly") && configuration["appendonly"] == "no" &&
      configuration["save"].empty()) {
    found.push_back({severity::notice, "appendonly", "is no, and no snapshots are saved",
                     "leases are lost at a restart; tokens are not endangered, as the database "
                     "issues and judges them",
                     "CONFIG SET appendonly yes"});
  }
  if (info["rdb_last_bgsave_status"] == "err" || info["aof_last_write_status"] == "err" ||
      info["aof_last_bgrewrite_status"] == "err") {
    found.push_back({severity::warning, "persistence", "the last write to disk failed",
                     "Redis then refuses to write (MISCONF), renewals and releases included",
                     "mend the disk; the server's log says what it met"});
  }
  if (info["loading"] == "1") {
    found.push_back({severity::warning, "server", "is loading its data",
                     "nothing is answered until it has", "wait"});
  }
  return found;
}

findings check_replication(redis_fields const& info, redis_fields const& configuration) {
  if (info["role"] == "slave") {
    return {{severity::error, "server", "is a replica of " + info["master_host"],
             "leases are granted by the primary alone; what a replica has is a copy from the past",
             "point the URL at the primary"}};
  }
  if (info["role"] != "master") return {};
  if (info.number("connected_slaves") == 0) {
    return {{severity::notice, "replicas", "there are none",
             "while this server is down nobody gets a lease", "attach a replica, and a failover"}};
  }
  if (configuration.has("min-replicas-to-write") &&
      configuration.number("min-replicas-to-write") == 0) {
    return {
        {severity::notice, "min-replicas-to-write", "is 0 with replicas attached",
         "a primary that is cut off from its replicas goes on granting leases that the promoted "
         "one does not know",
         "CONFIG SET min-replicas-to-write 1"}};
  }
  return {};
}

findings check_access(redis_under_examination& server, redis_fields const& configuration) {
  if (configuration["protected-mode"] != "no" || !configuration.has("bind") ||
      !binds_beyond_loopback(configuration["bind"])) {
    return {};
  }
  auto const user = server.ask(redis::command{"ACL", "GETUSER", "default"});
  if (user.answer.is_error()) {
    return {denied("ACL GETUSER default", user.answer.text(), "ACL SETUSER <user> +acl|getuser")};
  }
  bool on = false;
  bool nopass = false;
  for (std::size_t i = 0; i + 1 < user.answer.size(); i += 2) {
    if (user.answer[i].text() != "flags") continue;
    for (std::size_t k = 0; k < user.answer[i + 1].size(); ++k) {
      on = on || user.answer[i + 1][k].text() == "on";
      nopass = nopass || user.answer[i + 1][k].text() == "nopass";
    }
  }
  if (!on || !nopass) return {};
  return {{severity::warning, "protected-mode", "is no, and there is no password",
           "anybody who reaches the port can delete leases and issue numbers",
           "CONFIG SET protected-mode yes"}};
}

findings check_clock(redis_under_examination& server, examination const& how) {
  using std::chrono::duration_cast;
  using std::chrono::system_clock;
  auto const before = how.now();
  auto const answer = server.ask(redis::command{"TIME"});
  auto const after = how.now();
  auto const seconds = answer.answer[0].integer();
  auto const microseconds = answer.answer[1].integer();
  if (!seconds || !microseconds) {
    return {denied("TIME", answer.answer.describe(), "ACL SETUSER <user> +time")};
  }
  system_clock::time_point const there{duration_cast<system_clock::duration>(
      std::chrono::seconds{*seconds} + std::chrono::microseconds{*microseconds})};
  return compare_clocks(how, before, there, after);
}

findings check_version(redis_under_examination& server, redis_fields const& info) {
  std::string version = info["redis_version"];
  if (version.empty()) version = server.version().text;
  if (!redis::is_too_old(version)) return {};
  return {{severity::error, "server", "is Redis " + version, "fenceguard needs 6.2 or later",
           "upgrade, or use Valkey"}};
}

}  // namespace

bool binds_beyond_loopback(std::string_view bind) {
  std::istringstream words{std::string{bind}};
  bool any = false;
  for (std::string word; words >> word;) {
    any = true;
    if (word.front() == '-') word.erase(0, 1);  // "-::1": not an error where it does not exist
    if (word != "::1" && word != "localhost" && !word.starts_with("127.")) return true;
  }
  return !any;  // an empty list is every address
}

findings check_redis_server(redis::connection_options const& which, examination const& how) {
  redis_under_examination server{which};
  findings found;
  auto const info = read_info(server, found);
  auto const configuration = read_configuration(server, found);
  for (findings const& more :
       {check_version(server, info), check_replication(info, configuration),
        check_memory(info, configuration), check_persistence(info, configuration),
        check_access(server, configuration), check_clock(server, how)}) {
    found.insert(found.end(), more.begin(), more.end());
  }
  return found;
}

}  // namespace fenceguard::cli
