#pragma once

#include <chrono>
#include <fenceguard/core/lease.hpp>
#include <fenceguard/core/lease_backend.hpp>
#include <fenceguard/core/lease_request.hpp>
#include <optional>
#include <string>

#include "core/lease_engine.hpp"

namespace fenceguard {

/// One call of acquire(), from the first try to the last. Belongs to one thread.
class acquisition {
 public:
  acquisition(lease_engine& engine, lease_request const& request);

  /// As lease_store::acquire().
  [[nodiscard]] std::optional<lease> run();

 private:
  enum class answer { granted, busy, again, failed, cancelled };

  [[nodiscard]] std::optional<lease> run_once();
  [[nodiscard]] std::optional<lease> run_in_line();

  /// One try, with a holder of its own: an earlier one without an answer may yet be applied.
  [[nodiscard]] answer ask();
  /// Asks on while the answer is neither granted nor busy because another caller is fetching
  /// tokens: one try may take as long as a command may.
  [[nodiscard]] answer await_tokens(answer last);
  [[nodiscard]] answer received(std::string const& holder, lease_backend::granted const& grant,
                                std::chrono::milliseconds ttl);
  [[nodiscard]] answer unanswered(std::string const& holder, time_point deadline,
                                  std::string const& reason);
  void admit(std::string const& holder, lease_backend::granted const& given,
             std::chrono::milliseconds ttl, time_point server_end);
  void note(wait_queue::place& mine, answer what);

  [[nodiscard]] std::optional<lease> give_up();
  [[nodiscard]] std::optional<lease> conclude(answer last);
  [[nodiscard]] bool pause(std::chrono::milliseconds time) const;
  [[nodiscard]] std::chrono::microseconds waited() const;
  [[nodiscard]] std::chrono::milliseconds ttl_to_ask_for() const;

  lease_engine& engine_;
  lease_request const& request_;
  time_point const started_;
  unsigned attempts_ = 0;
  std::optional<lease> taken_;
  std::chrono::milliseconds hint_{0};  ///< The busy holder's remaining time, or when to try again.
  std::string failure_;
};

}  // namespace fenceguard
