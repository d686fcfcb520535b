#pragma once

#include <cstdint>
#include <fenceguard/fenceguard.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "connection_pool.hpp"

/// The business: transfers between accounts, each at most once.
class payments {
 public:
  struct order {
    std::int64_t from;
    std::int64_t to;
    std::int64_t cents;
  };

  /// What a client is told. A refusal of the business (unknown account, no funds) is an answer like
  /// any other: it is stored and repeated for the same key.
  struct answer {
    nlohmann::json body;
    bool replayed;
  };

  payments(connection_pool& pool, fenceguard::lease_store& leases) : pool_{pool}, leases_{leases} {}

  /// Pays once for each key. Nothing where the accounts stayed busy. Throws fenceguard::error,
  /// whose advice() has been followed as far as it leads, and what libpqxx throws.
  [[nodiscard]] std::optional<answer> pay(std::string const& key, order const& wanted);

  /// The account's balance in cents; nothing where there is no such account.
  [[nodiscard]] std::optional<std::int64_t> balance(std::int64_t account);

  /// Throws where the database does not answer.
  void check_health();

 private:
  std::optional<answer> try_to_pay(std::string const& key, order const& wanted);

  connection_pool& pool_;
  fenceguard::lease_store& leases_;
};
