#include <fenceguard/core/lease_store.hpp>
#include <utility>

#include "core/fork_detection.hpp"
#include "core/lease_engine.hpp"
#include "core/request_validation.hpp"

namespace fenceguard {
namespace {

std::shared_ptr<lease_engine> make_engine(std::unique_ptr<lease_backend> backend,
                                          lease_store_settings const& settings) {
  validate(settings);
  return std::make_shared<lease_engine>(std::move(backend), settings);
}

}  // namespace

lease_store::lease_store(std::unique_ptr<lease_backend> backend,
                         lease_store_settings const& settings)
    : engine_{make_engine(std::move(backend), settings)} {}

lease_store::~lease_store() {
  if (engine_->forked()) {
    abandon_in_child(std::move(engine_));
  } else {
    engine_->close();
  }
}

std::optional<lease> lease_store::acquire(lease_request const& request) {
  return engine_->acquire(request);
}

std::optional<lease_set> lease_store::acquire_all(lease_set_request const& request) {
  return engine_->acquire_all(request);
}

std::optional<holder_info> lease_store::inspect(std::string const& resource) {
  return engine_->inspect(resource);
}

lease_store_counters lease_store::counters() const noexcept { return engine_->counters(); }

}  // namespace fenceguard
