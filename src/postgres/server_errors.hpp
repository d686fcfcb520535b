#pragma once

#include <exception>
#include <fenceguard/core/errors.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace fenceguard::postgres {

// What the server said about a refused token (SQLSTATE TF001).
struct stale_refusal {
  std::string resource;
  fencing_token presented;
  fencing_token current;
};

// Reads `stale token: presented <n>, current <m>, resource <name>`; nothing where `message` is not
// of that form.
std::optional<stale_refusal> parse_stale(std::string_view message);

// The server's message without its severity and without the lines that tell where in the server's
// code it happened.
std::string server_message(std::exception const& failed);

// What the caller was doing, which decides whose a standard SQLSTATE is.
enum class failed_call {
  callers_statement,  // only class TF is fenceguard's
  own_function,       // bad arguments (22023) and a missing schema are fenceguard's too
};

// The fenceguard error that `failed` stands for, or nothing where it is not fenceguard's.
std::exception_ptr own_error(std::exception const& failed, failed_call what);

// Calls `work`; what it throws with a SQLSTATE of fenceguard's is thrown as fenceguard's error, all
// else as it is.
template <class Work>
auto with_own_errors(failed_call what, Work&& work) -> decltype(work()) {
  try {
    return std::forward<Work>(work)();
  } catch (std::exception const& failed) {
    if (std::exception_ptr const own = own_error(failed, what)) std::rethrow_exception(own);
    throw;
  }
}

}  // namespace fenceguard::postgres
