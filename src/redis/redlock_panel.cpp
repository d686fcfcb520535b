#include "redis/redlock_panel.hpp"

namespace fenceguard::redis {
namespace {

constexpr std::chrono::milliseconds last_moment{100};

}  // namespace

redlock_panel::redlock_panel(std::vector<connection_options> const& servers, observer* told) {
  for (auto const& one : servers) {
    servers_.push_back(std::make_unique<redlock_server>(
        redlock_server::settings{.link = one, .number = servers_.size(), .observer = told}));
  }
}

void redlock_panel::cast(std::shared_ptr<redlock_ballot> const& what) {
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    if (!what->left_out(s)) servers_[s]->ask(what);
  }
}

void redlock_panel::close() noexcept {
  for (auto& one : servers_) one->begin_close();
  auto const until = boottime::now() + last_moment;
  for (auto& one : servers_) one->finish_close(until);
}

}  // namespace fenceguard::redis
