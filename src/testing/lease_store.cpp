#include <fenceguard/core/errors.hpp>
#include <fenceguard/testing/lease_store.hpp>
#include <memory>
#include <utility>

#include "testing/memory_backend.hpp"

namespace fenceguard::testing {
namespace {

fenceguard::clock const& clock_of(lease_store_settings const& settings) {
  if (settings.clock == nullptr) throw invalid_request{"clock is null"};
  return *settings.clock;
}

}  // namespace

lease_store::lease_store(fenceguard::token_source& tokens, lease_store_settings settings)
    : lease_store{std::make_shared<lease_memory>(tokens, clock_of(settings)), settings} {}

lease_store::lease_store(std::shared_ptr<lease_memory> memory, lease_store_settings const& settings)
    : fenceguard::lease_store{std::make_unique<memory_backend>(memory), settings},
      memory_{std::move(memory)} {}

lease_store::~lease_store() = default;

void lease_store::expire(std::string const& resource) { memory_->expire(resource); }
void lease_store::set_available(bool available) { memory_->set_available(available); }
void lease_store::set_hanging(bool hanging) { memory_->set_hanging(hanging); }

}  // namespace fenceguard::testing
