#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fenceguard::redis {

/// The names of the keys. Each resource belongs to one partition; the keys of a partition carry its
/// number in braces, which is Redis Cluster's hash tag, so that a script may use them together:
///
///     fenceguard:{0}:tokens              the tokens that are left, see scripts/tokens.lua
///     fenceguard:{0}:lease:account/42    a lease: `holder token since label`
///     fenceguard:{0}:released:account/42 a channel, for its releases: how many hear it
///
/// May be used by several threads.
class key_space {
 public:
  static constexpr std::size_t max_prefix_bytes = 64;
  static constexpr unsigned max_partitions = 1'024;

  /// Throws invalid_request for a prefix that is empty, longer than max_prefix_bytes, or has
  /// braces, spaces or control characters, and for a number of partitions out of range.
  explicit key_space(std::string prefix, unsigned partitions = 1);

  [[nodiscard]] unsigned partitions() const noexcept { return partitions_; }
  /// The number of partitions in decimal, as scripts are given it.
  [[nodiscard]] std::string_view partitions_text() const noexcept { return partitions_text_; }

  /// The same on every machine and for ever: FNV-1a of the name, modulo the number of partitions.
  [[nodiscard]] unsigned partition_of(std::string_view resource) const noexcept;

  [[nodiscard]] std::string tokens(unsigned partition) const;
  /// Where the number of partitions is kept.
  [[nodiscard]] std::string partitions_key() const;
  [[nodiscard]] std::string lease(std::string_view resource) const;
  /// The channel on which releases are told.
  [[nodiscard]] std::string released(std::string_view resource) const;

 private:
  [[nodiscard]] std::string start(unsigned partition, std::size_t reserve) const;

  std::string prefix_;
  unsigned partitions_;
  std::string partitions_text_;
};

}  // namespace fenceguard::redis
