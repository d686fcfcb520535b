#include "core/request_validation.hpp"

#include <algorithm>
#include <fenceguard/core/errors.hpp>
#include <optional>
#include <string_view>

#include "core/holder_id.hpp"

namespace fenceguard {
namespace {

using std::chrono::milliseconds;

/// The code point at the beginning of `text`, which is shortened by it; nothing where it is no
/// well-formed UTF-8 (RFC 3629: shortest form, no surrogates, at most U+10FFFF).
std::optional<char32_t> next_code_point(std::string_view& text) {
  auto const byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  unsigned const first = byte(0);
  if (first < 0x80) {
    text.remove_prefix(1);
    return first;
  }
  std::size_t const length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return std::nullopt;
  char32_t value = first & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return std::nullopt;
    value = (value << 6U) | (byte(i) & 0x3FU);
  }
  if ((length == 3 && (value < 0x800 || (value >= 0xD800 && value < 0xE000))) ||
      (length == 4 && (value < 0x10000 || value > 0x10FFFF))) {
    return std::nullopt;
  }
  text.remove_prefix(length);
  return value;
}

void validate_label(std::string const& label) {
  if (label.size() > lease_request::max_label_bytes) {
    throw invalid_request{"label has " + std::to_string(label.size()) + " bytes; at most " +
                          std::to_string(lease_request::max_label_bytes) + " are allowed"};
  }
  for (std::string_view rest = label; !rest.empty();) {
    auto const point = next_code_point(rest);
    if (!point) throw invalid_request{"label is not valid UTF-8"};
    if (*point < 0x20 || (*point >= 0x7F && *point < 0xA0)) {
      throw invalid_request{"label contains a control character"};
    }
  }
}

void validate_range(char const* name, milliseconds value, milliseconds least, milliseconds most) {
  if (value >= least && value <= most) return;
  throw invalid_request{std::string{name} + " is " + std::to_string(value.count()) +
                        " ms; allowed are " + std::to_string(least.count()) + " ... " +
                        std::to_string(most.count()) + " ms"};
}

template <class Request>
void validate_all_but_names(Request const& request) {
  validate_range("ttl", request.ttl, lease_request::min_ttl, lease_request::max_ttl);
  validate_range("wait", request.wait, milliseconds{0}, lease_request::max_wait);
  if (request.max_hold != milliseconds{0}) {
    validate_range("max_hold", request.max_hold, lease_request::min_ttl, lease_request::hold_limit);
  }
  validate_label(request.label);
}

}  // namespace

void validate_resource(std::string const& resource) {
  if (resource.empty()) throw invalid_request{"resource is empty"};
  if (resource.size() > lease_request::max_resource_bytes) {
    throw invalid_request{"resource has " + std::to_string(resource.size()) + " bytes; at most " +
                          std::to_string(lease_request::max_resource_bytes) + " are allowed"};
  }
  for (std::string_view rest = resource; !rest.empty();) {
    auto const point = next_code_point(rest);
    if (!point) throw invalid_request{"resource is not valid UTF-8"};
    if (*point == 0) throw invalid_request{"resource contains a NUL character"};
  }
}

void validate(lease_request const& request) {
  validate_resource(request.resource);
  validate_all_but_names(request);
}

void validate(lease_set_request const& request) {
  if (request.resources.empty() || request.resources.size() > lease_set_request::max_resources) {
    throw invalid_request{"resources has " + std::to_string(request.resources.size()) +
                          " names; allowed are 1 ... " +
                          std::to_string(lease_set_request::max_resources)};
  }
  for (auto const& resource : request.resources) validate_resource(resource);
  auto sorted = request.resources;
  std::sort(sorted.begin(), sorted.end());
  auto const twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) throw invalid_request{"resources names " + *twice + " twice"};
  validate_all_but_names(request);
}

void validate(lease_store_settings const& settings) {
  validate_range("command_timeout", settings.command_timeout, milliseconds{10},
                 milliseconds{60'000});
  validate_range("release_timeout", settings.release_timeout, milliseconds{0},
                 milliseconds{60'000});
  if (!(settings.clock_drift >= 0.0 && settings.clock_drift <= 0.5)) {
    throw invalid_request{"clock_drift is " + std::to_string(settings.clock_drift) +
                          "; allowed are 0 ... 0.5"};
  }
  if (settings.clock == nullptr) throw invalid_request{"clock is null"};
}

void validate_attempt(std::string_view holder, std::chrono::milliseconds ttl) {
  if (holder.size() != holder_size) {
    throw invalid_request{"a holder has 32 characters, not " + std::to_string(holder.size())};
  }
  if (ttl.count() < 1) {
    throw invalid_request{"a ttl must be at least 1 ms, not " + std::to_string(ttl.count())};
  }
}

}  // namespace fenceguard
