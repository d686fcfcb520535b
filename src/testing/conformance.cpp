#include <string>
#include <vector>

#include "core/holder_id.hpp"
#include "testing/conformance_world.hpp"

namespace fenceguard::testing {

void expect(bool held, std::string const& what, call_site where) {
  if (held) return;
  throw conformance_failure{std::string{where.file} + ":" + std::to_string(where.line) +
                            ": expected: " + what};
}

conformance_world::conformance_world(conformance_environment const& environment)
    : environment_{environment}, prefix_{environment.prefix + "/" + new_holder_id() + "/"} {}

conformance_world::~conformance_world() {
  if (paused_) environment_.resume();
}

std::unique_ptr<fenceguard::lease_store> conformance_world::make_store() const {
  return environment_.make_store(environment_.settings);
}

std::unique_ptr<fenceguard::lease_store> conformance_world::make_store(
    lease_store_settings const& settings) const {
  return environment_.make_store(settings);
}

std::string conformance_world::resource(std::string const& name) const { return prefix_ + name; }

void conformance_world::pause() {
  paused_ = true;
  environment_.pause();
}

void conformance_world::resume() {
  environment_.resume();
  paused_ = false;
}

lease conformance_world::must_acquire(fenceguard::lease_store& store, lease_request const& request,
                                      call_site where) const {
  auto got = store.acquire(request);
  expect(got.has_value(), "a grant of " + request.resource + ", not busy", where);
  return std::move(*got);
}

std::span<conformance_case const> conformance_cases() {
  static std::vector<conformance_case> const all = [] {
    std::vector<conformance_case> made;
    for (auto const part : {conformance_of_grants(), conformance_of_waiting(),
                            conformance_of_endings(), conformance_of_faults()}) {
      made.insert(made.end(), part.begin(), part.end());
    }
    return made;
  }();
  return all;
}

}  // namespace fenceguard::testing
