#include "redis/key_space.hpp"

#include <algorithm>
#include <fenceguard/core/errors.hpp>
#include <utility>

namespace fenceguard::redis {
namespace {

bool not_allowed(char c) {
  auto const byte = static_cast<unsigned char>(c);
  return c == '{' || c == '}' || byte <= 0x20 || byte == 0x7f;
}

}  // namespace

key_space::key_space(std::string prefix, unsigned partitions)
    : prefix_{std::move(prefix)},
      partitions_{partitions},
      partitions_text_{std::to_string(partitions)} {
  if (prefix_.empty() || prefix_.size() > max_prefix_bytes) {
    throw invalid_request{"the prefix of a Redis lease store must have 1 to " +
                          std::to_string(max_prefix_bytes) + " bytes, not " +
                          std::to_string(prefix_.size())};
  }
  if (std::any_of(prefix_.begin(), prefix_.end(), not_allowed)) {
    throw invalid_request{
        "the prefix of a Redis lease store must not have braces, spaces or control characters"};
  }
  if (partitions_ < 1 || partitions_ > max_partitions) {
    throw invalid_request{"the number of partitions must be 1 to " +
                          std::to_string(max_partitions) + ", not " + partitions_text_};
  }
}

unsigned key_space::partition_of(std::string_view resource) const noexcept {
  if (partitions_ == 1) return 0;
  std::uint64_t hash = 0xcbf29ce484222325;
  for (char c : resource) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3;
  }
  return static_cast<unsigned>(hash % partitions_);
}

std::string key_space::start(unsigned partition, std::size_t reserve) const {
  std::string key;
  key.reserve(prefix_.size() + 16 + reserve);
  key += prefix_;
  key += ":{";
  key += std::to_string(partition);
  key += "}:";
  return key;
}

std::string key_space::tokens(unsigned partition) const {
  auto key = start(partition, 8);
  key += "tokens";
  return key;
}

std::string key_space::partitions_key() const {
  auto key = start(0, 12);
  key += "partitions";
  return key;
}

std::string key_space::lease(std::string_view resource) const {
  auto key = start(partition_of(resource), resource.size() + 8);
  key += "lease:";
  key += resource;
  return key;
}

std::string key_space::released(std::string_view resource) const {
  auto channel = start(partition_of(resource), resource.size() + 16);
  channel += "released:";
  channel += resource;
  return channel;
}

}  // namespace fenceguard::redis
