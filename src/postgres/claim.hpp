#pragma once

#include <chrono>
#include <exception>
#include <fenceguard/core/errors.hpp>
#include <fenceguard/core/events.hpp>
#include <fenceguard/core/grant.hpp>
#include <fenceguard/core/lease.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "postgres/libpqxx.hpp"

namespace fenceguard::postgres {

// The grants that one guarded transaction claims with, the tokens that it presents, and what to do
// where the database refuses them. Belongs to one thread.
class claim {
 public:
  claim(lease const& held, observer* observer);
  claim(lease_set const& held, observer* observer);

  // Takes each grant's token for the next try: a fresh one where an outcome under it is unknown.
  void take_tokens();

  // `resources, tokens, holders` as SQL arrays, the first arguments of open_guarded().
  std::string arguments(libpqxx::connection_base& db) const;

  // After a refusal, and the transaction's rollback: mends the cause where that is possible, which
  // it is once for each cause, and says whether to try again. Throws the refusal, as stale_token,
  // where it is final. False where `failed` is no refusal of a claim.
  bool mend(std::exception const& failed, pqxx::transaction_base& outside);

  void note_committed(std::string const& database);
  void note_unknown() noexcept;
  void tell(event const& what) const noexcept;

  std::vector<std::shared_ptr<grant>> const& grants() const noexcept { return grants_; }
  std::chrono::milliseconds shortest_ttl() const noexcept;
  fencing_token highest_token() const;

 private:
  bool heal(stale_token const& refused, pqxx::transaction_base& outside);
  [[noreturn]] void refuse(stale_token const& refused) const;

  std::vector<std::shared_ptr<grant>> grants_;
  std::vector<fencing_token> tokens_{};
  observer* observer_;
  std::vector<std::string> healed_{};
  bool acknowledged_promotion_ = false;
};

}  // namespace fenceguard::postgres
