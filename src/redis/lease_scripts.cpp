#include "redis/lease_scripts.hpp"

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

#include "lease_scripts_embedded.hpp"

namespace fenceguard::redis {
namespace {

std::string_view file(std::string_view name) {
  for (auto const& one : embedded_scripts::embedded_files()) {
    if (one.name == name) return one.text;
  }
  throw std::logic_error{"script " + std::string{name} + " is not embedded"};
}

script join(std::initializer_list<std::string_view> names) {
  std::string text;
  for (auto name : names) text += file(name);
  return script{std::move(text)};
}

}  // namespace

lease_scripts const& lease_scripts::get() {
  static lease_scripts const all{
      .acquire = join({"identity.lua", "tokens.lua", "acquire.lua"}),
      .advance = join({"identity.lua", "tokens.lua", "advance.lua"}),
      .offer = join({"identity.lua", "offer.lua"}),
      .hold = join({"identity.lua", "hold.lua"}),
      .confirm = join({"identity.lua", "confirm.lua"}),
      .renew = join({"identity.lua", "renew.lua"}),
      .release = join({"identity.lua", "release.lua"}),
      .inspect = join({"identity.lua", "inspect.lua"}),
      .partitions = join({"identity.lua", "partitions.lua"}),
      .drop_tokens = join({"drop_tokens.lua"}),
  };
  return all;
}

}  // namespace fenceguard::redis
