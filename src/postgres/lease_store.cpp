#include <fenceguard/core/errors.hpp>
#include <fenceguard/postgres/lease_store.hpp>
#include <memory>

#include "postgres/lease_backend.hpp"

namespace fenceguard::postgres {
namespace {

std::unique_ptr<fenceguard::lease_backend> make_backend(lease_store_options const& options,
                                                        token_source& tokens) {
  auto const& settings = options.settings;
  if (settings.clock == nullptr) throw invalid_request{"settings.clock must not be null"};
  return std::make_unique<lease_backend>(
      lease_backend::settings{.url = options.url,
                              .connections = options.connections,
                              .command_timeout = settings.command_timeout,
                              .observer = settings.observer,
                              .clock = settings.clock},
      tokens);
}

}  // namespace

lease_store::lease_store(lease_store_options const& options, token_source& tokens)
    : fenceguard::lease_store{make_backend(options, tokens), options.settings} {}

}  // namespace fenceguard::postgres
