#pragma once

#include <array>
#include <string>
#include <string_view>

namespace fenceguard::redis {

/// What a store asks of a server, as rules of ACL SETUSER, and what goes without it.
/// (https://redis.io/docs/latest/operate/oss_and_stack/management/security/acl/)
struct rights {
  std::string_view rules;
  std::string_view needed_for;
  std::string_view otherwise;
};

inline constexpr std::array needed_rights{
    rights{"+evalsha +eval +get +set +del +hmget +hset +hdel +hincrby +pttl +pexpire +time",
           "every lease", "an error that lists the rights"},
    rights{"+info", "tokens from blocks", "a reservation in the database for each grant"},
    rights{"+publish +pubsub|numsub +subscribe +unsubscribe +ping", "hearing of releases",
           "waiters poll"},
    rights{"+asking +cluster|slots", "Cluster",
           "an error while a slot moves; without the second, MOVED alone tells where a slot is"},
    rights{"+role", "Sentinel", "the scripts alone notice a server that is no primary any more"},
    rights{"+wait +waitaof", "replicas_to_wait, fsync_to_wait", "an error that lists the rights"},
    rights{"+select", "a database other than 0", "an error that lists the rights"},
};

/// Which keys and channels a store with this prefix uses: `~prefix:* &prefix:*`.
[[nodiscard]] inline std::string needed_patterns(std::string_view prefix) {
  std::string const all = std::string{prefix} + ":*";
  return '~' + all + " &" + all;
}

}  // namespace fenceguard::redis
