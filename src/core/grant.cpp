#include <algorithm>
#include <fenceguard/core/errors.hpp>
#include <utility>

#include "core/fork_detection.hpp"
#include "core/grant_record.hpp"
#include "core/lease_engine.hpp"

namespace fenceguard {
namespace {

// Made before main(), so that a forked child finds it ready.
std::stop_source const already_lost = [] {
  std::stop_source made;
  made.request_stop();
  return made;
}();

}  // namespace

std::stop_token lost_token() noexcept { return already_lost.get_token(); }

grant::grant(std::unique_ptr<record> state) noexcept : state_{std::move(state)} {}

grant::~grant() {
  if (state_->engine->forked()) {
    abandon_in_child(std::move(state_->engine));
  } else {
    state_->engine->forget(*state_);
  }
}

std::string const& grant::resource() const noexcept { return state_->resource; }
std::string const& grant::holder() const noexcept { return state_->holder; }
std::chrono::milliseconds grant::ttl() const noexcept { return state_->ttl; }
fencing_token grant::token() const { return fencing_token{state_->token.load()}; }

std::chrono::milliseconds grant::remaining() const noexcept {
  return state_->engine->remaining(*state_);
}

std::stop_token grant::lost() const noexcept {
  if (state_->engine->forked()) return lost_token();
  static_cast<void>(remaining());  // asks the clock
  return state_->lost.get_token();
}

fencing_token grant::advance(std::optional<fencing_token> above) {
  return state_->engine->advance(*state_, above);
}

release_outcome grant::release() noexcept {
  return state_->engine->release(*state_, lease_engine::released_by::caller);
}

void grant::note_unknown_outcome() noexcept { ++state_->unknown_noted; }

fencing_token grant::token_for_claim() {
  auto const noted = state_->unknown_noted.load();
  auto fenced = state_->unknown_fenced.load();
  if (noted == fenced) return token();
  advance();
  while (fenced < noted && !state_->unknown_fenced.compare_exchange_weak(fenced, noted)) {
  }
  return token();
}

bool grant::may_heal(std::string const& database) const {
  // After an unknown outcome a claim may have been committed without anybody knowing.
  if (state_->engine->forked() || state_->unknown_noted.load() > 0) return false;
  std::lock_guard const guard{state_->claims_mutex};
  auto const& claimed = state_->claimed_databases;
  return std::find(claimed.begin(), claimed.end(), database) == claimed.end();
}

void grant::note_committed_claim(std::string const& database) {
  if (state_->engine->forked()) return;
  std::lock_guard const guard{state_->claims_mutex};
  auto& claimed = state_->claimed_databases;
  if (std::find(claimed.begin(), claimed.end(), database) == claimed.end()) {
    claimed.push_back(database);
  }
}

}  // namespace fenceguard
