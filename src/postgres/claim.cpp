#include "postgres/claim.hpp"

#include <algorithm>

#include "postgres/row_statement.hpp"
#include "postgres/server_errors.hpp"
#include "postgres/statement.hpp"

namespace fenceguard::postgres {
namespace {

std::vector<std::shared_ptr<grant>> grants_of(lease_set const& held) {
  std::vector<std::shared_ptr<grant>> grants;
  grants.reserve(held.size());
  for (lease const& one : held) grants.push_back(one.state());
  if (grants.empty()) throw invalid_request{"a guarded transaction needs at least one lease"};
  return grants;
}

std::string database_identity(pqxx::transaction_base& outside) {
  return libpqxx::send_message(outside, "SELECT fenceguard.database_identity()")[0][0]
      .as<std::string>();
}

}  // namespace

claim::claim(lease const& held, observer* observer) : grants_{held.state()}, observer_{observer} {}

claim::claim(lease_set const& held, observer* observer)
    : grants_{grants_of(held)}, observer_{observer} {}

void claim::take_tokens() {
  std::vector<fencing_token> tokens;
  tokens.reserve(grants_.size());
  for (auto const& one : grants_) tokens.push_back(one->token_for_claim());
  tokens_ = std::move(tokens);
}

std::string claim::arguments(libpqxx::connection_base& db) const {
  array_text resources;
  array_text tokens;
  array_text holders;
  for (std::size_t i = 0; i < grants_.size(); ++i) {
    resources.add(grants_[i]->resource());
    tokens.add(std::to_string(tokens_[i].value()));
    holders.add(grants_[i]->holder());
  }
  return libpqxx::quoted(db, std::move(resources).text()) + ", " +
         libpqxx::quoted(db, std::move(tokens).text()) + ", " +
         libpqxx::quoted(db, std::move(holders).text());
}

bool claim::mend(std::exception const& failed, pqxx::transaction_base& outside) {
  std::exception_ptr const own = own_error(failed, failed_call::own_function);
  if (!own) return false;
  try {
    std::rethrow_exception(own);
  } catch (server_promoted const&) {
    if (acknowledged_promotion_) throw;
    acknowledged_promotion_ = true;
    // A statement of its own: it must be committed before anybody relies on it.
    with_own_errors(failed_call::own_function, [&] {
      libpqxx::send_message(outside,
                            std::string{own_transaction} + "SELECT fenceguard.reserve_tokens(1)");
    });
    return true;
  } catch (stale_token const& refused) {
    if (heal(refused, outside)) return true;
    refuse(refused);
  } catch (error const&) {
    return false;
  }
}

bool claim::heal(stale_token const& refused, pqxx::transaction_base& outside) {
  auto const found = std::find_if(grants_.begin(), grants_.end(), [&](auto const& one) {
    return one->resource() == refused.resource();
  });
  if (found == grants_.end()) return false;
  grant& refused_grant = **found;
  if (std::find(healed_.begin(), healed_.end(), refused.resource()) != healed_.end()) return false;
  healed_.push_back(refused.resource());
  if (refused_grant.token() != refused.presented()) return false;  // see refuse()
  if (!refused_grant.may_heal(database_identity(outside))) return false;
  try {
    refused_grant.advance(refused.current());
  } catch (error const&) {
    // The grant is over, or whether it holds could not be told. Either way the refusal stands, and
    // it says what to do.
    return false;
  }
  return true;
}

void claim::refuse(stale_token const& refused) const {
  tell(events::stale_claim{refused.resource(), refused.presented(), refused.current()});
  auto const found = std::find_if(grants_.begin(), grants_.end(), [&](auto const& one) {
    return one->resource() == refused.resource();
  });
  bool const overtaken_by_itself =
      found != grants_.end() && (*found)->token() != refused.presented();
  throw stale_token{refused.resource(), refused.presented(), refused.current(),
                    overtaken_by_itself ? next_step::retry : refused.advice()};
}

void claim::note_committed(std::string const& database) {
  for (auto const& one : grants_) one->note_committed_claim(database);
}

void claim::note_unknown() noexcept {
  for (auto const& one : grants_) one->note_unknown_outcome();
}

void claim::tell(event const& what) const noexcept {
  if (observer_ != nullptr) observer_->on_event(what);
}

std::chrono::milliseconds claim::shortest_ttl() const noexcept {
  auto const shortest = std::min_element(grants_.begin(), grants_.end(),
                                         [](auto& a, auto& b) { return a->ttl() < b->ttl(); });
  return (*shortest)->ttl();
}

fencing_token claim::highest_token() const {
  return *std::max_element(tokens_.begin(), tokens_.end());
}

}  // namespace fenceguard::postgres
