#include <fenceguard/core/errors.hpp>
#include <fenceguard/redis/lease_store.hpp>
#include <memory>
#include <utility>

#include "redis/lease_backend.hpp"
#include "redis/url.hpp"

namespace fenceguard::redis {
namespace {

std::unique_ptr<fenceguard::lease_backend> make_backend(lease_store_options const& options,
                                                        token_source& tokens) {
  auto const& settings = options.settings;
  if (settings.clock == nullptr) throw invalid_request{"settings.clock must not be null"};
  auto const where = parse_url(options.url);
  auto const partitions = where.kind == deployment::cluster ? 64U : 1U;
  key_space keys{options.prefix, options.partitions == 0 ? partitions : options.partitions};
  auto servers = make_topology(where, keys.partitions(), settings.command_timeout);
  auto backend = std::make_unique<lease_backend>(
      lease_backend::settings{.servers = std::move(servers),
                              .keys = std::move(keys),
                              .number_each_grant = options.tokens == token_mode::per_grant,
                              .block_size = options.block_size,
                              .replication = options.replication,
                              .command_timeout = settings.command_timeout,
                              .observer = settings.observer,
                              .clock = settings.clock},
      tokens);
  backend->require_support();
  return backend;
}

}  // namespace

lease_store::lease_store(lease_store_options const& options, token_source& tokens)
    : fenceguard::lease_store{make_backend(options, tokens), options.settings} {}

}  // namespace fenceguard::redis
