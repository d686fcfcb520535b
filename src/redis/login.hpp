#pragma once

#include "redis/connection.hpp"
#include "redis/reply.hpp"
#include "redis/socket.hpp"

namespace fenceguard::redis {

/// Says on a fresh connection who we are and which database is meant, where the options name one
/// (AUTH, SELECT), and reads the answers. Throws invalid_request where the server refuses; the
/// message never holds the password. Throws unreachable.
void log_in(socket& peer, reply_parser& parser, connection_options const& options,
            connect_bound const& bound);

}  // namespace fenceguard::redis
