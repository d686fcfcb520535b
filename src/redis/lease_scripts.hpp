#pragma once

#include "redis/script.hpp"

namespace fenceguard::redis {

/// The scripts of scripts/*.lua, each with what it shares with others in front of it. One set for
/// the process: what is learned of their digests serves all stores.
struct lease_scripts {
  script acquire;
  script advance;
  script offer;
  script hold;
  script confirm;
  script renew;
  script release;
  script inspect;
  script partitions;
  script drop_tokens;

  [[nodiscard]] static lease_scripts const& get();
};

}  // namespace fenceguard::redis
