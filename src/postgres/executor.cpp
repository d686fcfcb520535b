#include <fenceguard/postgres/executor.hpp>
#include <fenceguard/postgres/transaction.hpp>

#include "postgres/libpqxx.hpp"
#include "postgres/server_errors.hpp"

namespace fenceguard::postgres {

pqxx::result executor::exec(std::string const& sql, parameters const& args) const {
  if (guarded_ != nullptr) return guarded_->exec_with(sql, args);
  return with_own_errors(failed_call::callers_statement,
                         [&] { return libpqxx::send_statement(*plain_, sql, args); });
}

}  // namespace fenceguard::postgres
