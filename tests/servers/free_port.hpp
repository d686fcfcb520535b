#pragma once

namespace fenceguard::test_servers {

// A TCP port of 127.0.0.1 on which nothing listens, from a range that the kernel gives to no
// outgoing connection. Another process may take it before the caller does: start the server, and on
// failure ask again. port + 10000 (Redis Cluster's bus) is a valid port too.
int free_port();

}  // namespace fenceguard::test_servers
