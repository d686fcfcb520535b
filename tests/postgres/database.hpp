#pragma once

#include <fenceguard/core/events.hpp>
#include <fenceguard/core/lease.hpp>
#include <fenceguard/postgres/token_source.hpp>
#include <fenceguard/testing/lease_store.hpp>
#include <mutex>
#include <pqxx/pqxx>
#include <string>
#include <vector>

#include "servers/postgres_server.hpp"

namespace fenceguard::test_postgres {

// Connections are opened as this role, which is no superuser and owns nothing but its databases.
inline constexpr char const* owner = "ledger_owner";

// The server that the tests of one program share; started with the first use.
test_servers::postgres_server& shared_server();

// Creates the role `owner` on a server that is not the shared one.
void create_owner(test_servers::postgres_server& server);

// A database of `server` that belongs to `owner`, with the newest schema and a table
// `account(id int primary key, balance bigint)` that has the accounts 1 and 2 with 1000 each.
class database {
 public:
  explicit database(test_servers::postgres_server& server = shared_server(),
                    bool with_schema = true);

  std::string const& url() const noexcept { return url_; }
  std::string const& url_unix() const noexcept { return url_unix_; }
  std::string url_through(int port) const;  // over a relay

  // First column of the first row, over a connection of its own, as superuser.
  std::string value(std::string const& sql) const;
  void run(std::string const& sql) const;
  long balance(int account) const;

 private:
  test_servers::postgres_server* server_;
  std::string name_;
  std::string url_;
  std::string url_unix_;
};

// A database, tokens from it, and a lease store over them.
struct workplace {
  explicit workplace(test_servers::postgres_server& server = shared_server()) : db{server} {}

  lease acquire(std::string const& resource,
                std::chrono::milliseconds ttl = std::chrono::seconds{30});
  // Gives `held` up and lets a newer grant claim the resource and commit.
  void overtake(lease& held);

  database db;
  postgres::token_source tokens{db.url()};
  testing::lease_store leases{tokens};
};

// Keeps the names of events, in order.
class recorder final : public observer {
 public:
  void on_event(event const& what) noexcept override;
  std::size_t count(std::string const& name) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> names_;
};

}  // namespace fenceguard::test_postgres
