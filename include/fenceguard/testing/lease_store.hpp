#pragma once

#include <fenceguard/core/lease_store.hpp>
#include <fenceguard/core/token_source.hpp>

namespace fenceguard::testing {

/// A lease store in memory, for users' own tests of code that takes a fenceguard::lease_store&. It
/// behaves as the real ones do: the conformance suite of this project runs over it too. Leases live
/// in this object: two stores know nothing of each other.
class lease_store final : public fenceguard::lease_store {
 public:
  explicit lease_store(fenceguard::token_source& tokens, lease_store_settings settings = {});

  /// Ends a lease at once, as if its ttl had run out on the server; its holder learns it at the
  /// next renewal, or never. Nothing happens where nobody holds the resource.
  void expire(std::string const& resource);

  /// While unavailable, every request fails as if the server were down.
  void set_available(bool available);

 private:
  struct memory;
  lease_store(std::shared_ptr<memory> state, lease_store_settings settings);
  std::shared_ptr<memory> state_;
};

}  // namespace fenceguard::testing
