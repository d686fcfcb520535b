#pragma once

#include <condition_variable>
#include <fenceguard/core/lease_backend.hpp>
#include <fenceguard/core/token_source.hpp>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace fenceguard::testing {

/// What a lease server keeps, in memory, with the faults that a server may have. Several backends
/// may share one. Every member may be called from any thread.
class lease_memory {
 public:
  lease_memory(fenceguard::token_source& tokens, fenceguard::clock const& time) noexcept
      : tokens_{tokens}, clock_{time} {}

  // As the members of lease_backend of the same names.
  [[nodiscard]] lease_backend::acquire_answer try_acquire(lease_backend::attempt const& what);
  void renew(lease_backend::renew_item& item, time_point deadline);
  [[nodiscard]] release_outcome release(std::string_view resource, std::string_view holder,
                                        time_point deadline);
  [[nodiscard]] lease_backend::advance_answer advance(std::string_view resource,
                                                      std::string_view holder,
                                                      std::optional<fencing_token> above,
                                                      time_point deadline);
  [[nodiscard]] std::optional<holder_info> inspect(std::string_view resource, time_point deadline);

  /// `listener` is told of everything that is released, until it is removed.
  void add_listener(void const* owner, lease_backend::hint_sink listener);
  void remove_listener(void const* owner);

  void expire(std::string const& resource);
  void forget_all();
  void set_available(bool available);
  void set_hanging(bool hanging);

 private:
  struct stored {
    std::string holder;
    std::string label;
    fencing_token token;
    time_point expires;
    std::chrono::system_clock::time_point since;
  };
  using lock = std::unique_lock<std::mutex>;
  enum class state { serving, unavailable, silent };

  /// Waits out a hang, up to `deadline`.
  [[nodiscard]] state serve(lock& held, time_point deadline);
  /// The lease on the resource that has not run out; null where there is none.
  [[nodiscard]] stored* find(std::string_view resource);
  void tell_listeners(std::string_view resource);

  fenceguard::token_source& tokens_;
  fenceguard::clock const& clock_;
  std::mutex mutex_;
  std::condition_variable resumed_;
  std::map<std::string, stored, std::less<>> leases_;
  std::map<void const*, lease_backend::hint_sink> listeners_;
  bool available_ = true;
  bool hanging_ = false;
};

}  // namespace fenceguard::testing
