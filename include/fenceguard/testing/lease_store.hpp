#pragma once

#include <fenceguard/core/lease_store.hpp>
#include <fenceguard/core/token_source.hpp>
#include <memory>
#include <string>

namespace fenceguard::testing {

class lease_memory;

/// A lease store in memory, for users' own tests of code that takes a fenceguard::lease_store&. It
/// behaves as the real ones do: the conformance suite of this project runs over it too. Leases live
/// in this object: two stores know nothing of each other. Every member may be called from any
/// thread.
class lease_store final : public fenceguard::lease_store {
 public:
  /// `tokens` must outlive the store. Throws invalid_request where a setting is out of its range.
  explicit lease_store(fenceguard::token_source& tokens, lease_store_settings settings = {});
  ~lease_store() override;

  /// Ends a lease at once, as if its ttl had run out on the server; its holder learns it at the
  /// next renewal, or never. Nothing happens where nobody holds the resource.
  void expire(std::string const& resource);

  /// While unavailable, every request is refused at once, as if the server were down.
  void set_available(bool available);

  /// While hanging, every request waits for its time limit and gets no answer, as if the server
  /// were stopped. What is still waiting when the hang ends is served.
  void set_hanging(bool hanging);

 private:
  lease_store(std::shared_ptr<lease_memory> memory, lease_store_settings const& settings);
  std::shared_ptr<lease_memory> memory_;
};

}  // namespace fenceguard::testing
