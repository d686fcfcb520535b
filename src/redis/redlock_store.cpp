#include <fenceguard/core/errors.hpp>
#include <fenceguard/redis/redlock_store.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "redis/redlock_backend.hpp"
#include "redis/url.hpp"

namespace fenceguard::redis {
namespace {

std::unique_ptr<fenceguard::lease_backend> make_backend(redlock_store_options const& options,
                                                        token_source& tokens) {
  auto const& settings = options.settings;
  if (settings.clock == nullptr) throw invalid_request{"settings.clock must not be null"};
  std::vector<connection_options> servers;
  for (auto const& url : options.urls) {
    auto& one = servers.emplace_back(connection_options::from_url(parse_url(url)));
    one.connect_timeout = settings.command_timeout;
    one.silence_limit = settings.command_timeout;
  }
  return std::make_unique<redlock_backend>(
      redlock_backend::settings{.servers = std::move(servers),
                                .keys = key_space{options.prefix},
                                .command_timeout = settings.command_timeout,
                                .observer = settings.observer,
                                .clock = settings.clock},
      tokens);
}

}  // namespace

redlock_store::redlock_store(redlock_store_options const& options, token_source& tokens)
    : fenceguard::lease_store{make_backend(options, tokens), options.settings} {}

}  // namespace fenceguard::redis
